"""The filter language: which messages a subscription, a redrive, a purge or a tail wants.

A filter is text such as ``headers.region = 'eu' and priority >= 5``. It is parsed and checked once,
and then evaluated on the Arrow columns of whole batches, never message by message.
"""

from quiver.model.filter.filter import Filter, parse_filter

__all__ = ["Filter", "parse_filter"]
