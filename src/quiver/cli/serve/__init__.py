"""Several processes that serve one data folder: their addresses, and their supervisor."""
