"""The metadata store: its contract, SQLite for a single node, etcd for a cluster."""
