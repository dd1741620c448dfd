"""A query's progress as a subscription's, so that its lag is seen like any consumer's."""

from __future__ import annotations

from quiver.spark.offsets import Offsets
from quiver.spark.options import ReadOptions


class Progress:
    """Tells the subscription how far the query has come: all below is acknowledged."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reported: Offsets = {}

    def check(self) -> None:
        """``SubscriptionNotFound`` if there is no such subscription."""
        if self._options.subscription is not None:
            client = self._options.nodes.client()
            client.describe_subscription(self._options.subscription)

    def reached(self, offsets: Offsets) -> None:
        """Everything below these offsets has been processed, for good."""
        name = self._options.subscription
        if name is None or offsets == self._reported:
            return
        self._options.nodes.client().seek(name, offsets)
        self._reported = dict(offsets)
