"""The client for programs without an event loop: the async client, wrapped."""
