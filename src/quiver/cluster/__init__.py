"""What the nodes of a cluster agree on, and how they come to agree."""
