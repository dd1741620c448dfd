"""Alerts: rules are evaluated against samples of the node, and changes are reported."""
