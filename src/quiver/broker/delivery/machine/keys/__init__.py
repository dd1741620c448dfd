"""Order for each key: which message of a key leads, and which wait."""
