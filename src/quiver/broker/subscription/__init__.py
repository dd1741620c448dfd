"""Subscriptions: their records, receiving and settling, dead letters and redrive."""
