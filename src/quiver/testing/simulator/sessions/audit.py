"""Looks into the nodes while a simulation runs: do they keep messages for consumers that are gone?

Messages that were only pushed are ready as soon as a node knows of the end of their consumer. What was
started stays with a silent consumer for its visibility at most, after the end or after a failover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from pyroaring import BitMap64

from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.cluster.records import PartitionId
from quiver.model.subscription import SubscriptionSettings
from quiver.testing.simulator.broker_node import BrokerNode
from quiver.testing.simulator.history import History, Life, Stranded
from quiver.testing.simulator.loop import Process, VirtualLoop

_LOOK_SECONDS = 0.25
_KNOWN_SECONDS = 2.5
"""Within this time a living node hears of the end of a process, however bad the network is."""
_TAKEN_OVER_SECONDS = 3.0
"""How long, after a failover, what a consumer had stays with it until it is heard of."""
_SLACK_SECONDS = 2.5
"""A node looks once a second for what is due, and writes it down."""


class SessionAudit:
    def __init__(
        self,
        nodes: Sequence[BrokerNode],
        queues: dict[str, SubscriptionSettings],
        history: History,
        loop: VirtualLoop,
    ) -> None:
        self._nodes = nodes
        self._queues = queues
        self._history = history
        self._loop = loop
        self._calm: dict[str, tuple[Process, float]] = {}
        """Of each node: its process, and since when it has run without a pause."""
        self._led: dict[tuple[str, object], float] = {}
        """By node and state of a partition: since when it has been open."""
        self._seen: dict[tuple[str, str], float] = {}
        """By node and consumer: since when it has had messages. A request for a session may wait long."""
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for node in self._nodes:
                self._look(node)

    def _look(self, node: BrokerNode) -> None:
        now, process = self._loop.time(), node.process
        known = self._calm.get(node.name)
        if process.is_dead or process.is_paused or node.is_stopping or node.cluster is None:
            self._calm.pop(node.name, None)
            return
        if known is None or known[0] is not process:
            self._calm[node.name] = (process, now)
            return
        gone = {life.consumer: life for life in self._history.lives if life.ended < now}
        for queue, partition, state, machine in _machines(node, self._queues):
            since = self._led.setdefault((node.name, state), now)
            for kind, consumer, offsets in _holders(machine):
                seen = self._seen.setdefault((node.name, consumer), now)
                life = gone.get(consumer)
                known_since = max(since, seen, known[1])
                if life is not None and now > self._until(life, kind, known_since, led=since):
                    self._report(node, queue, partition, life, offsets)

    def _until(self, life: Life, kind: str, since: float, *, led: float) -> float:
        """How long a node that has led since then may keep messages for a consumer that is gone."""
        begin = max(life.ended, since)
        is_kept = self._queues[life.queue].trusts_silence and kind == "leased"
        if life.how != "lost" and not is_kept and since < life.ended:
            heard = begin + _KNOWN_SECONDS
            # What another node pushed stays until its consumer is heard of, or is not.
            taken_over = led + _TAKEN_OVER_SECONDS + _SLACK_SECONDS
            return max(heard, taken_over) if kind == "leased" else heard
        least = [node.clock.extremes_us[0] for node in self._nodes]
        most = [node.clock.extremes_us[1] for node in self._nodes]
        clocks_s = (max(most) - min(least)) / 1e6
        return begin + max(life.visibility_s, _TAKEN_OVER_SECONDS) + 2 * clocks_s + _SLACK_SECONDS

    def _report(
        self,
        node: BrokerNode,
        queue: str,
        partition: PartitionId,
        life: Life,
        offsets: BitMap64,
    ) -> None:
        if (node.name, life.consumer) in self._reported:
            return
        self._reported.add((node.name, life.consumer))
        self._history.stranded.append(
            Stranded(
                queue=queue,
                consumer=life.consumer,
                partition=partition,
                offsets=tuple(offsets),
                node=node.name,
                how=life.how,
                ended=life.ended,
                at=self._loop.time(),
            )
        )


def _machines(
    node: BrokerNode, queues: dict[str, SubscriptionSettings]
) -> Iterator[tuple[str, PartitionId, object, DeliveryMachine]]:
    """Of what the node delivers now: for whom nobody asks, it does nothing."""
    for name in queues:
        subscription = node.broker.directory._at_work.get(name)
        for delivery in () if subscription is None else subscription.deliveries.values():
            if delivery.is_open:
                partition = PartitionId(f"{delivery.topic}/{delivery.partition}")
                yield name, partition, delivery.state, delivery.machine


def _holders(machine: DeliveryMachine) -> Iterator[tuple[str, str, BitMap64]]:
    for reservation in machine.state.reserved:
        yield "reserved", reservation.consumer, reservation.offsets
    for lease in machine.state.leases:
        if lease.is_session and lease.offsets:
            yield "leased", lease.consumer, lease.offsets
