"""Webhooks: subscriptions whose messages a node posts to an HTTP endpoint."""
