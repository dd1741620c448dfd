"""The native protocol over TCP."""
