"""A session whose messages are passed on: over a WebSocket, or to a webhook."""
