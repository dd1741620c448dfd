"""A machine of the simulated cluster with a real broker on it, and the calls that a node answers.

The broker runs over the replicas as in a real node; what clients and other nodes ask arrives as the
native protocol's requests, and goes through the same code as there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec

from quiver import protocol
from quiver.broker.broker import Broker, BrokerEnvironment
from quiver.broker.maintenance import MaintenanceLimits
from quiver.broker.metadata_listener import MetadataListener
from quiver.broker.partition.leadership import Leadership
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.in_flight import unavailable
from quiver.broker.partition.replicated_storage import replicated_storage
from quiver.cluster.node import ClusterListener, ClusterNode
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.leader_log import LeaderLog
from quiver.cluster.replica.messages import Fetch
from quiver.cluster.replica.replica import Replica
from quiver.edge.auth.authority import Authority
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import ANONYMOUS, PEER
from quiver.edge.calls.context import Answer as CallAnswer
from quiver.edge.calls.context import DirectContext
from quiver.edge.calls.table import CALLS
from quiver.edge.limits.inflight_budget import InflightBudget
from quiver.edge.messages import settling
from quiver.edge.messages.publish_order import published
from quiver.edge.peers.peer_broker import PeerBroker
from quiver.edge.services import note_nothing, push_anywhere
from quiver.edge.session import Session
from quiver.edge.turns import Turns
from quiver.errors import LogClosed, LogFailed, PartitionUnavailable, QuiverError
from quiver.testing.simulator.loop import Process
from quiver.testing.simulator.messages import Answer, Ask
from quiver.testing.simulator.node import FOLDER, SimulatedNode
from quiver.testing.simulator.peers import SimulatedPeers
from quiver.testing.simulator.sessions.channels import Dial

LIMITS = MaintenanceLimits(retention_interval_s=1, upkeep_interval_s=0.25, free_bytes_min=0)
_AGAIN_SECONDS = 0.5


class _NoMetrics:
    """What a session counts is of no interest here."""

    def __init__(self) -> None:
        self.errors = self

    def requests_of(self, _: object) -> _NoMetrics:
        return self

    def labels(self, *_: object) -> _NoMetrics:
        return self

    def inc(self) -> None:
        pass


class BrokerNode(SimulatedNode):
    broker: Broker
    """As long as ``cluster`` is there."""

    async def _run(self, process: Process) -> None:
        try:
            await self._open(process)
        except (QuiverError, OSError):
            await asyncio.sleep(_AGAIN_SECONDS)
            self.kill()  # a process that cannot start ends, and is started again
            self.start()

    async def _open(self, process: Process) -> None:
        run_blocking = self._blocking(process)

        def listener() -> MetadataListener:
            return broker.listener

        leadership = Leadership(
            self.name, self.clock, lambda partition: listener().leads_now(partition)
        )
        cluster = self._member(process, self._told(leadership, listener))
        peers = self._reach_peers(process, cluster)

        def known_leader(topic: str, index: int) -> str | None:
            return broker.topics.known_leader(topic, index)

        def lease_ids() -> Iterator[int]:
            yield from count(start << 32 | 1)

        await run_blocking(lambda: self.disk.make_folder(FOLDER))
        broker = await Broker.open(
            BrokerEnvironment(
                folder=FOLDER,
                store=self._store,
                disk=self.disk,
                clock=self.clock,
                run_blocking=run_blocking,
                limits=LIMITS,
                storage=replicated_storage(cluster, leadership, self.clock, run_blocking),
                remote=PeerBroker(peers, self.clock, known_leader),
                lease_ids=lease_ids(),
            )
        )
        # Drawn only now: earlier, every seed would tell another story.
        start = self._rng.getrandbits(31)
        await self._prepare(process, broker, cluster)
        await cluster.start()
        self._services = self._offer_services(broker, cluster, peers)
        self._authority = self._services.authority
        self._sessions: list[Session] = []
        self.broker, self.cluster = broker, cluster

    async def _prepare(self, process: Process, broker: Broker, cluster: ClusterNode) -> None:
        """What else there is to do before the node joins its cluster."""

    def _reach_peers(self, process: Process, cluster: ClusterNode) -> Any:
        """The other nodes, for one life of the process."""
        return SimulatedPeers(self.name, self._network, lambda: cluster.view.state.nodes)

    def _offer_services(self, broker: Broker, cluster: ClusterNode, peers: Any) -> Any:
        """What the edge needs of this node."""
        return SimpleNamespace(
            broker=broker,
            clock=self.clock,
            peers=peers,
            member=cluster,
            cluster=None,
            turns=Turns(),
            inflight=InflightBudget(64 << 20),
            require_push=push_anywhere,
            note_formats=note_nothing,
            limits=SimpleNamespace(
                requests_max=1000, connections_max=1000, inflight_bytes_max=64 << 20
            ),
            metrics=_NoMetrics(),
            authority=Authority(self.clock),
        )

    def _told(
        self, leadership: Leadership, listener: Callable[[], MetadataListener]
    ) -> ClusterListener:
        """Who is told of what the cluster does: the broker, once it is open, and the history."""

        def leads(replica: Replica, leading: LeaderDriver) -> None:
            self._record_lead(replica, leading)
            leadership.began(replica, leading)

        return ClusterListener(
            loaded=lambda entries, revision: listener().reload(entries, revision),
            committed=lambda changes, revision: listener().apply(changes, revision),
            leads=leads,
            leads_no_more=leadership.ended,
            stored=leadership.stored,
        )

    async def _close(self) -> None:
        for session in self._sessions:
            session.drain()
        await self.broker.close()

    # ------------------------------------------------------------------ what it serves

    async def _serve(self, request: Any) -> Any:
        if self.cluster is None:
            raise PartitionUnavailable("the node is starting")
        if isinstance(request, Fetch):
            return await self.cluster.on_fetch(request)
        if isinstance(request, Dial):
            session = request.accept(self.name, self.process, self._services)
            self._sessions += [] if session is None else [session]
            return None
        assert isinstance(request, Ask)
        asked = msgspec.structs.replace(request.request)
        try:
            if isinstance(asked, protocol.Publish):
                return await self._store_batch(asked, request.body)
            if isinstance(asked, protocol.Fetch):
                return await self._read_from(asked)
            reply, body = await self._carry_out(asked, request)
        except (LogFailed, LogClosed) as error:
            raise unavailable(error) from error
        return Answer(reply, b"".join(map(bytes, body)))

    async def _carry_out(self, request: protocol.AnyRequest, ask: Ask) -> CallAnswer:
        if isinstance(request, protocol.Ack) and ask.is_peer:
            # A session's handler takes fewer steps, and every seed would tell another story.
            return await settling.ack(self.broker, request), ()
        caller = Caller(self._authority, self.clock, PEER if ask.is_peer else ANONYMOUS)
        context = DirectContext(self._services, caller)
        return await CALLS[type(request)].answer(context, request, memoryview(ask.body))

    async def _store_batch(self, request: protocol.Publish, body: bytes) -> Answer:
        """As a session does it."""
        broker = self.broker
        offer = broker.publisher.offer(request.topic, body, request.layout, request.partition)
        partition = broker.publisher.ready_partition(request.topic, request.partition)
        if partition is None:
            partition = await broker.publisher.partition(request.topic, request.partition)
        epoch = _epoch(partition)
        placed, number = broker.publisher.store(partition, offer, request.acks)
        return Answer(published(await placed, number), b"", epoch)

    async def _read_from(self, request: protocol.Fetch) -> Answer:
        partition = await self.broker.publisher.partition(request.topic, request.partition)
        read = await self.broker.reader.fetch(
            request.topic, request.partition, request.offset, bytes_max=request.bytes_max
        )
        if self.broker.publisher.ready_partition(request.topic, request.partition) is not partition:
            raise PartitionUnavailable("the leader has changed meanwhile")
        fetched = protocol.Fetched(
            start_offset=read.start_offset,
            next_offset=read.next_offset,
            topic_number=read.topic_number,
            read_to=read.read_to,
        )
        buffers = [bytes(buffer) for entry in read.entries for buffer in entry.buffers()]
        return Answer(fetched, b"".join(buffers), _epoch(partition))


def _epoch(partition: Partition) -> int:
    assert isinstance(partition.log, LeaderLog)
    return partition.log._leading.machine.epoch
