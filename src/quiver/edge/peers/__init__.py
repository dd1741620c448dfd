"""The other nodes of the cluster: connections to them, and what nodes ask each other."""
