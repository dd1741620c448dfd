"""The connections of this node to the source of one mirror: calls, pace, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quiver.client.transport.cluster import Cluster, expect
from quiver.edge.limits.token_bucket import TokenBucket
from quiver.edge.mirror.link_gauge import LinkGauge
from quiver.edge.mirror.reach import CALL_TIMEOUT_S
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.mirror.settings import MirrorCompression
from quiver.protocol import AnyRequest, FetchLog, LogFetched, Reply

FETCHES_BYTES_MAX = 32 << 20
"""What the fetches of all partitions ask for together: enough to fill a far link."""
_FETCH_BYTES_LEAST = 64 << 10

R = TypeVar("R", bound=Reply)


class SourceLink:
    """``share``: the part of the mirror's rate that this node may use; ``partitions``: how many it copies.

    With ``AUTO``, answers are compressed as long as the link is far or slow, or limited.
    """

    def __init__(
        self,
        source: Cluster,
        rate: int | None,
        clock: Clock,
        *,
        compression: MirrorCompression = MirrorCompression.NONE,
        share: Callable[[], float] = lambda: 1.0,
        partitions: Callable[[], int] = lambda: 1,
    ) -> None:
        self._cluster = source
        self._clock = clock
        self._bucket = None if rate is None else TokenBucket(rate, clock.monotonic(), room=rate / 4)
        self._compression = compression
        self._gauge = LinkGauge()
        self._share = share
        self._partitions = partitions
        self.fetched_bytes = 0
        self._unpacked_bytes = 0

    @property
    def compression(self) -> MirrorCompression:
        """How the source is asked to compress the next answer."""
        if self._compression is not MirrorCompression.AUTO:
            return self._compression
        is_worth = self._bucket is not None or self._gauge.is_far
        return MirrorCompression.ZSTD if is_worth else MirrorCompression.NONE

    async def call(self, kind: type[R], request: AnyRequest) -> R:
        """Ask any node of the source."""
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        return expect(kind, reply)

    async def call_leader(
        self, kind: type[R], request: AnyRequest, topic: str, partition: int, wait_s: float = 0.0
    ) -> tuple[R, memoryview]:
        """Ask the node of the source that leads a partition, once. ``wait_s``: how long it may wait.

        Whoever asks again says where it is by then.
        """
        layout = await self._cluster.layout(topic)
        try:
            _, (reply, body) = await self._cluster.call(
                request,
                repeatable=False,
                find_address=lambda: (self._cluster.known_layout(topic) or layout).address(
                    partition
                ),
                timeout_s=wait_s + CALL_TIMEOUT_S,
            )
        except QuiverError:
            self._cluster.forget(topic)
            raise
        self.fetched_bytes += len(body)
        return expect(kind, reply), body

    async def fetch(
        self, request: FetchLog, topic: str, partition: int, wait_s: float
    ) -> tuple[LogFetched, memoryview]:
        """Fetch entries. One that need not wait for them tells how far the source is."""
        began, fetched, unpacked = self._clock.monotonic(), self.fetched_bytes, self._unpacked_bytes
        reply, body = await self.call_leader(LogFetched, request, topic, partition, wait_s)
        self._unpacked_bytes += reply.size
        if not wait_s:
            took_s = self._clock.monotonic() - began
            self._gauge.note(took_s, self.fetched_bytes - fetched, self._unpacked_bytes - unpacked)
        return reply, body

    async def pace(self, size: int) -> None:
        """Wait until so many bytes are within the mirror's rate."""
        if self._bucket is not None and size:
            share = max(0.01, self._share())
            await self._clock.sleep(self._bucket.take(size / share, self._clock.monotonic()))

    def fetch_bytes_max(self) -> int:
        """What the fetch of one partition may ask for."""
        return max(_FETCH_BYTES_LEAST, FETCHES_BYTES_MAX // max(1, self._partitions()))

    async def close(self) -> None:
        await self._cluster.close()
