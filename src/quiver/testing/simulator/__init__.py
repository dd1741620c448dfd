"""A whole cluster in one process, on virtual time, from one seed."""
