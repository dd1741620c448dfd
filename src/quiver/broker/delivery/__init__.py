"""Delivery: which messages of a partition a subscription's consumers get next."""
