"""Samples of the broker, for metrics and alerts."""
