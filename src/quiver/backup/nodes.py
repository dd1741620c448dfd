"""The nodes that a backup is taken of or restored to, as far as backups ask them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import NotLeader, SubscriptionNotFound, TopicNotFound
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.protocol import AnyRequest, Reply

TIMEOUT_S = 120.0
_KNOWN_S = 20.0
"""How long other nodes may take to learn of what was just created."""
_PAUSE_S = 0.1

R = TypeVar("R", bound=Reply)


class Nodes:
    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self.clock = clock

    async def ask(
        self, request: AnyRequest, kind: type[R], body: Sequence[Bytes] = ()
    ) -> tuple[R, memoryview]:
        """The answer of any node."""
        _, (reply, data) = await self._cluster.call(
            request, repeatable=True, timeout_s=TIMEOUT_S, body=body
        )
        return expect(kind, reply), data

    async def ask_leader(
        self,
        request: AnyRequest,
        kind: type[R],
        topic: str,
        partition: int,
        body: Sequence[Bytes] = (),
    ) -> tuple[R, memoryview]:
        """The answer of a partition's leader."""
        layout = await self._cluster.layout(topic)

        def find_address() -> str:
            return (self._cluster.known_layout(topic) or layout).address(partition)

        _, (reply, data) = await self._cluster.call(
            request,
            repeatable=True,
            find_address=find_address,
            timeout_s=TIMEOUT_S,
            about=topic,
            body=body,
        )
        return expect(kind, reply), data

    async def ask_new_leader(
        self,
        request: AnyRequest,
        kind: type[R],
        topic: str,
        partition: int,
        body: Sequence[Bytes] = (),
    ) -> tuple[R, memoryview]:
        """The same, of a leader that may not have heard yet of what was just created."""
        deadline = self.clock.monotonic() + _KNOWN_S
        while True:
            try:
                return await self.ask_leader(request, kind, topic, partition, body)
            except (TopicNotFound, SubscriptionNotFound, NotLeader):
                if self.clock.monotonic() > deadline:
                    raise
                self._cluster.forget(topic)
                await self.clock.sleep(_PAUSE_S)
