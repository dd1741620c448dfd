"""A query's progress as a subscription's, so that its lag is seen like any consumer's."""

from __future__ import annotations

from quiver.errors import InvalidSetting
from quiver.spark.connections import client_of
from quiver.spark.offsets import Offsets
from quiver.spark.options import ReadOptions


class Progress:
    """Tells the subscription how far the query has come: all below is acknowledged."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._told: Offsets = {}

    def reached(self, offsets: Offsets) -> None:
        """Everything below these offsets has been processed, for good."""
        name = self._options.subscription
        if name is None or offsets == self._told:
            return
        client = client_of(self._options.url, self._options.timeout)
        seek = getattr(client, "seek", None)
        if seek is None:
            raise InvalidSetting("subscription: this version of the client cannot report progress")
        seek(name, offsets)
        self._told = dict(offsets)
