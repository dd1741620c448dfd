"""Connections to nodes: addresses, access, pooling, retries, and who leads what."""
