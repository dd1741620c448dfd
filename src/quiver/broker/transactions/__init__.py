"""The coordinator of transactions: decides them, and tells the partitions."""
