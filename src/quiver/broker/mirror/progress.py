"""How far the copy of a partition is, as it is shown and judged. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from quiver.broker.mirror.log_copy import LogCopy
from quiver.broker.partition.producers.gaps import LogGaps
from quiver.metrics.sample import GAPS_WINDOW_US, MirrorSample
from quiver.model.clock import Clock
from quiver.model.ids import Offset
from quiver.protocol import CopiedPartition, LogFetched


class PartitionProgress:
    """Kept while this node copies the partition."""

    def __init__(self, mirror: str, topic: str, index: int, clock: Clock) -> None:
        self.mirror = mirror
        self.topic = topic
        self.index = index
        self.source_start = Offset(0)
        """Where the partition begins at its source, as far as is known."""
        self._clock = clock
        self._next_offset = 0
        self._source_offset: int | None = None
        self._left_bytes: int | None = None
        self._behind_since: float | None = clock.monotonic()
        """Since when the copy has not had everything; ``None`` while it has."""
        self.gaps = LogGaps()
        """Those of the local log, once that is open here."""
        self._missing_before: int | None = None
        self.copied_bytes = 0
        self.error = ""
        self.is_broken = False
        self._state_asked: float | None = None
        """When the delivery state was asked for that was taken in last: it is no older than that."""

    def copied(self, copy: LogCopy, reply: LogFetched, end: int) -> None:
        """What an answer brought is stored."""
        self.error, self.is_broken = "", False
        self._next_offset, self._source_offset = end, copy.source_end
        self._left_bytes = reply.left_bytes
        self.copied_bytes += reply.size
        self.source_start = copy.source_start
        if reply.read_to >= reply.next_offset:  # by now it may have more
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock.monotonic()

    def watched(self, end: int, source_end: int) -> None:
        """Nothing is copied now: where the copy ends, and where its source ends."""
        self.error, self.is_broken = "", False
        self._next_offset, self._source_offset = end, source_end
        self._left_bytes = None if end < source_end else 0
        if end >= source_end:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock.monotonic()

    def settled(self, end: int) -> None:
        """Everything before an offset is stored, whoever waited for it."""
        self._next_offset = end

    def failed(self, error: str, *, is_broken: bool) -> None:
        self.error, self.is_broken = error, is_broken
        if self._behind_since is None:
            self._behind_since = self._clock.monotonic()

    def opened(self, gaps: LogGaps) -> None:
        """The local log is open, and has these gaps. They are kept up to date."""
        self.gaps = gaps
        if self._missing_before is None:
            self._missing_before = gaps.messages

    @property
    def gap_messages(self) -> int:
        """What the source had no more, since this node began to copy."""
        return max(0, self.gaps.messages - (self._missing_before or 0))

    def state_taken(self, asked: float) -> None:
        """The delivery state that the source had at this time, or later, counts here."""
        self._state_asked = asked

    @property
    def lag_s(self) -> float:
        since = self._behind_since
        return 0.0 if since is None else max(0.0, self._clock.monotonic() - since)

    def described(self) -> CopiedPartition:
        lag = None
        if self._source_offset is not None:
            lag = max(0, self._source_offset - self._next_offset)
        state_lag_s = None
        if self._state_asked is not None:
            state_lag_s = max(0.0, self._clock.monotonic() - self._state_asked)
        return CopiedPartition(
            index=self.index,
            next_offset=self._next_offset,
            source_offset=self._source_offset,
            lag_messages=lag,
            lag_bytes=self._left_bytes,
            lag_s=self.lag_s,
            state_lag_s=state_lag_s,
            gaps=list(self.gaps.ranges),
            error=self.error,
            is_broken=self.is_broken,
        )


def mirror_samples(progress: Iterable[PartitionProgress], now_us: int) -> list[MirrorSample]:
    """All partitions of this node, added up by mirror and topic."""
    since_us = now_us - GAPS_WINDOW_US
    found: dict[tuple[str, str], list[PartitionProgress]] = {}
    for one in progress:
        found.setdefault((one.mirror, one.topic), []).append(one)
    return [_sample(*names, parts, since_us) for names, parts in sorted(found.items())]


def _sample(mirror: str, topic: str, parts: list[PartitionProgress], since_us: int) -> MirrorSample:
    shown = [one.described() for one in parts]
    states = [one.state_lag_s for one in shown if one.state_lag_s is not None]
    return MirrorSample(
        mirror=mirror,
        topic=topic,
        lag_messages=_total([one.lag_messages for one in shown]),
        lag_bytes=_total([one.lag_bytes for one in shown]),
        lag_s=max(one.lag_s or 0.0 for one in shown),
        state_lag_s=max(states, default=None),
        copied_bytes=sum(one.copied_bytes for one in parts),
        gap_messages=sum(one.gap_messages for one in parts),
        missing_messages=sum(one.gaps.messages for one in parts),
        gaps=sorted(gap for one in parts for gap in one.gaps.since(since_us)),
        broken=sum(one.is_broken for one in parts),
    )


def _total(found: list[int | None]) -> int | None:
    """The sum; ``None`` while a part of it is not known."""
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None
