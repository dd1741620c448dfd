"""Bugs to plant in mirrors: ways to spoil a copy, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from quiver.broker.definitions.subscriptions import Subscriptions
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.broker.mirror import failback, partition_copy
from quiver.broker.mirror.definition_copy import DefinitionCopy
from quiver.broker.mirror.failback import FailbackPartitions
from quiver.broker.mirror.log_copy import LogCopy
from quiver.broker.mirror.partition_copy import Checked, PartitionCopy, Stored
from quiver.broker.mirror.source import MirrorSource
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.in_flight import Placed
from quiver.broker.partition.producers.open_transactions import OpenTransactions
from quiver.broker.subscription.catalog import SubscriptionRecord
from quiver.broker.topics import failback as failback_steps
from quiver.broker.topics.catalog import TopicRecord
from quiver.edge.mirror.promotion import Promotion
from quiver.edge.mirror.running_mirror import RunningMirror
from quiver.log.log import Log
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.envelope import copy_batch, seal_gap
from quiver.model.ids import Offset
from quiver.model.mirror.entry_mark import EntryMark
from quiver.model.mirror.origin import Origin
from quiver.model.topic import Acks
from quiver.protocol import TopicInfo

_append = PartitionCopy.append
_begin = LogCopy.__init__
_is_complete = Promotion._is_complete


async def _append_without_the_first(
    self: PartitionCopy, entries: Sequence[Checked], require_wanted: Callable[[], None]
) -> Stored:
    """Of several entries, have a gap in the place of the first."""
    if len(entries) > 1:
        entry, batch, _ = entries[0]
        entries = [(entry, replace(seal_gap(batch.count), hops=batch.hops), None), *entries[1:]]
    return await _append(self, entries, require_wanted)


def _begin_one_entry_early(self: LogCopy, end: Offset, last: EntryMark | None) -> None:
    _begin(self, end, last)
    if last is not None:
        self.end = self.next_fetch = last.base_offset
        self.last = None


def _restore_at_the_end(
    self: Partition, entry: StoredBatch, batch: UnstoredBatch, rows: Any
) -> asyncio.Future[Placed]:
    """Store an entry wherever the log ends."""
    return self._stage(batch, rows, Acks.QUORUM, entry.append_time)[1]


async def _compare_nothing(self: MirrorSource, *_: Any) -> None:
    pass


async def _complete_without_snapshot(
    self: Promotion, record: TopicRecord, source: TopicInfo, running: RunningMirror, _: float
) -> bool:
    return await _is_complete(self, record, source, running, -1e9)


def _delivers_copies(self: SubscriptionRecord, topic: TopicRecord) -> bool:
    return not topic.moved_to


def _writable_always(self: TopicRecord) -> None:
    pass


async def _keep_nothing(self: FailbackPartitions, *_: Any) -> None:
    pass


async def _adopt_nothing(self: Subscriptions, name: str, mirror: str) -> None:
    pass


async def _end_in_common(
    self: FailbackPartitions, record: TopicRecord, index: int, log: Log, common: Offset
) -> None:
    """Take the whole log for the source's."""
    await _compared(self, record, index, log, log.next_offset)


_compared = FailbackPartitions.compared


async def _cut_at_the_first_open(log: Log, common: Offset) -> Offset:
    """Where the first transaction begins that is open at ``common``."""
    opened = OpenTransactions()
    at = log.stored_from
    while at < common:
        for entry in await log.read(at, 1 << 20, stored=True):
            at = entry.next_offset
            if entry.flags and at <= common:
                opened.record(entry)
    return opened.stable_offset(common)


def _go_on(self: DeliveryStateLog) -> None:
    """Believe what is in memory, whatever the log has."""


def _first_name(self: DefinitionCopy, name: str) -> str:
    """The name of every topic that is kept aside."""
    return f"{name}.diverged-1"


def _first_origin(self: DefinitionCopy, info: TopicInfo, cluster: str) -> Origin:
    """As if nothing had been promoted on the way to the source."""
    return replace(_origin(self, info, cluster), promotions=0)


_origin = DefinitionCopy._origin


def _finished_and_still_fenced(record: TopicRecord, known: TopicRecord) -> TopicRecord:
    return replace(_finished(record, known), moved_to=known.moved_to)


_finished = failback_steps.finished


def _copy_as_own(entry: StoredBatch) -> UnstoredBatch:
    return replace(copy_batch(entry), hops=entry.hops)


TURN_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "keep what diverged again under the first name": [(DefinitionCopy, "_aside", _first_name)],
    "forget the promotes on the way to a source": [(DefinitionCopy, "_origin", _first_origin)],
    "leave the first fence in place": [(failback_steps, "finished", _finished_and_still_fenced)],
    "take what is copied for the cluster's own": [(partition_copy, "copy_batch", _copy_as_own)],
}
"""Those that only seeds find in which a mirror goes back and forth twice."""

FAILBACK_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "cut a log without keeping its end": [(FailbackPartitions, "_copy", _keep_nothing)],
    "deliver from a topic that failed back": [(Subscriptions, "adopt", _adopt_nothing)],
    "cut nothing of a log that diverged": [(FailbackPartitions, "compared", _end_in_common)],
    "cut a log where a transaction is open": [(failback, "_cut", _cut_at_the_first_open)],
}
"""Those that only seeds with a failback find."""

MIRROR_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "skip an entry of the source": [(PartitionCopy, "append", _append_without_the_first)],
    "resume a copy one entry early": [
        (LogCopy, "__init__", _begin_one_entry_early),
        (Partition, "restore", _restore_at_the_end),
    ],
    "compare no mark when the source has another leader": [
        (MirrorSource, "_require_same", _compare_nothing)
    ],
    "promote before the last snapshot counts": [
        (Promotion, "_is_complete", _complete_without_snapshot)
    ],
    "deliver from a copy": [(SubscriptionRecord, "delivers", _delivers_copies)],
    "publish to a copy": [(TopicRecord, "require_writable", _writable_always)],
    "go on with delivery state that was not stored": [(DeliveryStateLog, "_discard", _go_on)],
    **FAILBACK_BUGS,
    **TURN_BUGS,
}
"""Those that only seeds with mirrors find."""
