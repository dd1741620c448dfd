"""Publishing: batches are checked, routed to a partition and stored."""
