"""The topics there are: their records in the metadata store, and the broker's own topics."""
