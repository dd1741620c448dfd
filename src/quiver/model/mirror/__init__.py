"""Mirrors: their settings, where a copy comes from, and how two logs are compared."""
