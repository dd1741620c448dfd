"""A broker inside the test, on a clock that the test moves: leases lapse when it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from quiver.client import AsyncClient
from quiver.config import Limits, NodeConfig
from quiver.embedded import EmbeddedDialer
from quiver.testing.clock import ManualClock


@asynccontextmanager
async def clocked(folder: Path, clock: ManualClock) -> AsyncIterator[AsyncClient]:
    limits = Limits(retention_interval_s=1)
    dialer = EmbeddedDialer(NodeConfig(data=str(folder), limits=limits), clock)
    async with AsyncClient(dialer=dialer) as client:
        yield client
