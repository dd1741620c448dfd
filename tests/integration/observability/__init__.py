"""Metrics, alerts and traces of nodes that run."""
