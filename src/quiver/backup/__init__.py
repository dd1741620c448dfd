"""Backups of a running node or cluster, made and restored by a client."""
