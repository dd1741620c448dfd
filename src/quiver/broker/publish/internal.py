"""Messages that the broker itself publishes, to topics of its own."""

from __future__ import annotations

import pyarrow as pa

from quiver.broker.definitions.topics import Topics
from quiver.broker.remote.partition_router import PartitionRouter


class InternalPublisher:
    def __init__(self, topics: Topics, router: PartitionRouter) -> None:
        self._topics = topics
        self._router = router

    async def store(self, topic: str, payload: bytes) -> None:
        """Store a message in one of the broker's own topics, made if need be."""
        rows = pa.RecordBatch.from_pydict({"payload": pa.array([payload], pa.binary())})
        await self._router.store(await self._topics.internal(topic), 0, rows)
