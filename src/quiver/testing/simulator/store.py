"""The metadata store as one process of the simulator reaches it: over the network, if at all.

A call that is cut off on its way there changes nothing; one whose answer is lost was carried out, and
the caller is told the same in both cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from quiver.cluster.metadata.store import (
    Delete,
    Entry,
    Expect,
    Lease,
    LeaseId,
    Listing,
    MetadataStore,
    Put,
    WatchBatch,
)
from quiver.errors import MetadataUnavailable
from quiver.testing.memory_store import MemoryStore
from quiver.testing.simulator.network import STORE, SimulatedNetwork

_PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.25

Result = TypeVar("Result")


class Outage:
    """What is wrong with the store itself: it is away, or it takes its time."""

    def __init__(self) -> None:
        self.is_on = False
        self.delay_s_max = 0.0


class StoreClient(MetadataStore):
    def __init__(
        self, store: MemoryStore, network: SimulatedNetwork, name: str, outage: Outage
    ) -> None:
        self._store = store
        self._network = network
        self._name = name
        self._outage = outage

    async def get(self, key: str) -> Entry | None:
        return await self._call(lambda: self._store.get(key))

    async def list(self, prefix: str) -> Listing:
        return await self._call(lambda: self._store.list(prefix))

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        return await self._call(lambda: self._store.commit(expects, changes))

    async def grant(self, ttl_seconds: int) -> Lease:
        return await self._call(lambda: self._store.grant(ttl_seconds))

    async def keep_alive(self, lease_id: LeaseId) -> int:
        return await self._call(lambda: self._store.keep_alive(lease_id))

    async def revoke(self, lease_id: LeaseId) -> None:
        await self._call(lambda: self._store.revoke(lease_id))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        position = from_revision
        while True:
            waiting = asyncio.ensure_future(self._store.wait_beyond(position))
            try:
                await waiting
            finally:
                waiting.cancel()
            await asyncio.sleep(self._delay())
            if self._outage.is_on or not self._network.passes(STORE, self._name):
                await asyncio.sleep(_POLL_SECONDS)
                continue
            batches, position = self._store.changes_after(prefix, position)
            for batch in batches:
                yield batch

    async def close(self) -> None:
        """The store belongs to all."""

    async def _call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        await self._travel(self._name, STORE)
        result: Any = None
        error: Exception | None = None
        try:
            result = await work()
        except Exception as raised:
            error = raised
        await self._travel(STORE, self._name)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    async def _travel(self, source: str, target: str) -> None:
        await asyncio.sleep(self._delay())
        if self._outage.is_on or not self._network.passes(source, target):
            await asyncio.sleep(_PATIENCE_SECONDS)
            raise MetadataUnavailable

    def _delay(self) -> float:
        return self._network.delay() + self._network.share() * self._outage.delay_s_max
