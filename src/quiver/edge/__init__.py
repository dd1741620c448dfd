"""The edge: where clients reach the node. Protocols, authentication, limits, start and stop."""
