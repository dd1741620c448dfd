"""Reading a topic: ranges, read-ahead, and stored batches as columns or messages."""
