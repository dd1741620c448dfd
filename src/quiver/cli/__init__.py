"""The command line: one file for each noun. Only ``serve`` imports the server."""
