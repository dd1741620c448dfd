"""What a sink of an earlier version has left, which staged rows before it published them."""
