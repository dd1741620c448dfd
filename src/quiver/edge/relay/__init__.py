"""The native protocol through a forwarder: each connection of a client is one to a node."""
