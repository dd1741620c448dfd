"""A node's session in the cluster: a lease that is kept alive, and the node's record under it.

The lease is for liveness only. If it is lost, because the process was paused or the metadata store was
unreachable for too long, the node registers a new session, and no longer leads what the old one led.
``proven_until`` is conservative: it counts from the moment the keep-alive was sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from quiver.cluster.metadata.store import Expect, Lease, MetadataStore, Put
from quiver.cluster.records import (
    NOBODY,
    NodeRecord,
    SessionId,
    decode,
    encode,
    node_key,
    session_of,
)
from quiver.errors import (
    InvalidSetting,
    LeaseLost,
    MetadataConflict,
    MetadataError,
)
from quiver.model.clock import Clock

_KEEP_ALIVES_PER_LEASE = 3
_AGAIN_SECONDS = 0.5

logger = structlog.get_logger()


async def nothing_first() -> None:
    """There is nothing to do before registering."""


class NodeSession:
    """``join`` once, then let ``keep`` run for as long as the node lives."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        record: NodeRecord,
        lease_seconds: int,
        *,
        before_joining: Callable[[], Awaitable[None]] = nothing_first,
        on_session: Callable[[SessionId], None] = lambda session: None,
        disk_is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """``before_joining`` is awaited before each registration: the node is not seen as alive until
        it returns. ``on_session`` is called with each new session, and with ``NOBODY`` when one is
        lost. ``disk_is_full`` is asked with each keep-alive, and its answer is in the record."""
        self.record = record
        self.proven_until = 0.0
        """On the monotonic clock: until then nobody has seen this session end."""
        self.revision = 0
        """The store's, at the last registration."""
        self._store = store
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._before_joining = before_joining
        self._on_session = on_session
        self._disk_is_full = disk_is_full
        self._lease: Lease | None = None

    @property
    def session(self) -> SessionId:
        return session_of(self._lease.id) if self._lease is not None else NOBODY

    async def join(self) -> SessionId:
        """Register as alive under a new lease; ``InvalidSetting`` if another node has the name."""
        await self._before_joining()
        began = self._clock.monotonic()
        lease = await self._store.grant(self._lease_seconds)
        record = msgspec.structs.replace(
            self.record, session=session_of(lease.id), disk_is_full=self._disk_is_full()
        )
        key = node_key(record.id)
        entry = await self._store.get(key)
        if entry is not None and decode(entry.value, NodeRecord).disk != record.disk:
            raise InvalidSetting(
                f"another node is named {record.id!r}: choose another name, or wait "
                f"{lease.ttl_seconds} s if you replaced this node's data folder"
            )
        expected = Expect(key, entry.revision if entry is not None else 0)
        self.revision = await self._store.commit([expected], [Put(key, encode(record), lease.id)])
        self._lease, self.record = lease, record
        self.proven_until = began + lease.ttl_seconds
        self._on_session(self.session)
        return self.session

    async def keep(self) -> None:
        """Keep the lease alive for ever, and register anew whenever it is lost."""
        while True:
            try:
                ttl_seconds = await self._renew()
            except (LeaseLost, MetadataConflict):
                logger.warning("the node's lease is lost", node=self.record.id)
                self._lose()
            except MetadataError as error:
                logger.warning("the metadata store does not answer", error=error.message)
                await self._clock.sleep(_AGAIN_SECONDS)
            else:
                await self._clock.sleep(ttl_seconds / _KEEP_ALIVES_PER_LEASE)

    async def leave(self) -> None:
        """End the lease, so that others need not wait for its end.

        If the metadata store does not answer, the lease ends by itself: a node can stop without it.
        """
        if self._lease is not None:
            lease = self._lease
            self._lose()
            try:
                await self._store.revoke(lease.id)
            except MetadataError as error:
                logger.warning("the lease of this node is left to expire", error=error.message)

    async def _renew(self) -> int:
        """How long the lease lasts from now on."""
        if self._lease is None:
            await self.join()
            assert self._lease is not None
            return self._lease.ttl_seconds
        began = self._clock.monotonic()
        ttl_seconds = await self._store.keep_alive(self._lease.id)
        self.proven_until = began + ttl_seconds
        await self._tell_disk(self._lease)
        return ttl_seconds

    async def _tell_disk(self, lease: Lease) -> None:
        full = self._disk_is_full()
        if full != self.record.disk_is_full:
            record = msgspec.structs.replace(self.record, disk_is_full=full)
            key = node_key(record.id)
            expected = Expect(key, self.revision)
            put = Put(key, encode(record), lease.id)
            self.revision = await self._store.commit([expected], [put])
            self.record = record

    def _lose(self) -> None:
        self._lease = None
        self.proven_until = 0.0
        self._on_session(NOBODY)
