"""The disk, and the threads that wait for it."""
