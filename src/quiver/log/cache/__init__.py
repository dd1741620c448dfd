"""What logs keep in memory for their readers, all of it within one budget."""
