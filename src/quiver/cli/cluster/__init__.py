"""A cluster on one machine: etcd and several nodes, each a child process."""
