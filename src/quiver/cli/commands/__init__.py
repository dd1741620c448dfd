"""The commands, one file each. Only ``serve`` imports the server."""
