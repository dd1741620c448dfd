"""Partitions that other nodes lead, reached through those nodes."""
