"""Transactions: publishes and acknowledgements that count together, or not at all."""
