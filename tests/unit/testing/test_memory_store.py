from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quiver.cluster.metadata.store import MetadataStore, Put
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore
from tests.unit.cluster.metadata.metadata_conformance import MetadataConformance

HISTORY_REVISIONS = 300


class TestMemoryStore(MetadataConformance):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.clock = ManualClock()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MetadataStore]:
        self.store = MemoryStore(self.clock, HISTORY_REVISIONS)
        yield self.store
        await self.store.close()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.store.sweep()

    async def forget_history(self, store: MetadataStore) -> None:
        for _ in range(HISTORY_REVISIONS):
            await store.commit([], [Put("noise", b"")])
            await asyncio.sleep(0)  # nothing else here lets the watchers read on
