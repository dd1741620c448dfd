"""Receiving: messages in a consumer's hands, and how they are settled."""
