"""What the console gathers."""
