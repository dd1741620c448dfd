"""Partitions on the node that leads them: the log, producers, deduplication, splits."""
