"""Where clients meet the node: protocols, limits and the node's life."""
