"""Publishing: messages are checked, gathered into batches, and sent exactly once."""
