"""Requests and replies of the HTTP edge. Class names are OpenAPI schema names."""
