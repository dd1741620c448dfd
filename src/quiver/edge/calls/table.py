"""The table of calls: one row for each request of the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from quiver.edge.calls import (
    cluster,
    connection,
    consumers,
    deliver,
    inspect,
    mirrors,
    observe,
    peers,
    publish,
    read,
    restore,
    subscriptions,
    tokens,
    topics,
    transactions,
)
from quiver.edge.calls.call import Call


def table_of(calls: Iterable[Call]) -> Mapping[type, Call]:
    """The rows by the type of their request; ``ValueError`` if there are two of one type."""
    table: dict[type, Call] = {}
    for call in calls:
        if call.request in table:
            raise ValueError(f"there are two rows for {call.request.__name__}")
        table[call.request] = call
    return table


CALLS = table_of(
    chain(
        connection.CALLS,
        topics.CALLS,
        publish.CALLS,
        read.CALLS,
        subscriptions.CALLS,
        deliver.CALLS,
        consumers.CALLS,
        inspect.CALLS,
        tokens.CALLS,
        restore.CALLS,
        mirrors.CALLS,
        observe.CALLS,
        cluster.CALLS,
        peers.CALLS,
        transactions.CALLS,
    )
)
