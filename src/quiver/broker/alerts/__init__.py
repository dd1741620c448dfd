"""Alerts: rules, judged against samples of the node, and what is told when they fire and clear."""
