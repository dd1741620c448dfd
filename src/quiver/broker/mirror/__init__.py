"""Mirrors: what the source gives, what the copy does with it, and the definitions of both."""
