"""Reading topics from Spark: batch, stream and delivery state."""
