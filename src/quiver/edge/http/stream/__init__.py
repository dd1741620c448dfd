"""Messages pushed over a WebSocket."""
