"""The catalog of topics, and the broker's internal topics."""
