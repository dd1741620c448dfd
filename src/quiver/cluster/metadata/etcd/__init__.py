"""The metadata store of a cluster: etcd, spoken to through its JSON gateway."""
