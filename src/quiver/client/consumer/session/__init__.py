"""A consumer's session: streams to the leaders, messages in hand, settlements."""
