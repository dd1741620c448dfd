"""The transactions of a sink's batches, kept in each process: the next batch finds its producers again."""

from __future__ import annotations

from quiver.client import AsyncClient
from quiver.client.transaction.shared import SharedTransactions

_SINKS_MAX = 16
_kept: dict[str, SharedTransactions] = {}
"""By sink, those that were used last at the end."""


async def transactions_of(client: AsyncClient, sink: str, timeout_s: float) -> SharedTransactions:
    """The transactions of a sink: each batch is the number of one."""
    kept = _kept.pop(sink, None)
    if kept is None or kept.cluster is not client.cluster:  # after a fork it is another
        kept = SharedTransactions(client.cluster, sink, timeout_s)
    kept.timeout_s = timeout_s
    _kept[sink] = kept
    if len(_kept) > _SINKS_MAX:
        _kept.pop(next(iter(_kept))).close()
    return kept
