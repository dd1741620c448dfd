"""Writing to topics from Spark, exactly once."""
