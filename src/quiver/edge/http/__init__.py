"""HTTP and WebSocket: the edge for any language that has an HTTP client.

It is built on ``quiver.AsyncClient`` and never on the broker, so the same edge serves a node and a
forwarder.
"""
