"""Files for those who run Quiver, made from the same definitions as the node's own."""
