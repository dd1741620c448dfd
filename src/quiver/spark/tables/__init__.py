"""Tables that Spark's tasks fill with Parquet files: Delta, Iceberg or plain Parquet."""
