"""One log of a replica: its entries, its epochs, and its committed watermark.

Epochs and watermark are in a small file beside the segments. An epoch is in the file before its first
entry is in the log; epochs of entries that a crash lost are dropped on opening. If the file is missing or
damaged, the epochs are read from the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog
from crc32c import crc32c

from quiver.cluster.replica.epochs import EpochHistory, EpochStart
from quiver.cluster.replica.follower import epoch_starts
from quiver.errors import CorruptLog, LogError
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.files import write_files
from quiver.log.group_commit import OnCommit
from quiver.log.log_context import LogContext
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import LeaderEpoch, Offset
from quiver.model.mirror.failback import Cut
from quiver.model.topic import Durability

REPLICA = "replica"
_READ_BYTES = 4 << 20

logger = structlog.get_logger()

CutOf = Callable[[], Cut | None]
"""What is to be dropped of the end of a log now."""


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    starts: tuple[EpochStart, ...]
    watermark: Offset


class ReplicaLog:
    """Use ``open``. One caller at a time changes it."""

    def __init__(
        self,
        log: PartitionLog,
        history: EpochHistory,
        watermark: Offset,
        *,
        folder: str,
        settings: LogSettings,
        disk: Disk,
        run_blocking: RunBlocking,
        cut_of: CutOf = lambda: None,
    ) -> None:
        self.log = log
        self.history = history
        self.watermark = watermark
        """Everything before it is committed; there may be more."""
        self._folder = folder
        self._settings = settings
        self._disk = disk
        self._run_blocking = run_blocking
        self._cut_of = cut_of

    @classmethod
    async def open(
        cls,
        folder: str,
        settings: LogSettings,
        *,
        disk: Disk,
        clock: Clock,
        run_blocking: RunBlocking,
        first_offset: Offset = Offset(0),
        on_commit: OnCommit = lambda committed: None,
        context: LogContext | None = None,
        cut_of: CutOf = lambda: None,
        may_lack_end: bool = False,
    ) -> ReplicaLog:
        """``CorruptLog`` if what was synced is damaged: drop the folder and fetch it from a peer.

        So it is if something is missing at the end that was committed, unless it ``may_lack_end``.
        """
        log = await PartitionLog.open(
            folder,
            disk=disk,
            clock=clock,
            settings=settings,
            run_blocking=run_blocking,
            first_offset=first_offset,
            on_commit=on_commit,
            context=context,
        )
        path = f"{folder}/{REPLICA}"
        data = await run_blocking(lambda: disk.read(path) if disk.exists(path) else b"")
        saved = _verified(data)
        history = EpochHistory(saved.starts if saved is not None else ())
        history.truncate(log.next_offset)
        is_empty = log.stored_from == log.next_offset
        if history.last_epoch != log.epoch and not is_empty:
            history = await _read_history(log)
        watermark = saved.watermark if saved is not None else Offset(0)
        if watermark > log.next_offset and may_lack_end:
            logger.error(
                "committed data is lost: the log goes on without its end",
                folder=folder,
                offset=log.next_offset,
                watermark=watermark,
            )
            watermark = log.next_offset
        if watermark > log.next_offset:
            await log.close()
            raise CorruptLog(
                f"{folder} ends at {log.next_offset:,}, and everything before {watermark:,} was "
                "committed: the end of the log is lost; rebuild this replica from a peer",
                file=folder,
                position=log.next_offset,
            )
        return cls(
            log,
            history,
            max(watermark, log.start_offset),
            folder=folder,
            settings=settings,
            disk=disk,
            run_blocking=run_blocking,
            cut_of=cut_of,
        )

    @property
    def safe_offset(self) -> Offset:
        """Everything before it is as safe on this replica as the topic asks."""
        if self._settings.durability is Durability.FSYNC:
            return self.log.durable_offset
        return self.log.next_offset

    async def reconfigure(self, settings: LogSettings) -> None:
        """Go on with other settings. Who asks for ``fsync`` from now on has it for what is there, too."""
        if settings == self._settings:
            return
        self.log.reconfigure(settings)
        if settings.durability is Durability.FSYNC is not self._settings.durability:
            await self.log.checkpoint()
        self._settings = settings

    async def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """From now on this node appends under ``epoch``."""
        self.history.begin(epoch, self.log.staged_offset)
        await self.save()

    async def append(self, entries: Sequence[StoredBatch]) -> None:
        """Store what the leader stored."""
        if entries and entries[0].base_offset != self.log.staged_offset:
            raise LogError(
                f"the next offset in {self._folder} is {self.log.staged_offset:,}, and the leader's "
                f"entries begin at {entries[0].base_offset:,}"
            )
        starts = epoch_starts(list(entries), self.history.last_epoch)
        for epoch, offset in starts:
            self.history.begin(epoch, offset)
        if starts:
            await self.save()
        await self.log.append_replica(entries)

    async def truncate(self, offset: Offset) -> None:
        end = await self.log.truncate(offset)
        # Epochs of which no entry is left say nothing: the leader may not know them any more.
        self.history.truncate(end if end > self.log.stored_from else Offset(0))
        self.watermark = min(self.watermark, end)
        await self.save()

    async def drop_cut(self) -> None:
        """Drop the end that a failback has kept aside, if it is there. Followers drop it after this one."""
        cut = self._cut_of()
        if cut is not None and cut.applies_to(self.log.next_offset):
            logger.warning("the end of a log is dropped", folder=self._folder, offset=cut.begin)
            await self.truncate(Offset(cut.begin))

    def is_to_be_cut(self, offset: Offset) -> bool:
        """Whether what is from ``offset`` on may go, though it was committed."""
        cut = self._cut_of()
        return cut is not None and cut.begin <= offset

    async def retain(self, limits: RetentionLimits) -> Offset:
        """Drop the oldest messages that the limits allow, of what is committed; the new start."""
        start = await self.log.retain(limits.capped(self.watermark))
        self.history.forget(self.log.stored_from)
        return start

    async def scrub(self) -> None:
        """``CorruptLog`` if anything that is stored cannot be read as it was written."""
        offset, end = self.log.stored_from, self.log.next_offset
        while offset < min(end, self.log.next_offset):
            start = max(offset, self.log.stored_from)
            entries = await self.log.read(start, _READ_BYTES, stored=True, from_disk=True)
            offset = entries[-1].next_offset

    async def save(self) -> None:
        """Two at a time would write to one file: whoever was cancelled may still be at it."""

        async def write() -> None:
            data = msgspec.msgpack.encode(_Saved(self.history.starts, self.watermark))
            content = {REPLICA: crc32c(data).to_bytes(4, "little") + data}
            await self._run_blocking(lambda: write_files(self._disk, self._folder, content))

        await self.log.commits.with_disk(write)

    async def close(self) -> None:
        if self.log.failure is None:
            await self.save()
        await self.log.close()


async def _read_history(log: PartitionLog) -> EpochHistory:
    history = EpochHistory()
    offset = log.stored_from
    while offset < log.next_offset:
        entries = await log.read(offset, _READ_BYTES, stored=True)
        for epoch, start in epoch_starts(entries, history.last_epoch):
            history.begin(epoch, start)
        offset = entries[-1].next_offset
    return history


def _verified(data: bytes) -> _Saved | None:
    if len(data) < 4 or crc32c(data[4:]).to_bytes(4, "little") != data[:4]:
        return None
    try:
        return msgspec.msgpack.decode(data[4:], type=_Saved)
    except msgspec.DecodeError:
        return None
