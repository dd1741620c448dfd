"""HTTP and WebSocket: the edge for any language that has an HTTP client.

Everything here stands on ``quiver.AsyncClient`` and never on the broker, so that the same edge
serves a node and a forwarder.
"""
