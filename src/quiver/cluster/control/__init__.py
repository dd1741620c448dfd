"""What one node does for the whole cluster: elections, placement, moves; and failure detection."""
