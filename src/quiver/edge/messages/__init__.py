"""Messages on this node: stored in order, received under a lease, settled, looked at."""
