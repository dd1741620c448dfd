"""Handling each message once, though it may be delivered more than once."""
