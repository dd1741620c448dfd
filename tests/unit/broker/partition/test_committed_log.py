"""What readers see is what a look at all entries of the log says, over any restarts and crashes."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiver.broker.partition.partition import Partition
from quiver.errors import LogClosed, LogFailed, PartitionUnavailable
from quiver.log.log import LogReader
from quiver.log.retention import RetentionLimits
from quiver.model.batch import StoredBatch
from quiver.model.envelope import COMMITTED, MARKER, ended_by, is_hidden
from quiver.model.ids import Offset, ProducerEpoch, ProducerId
from quiver.model.transaction import producer_of, transaction_id
from quiver.testing.disk import SimulatedDisk
from tests.aio import turns
from tests.unit.broker.broker_doubles import Gate
from tests.unit.broker.partition.transactions import open_partition, publish

Step = tuple[str, int]
_steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["batch", "batch", "commit", "abort", "commit in flight"]),
            st.integers(1, 3),
        ),
        st.tuples(
            st.sampled_from(["plain", "save", "reopen", "crash", "crash in flight", "retain"]),
            st.just(0),
        ),
    ),
    max_size=25,
)


async def _entries(log: LogReader) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    offset = log.start_offset
    while offset < log.next_offset:
        found += await log.read(offset)
        offset = found[-1].next_offset
    return found


def _expected(entries: list[StoredBatch]) -> list[Offset]:
    """The entries that a reader may see, from all that the log has."""

    def transaction(entry: StoredBatch) -> tuple[int, int]:
        return entry.producer_id, entry.producer_epoch

    ended = {
        producer_of(one): bool(entry.flags & COMMITTED)
        for entry in entries
        if entry.flags & MARKER
        for one in ended_by(entry)
    }
    visible: list[Offset] = []
    for entry in entries:
        if entry.flags & MARKER:
            continue
        if entry.flags and transaction(entry) not in ended:
            break
        if not entry.flags or ended[transaction(entry)]:
            visible.append(entry.base_offset)
    return visible


class _Life:
    """A partition that is published to, restarted and crashed."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(7)
        self.gate = Gate()
        self.epochs = dict.fromkeys((1, 2, 3), 0)
        self.acknowledged = Offset(0)

    async def open(self) -> None:
        self.gate = Gate()
        self.partition: Partition = await open_partition(self.disk, self.gate)

    async def take(self, kind: str, producer: int) -> None:
        partition = self.partition
        match kind:
            case "plain":
                await publish(partition, b"plain")
            case "batch":
                await publish(partition, b"in", producer=producer, epoch=self.epochs[producer])
            case "commit" | "abort":
                await partition.close_transactions({self._end(producer): kind == "commit"})
            case "commit in flight":
                await self._cut_off(partition.close_transactions({self._end(producer): True}))
            case "crash in flight":
                await self._cut_off(_both(partition))
            case "save":
                await partition._saved.save()
            case "retain":
                await partition.retain(RetentionLimits(messages=3))
            case "reopen":
                await partition.close()
                await self.open()
            case "crash":
                self.disk.crash()
                await self.open()
        self.acknowledged = max(self.acknowledged, self.partition.log.next_offset)

    def _end(self, producer: int) -> int:
        epoch = self.epochs[producer]
        self.epochs[producer] += 1
        return transaction_id(ProducerId(producer), ProducerEpoch(epoch))

    async def _cut_off(self, work: object) -> None:
        """Lose power while something is on its way to the disk."""
        self.gate.shut()
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        await turns()
        self.disk.crash()
        self.gate.open()
        with contextlib.suppress(LogFailed, LogClosed, PartitionUnavailable):
            await task
        await self.open()


async def _both(partition: Partition) -> None:
    one, two = publish(partition, b"plain"), publish(partition, b"in", producer=4)
    await asyncio.wait([one, two])
    one.exception(), two.exception()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_steps)
def test_readers_see_what_the_log_says(steps: list[Step]) -> None:
    async def check() -> None:
        life = _Life()
        await life.open()
        for kind, producer in steps:
            await life.take(kind, producer)
            raw = await _entries(life.partition.log)
            assert life.partition.log.next_offset >= life.acknowledged
            seen = [one for one in await _entries(life.partition.committed) if not is_hidden(one)]
            assert [one.base_offset for one in seen] == _expected(raw)
        await life.partition.close()

    asyncio.run(check())
