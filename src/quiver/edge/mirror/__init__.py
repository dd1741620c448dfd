"""Mirrors at work: what this node pulls from other clusters."""
