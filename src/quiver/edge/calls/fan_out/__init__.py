"""The nodes that a call runs on, and how it is sent to them."""
