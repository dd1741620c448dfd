"""The calls of the native protocol: what each needs, where it runs, and its handler."""
