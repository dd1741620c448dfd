"""A simulated node that runs mirrors, as a real one does: its links are wires of the simulated network."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from quiver.broker.broker import Broker
from quiver.broker.metadata_listener import MetadataListener
from quiver.broker.mirror.catalog import cluster_id
from quiver.broker.partition.leadership import DATA
from quiver.client.transport.addresses import addresses_in
from quiver.client.transport.cluster import Cluster
from quiver.client.transport.pool import Pool
from quiver.cluster.control.admin import place_of
from quiver.cluster.node import ClusterNode
from quiver.cluster.records import PartitionId
from quiver.cluster.replica.leader_driver import AppendResult, LeaderDriver
from quiver.cluster.replica.manager import LogDefinition
from quiver.cluster.replica.replica import Replica
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.reach import CALL_TIMEOUT_S
from quiver.edge.mirror.runner import MirrorRunner
from quiver.edge.services import note_nothing
from quiver.errors import CorruptLog
from quiver.log.partition_log import PartitionLog
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.mirror.entry_mark import mark_of
from quiver.model.topic import Durability
from quiver.testing.simulator.loop import Process
from quiver.testing.simulator.mirrors.history import DEALS, LOOSE, LedLog, Mark
from quiver.testing.simulator.receives.dialer import ConnectionDialer
from quiver.testing.simulator.receives.edge_node import EdgeNode
from quiver.testing.simulator.simulation import TOPIC, entries_of


class MirrorNode(EdgeNode):
    logs: dict[PartitionId, list[LedLog]]
    """Where it writes down the logs that it leads."""
    is_source = False
    mirrors: MirrorRunner
    """As long as ``cluster`` is there."""
    _listener: MetadataListener

    def _logs_of(self, partition: PartitionId) -> tuple[LogDefinition, ...]:
        data, *rest = self._logs
        defined = self._listener.logs_of(partition)[DATA]
        settings = data.settings
        if self.is_source and place_of(partition)[0] == LOOSE:
            settings = replace(settings, durability=Durability.OS)
        return LogDefinition(data.name, settings, defined.first_offset, defined.cut), *rest

    async def _prepare(self, process: Process, broker: Broker, cluster: ClusterNode) -> None:
        def reach(url: str, _token: str, clock: Clock) -> Cluster:
            names = [address.rpartition(":")[0] for address in addresses_in(url)]
            dialer = ConnectionDialer(self._network, self._loop, self.name, process, is_node=True)
            pool = Pool(dialer, names, clock=clock, chance=Random(self._rng.random()))
            chance = Random(self._rng.random())
            return Cluster(pool, clock=clock, timeout_s=CALL_TIMEOUT_S, chance=chance)

        self._listener = broker.listener
        await broker.mirrors.catalog.load()
        self.mirrors = MirrorRunner(
            MirrorEnvironment(
                mirrors=broker.mirrors,
                cluster=await cluster_id(self._store),
                clock=self.clock,
                run_checks=self._blocking(process),
                decides=lambda: cluster.is_controller,
                reach=reach,
                chance=lambda: Random(self._rng.random()),
            )
        )

    def _offer_services(self, broker: Broker, cluster: ClusterNode, peers: Any) -> Any:
        services = super()._offer_services(broker, cluster, peers)
        services.mirrors, services.node_addresses = self.mirrors, [self.name]
        services.note_formats = note_nothing
        self.mirrors.start()
        return services

    async def _close(self) -> None:
        await self.mirrors.stop()
        await super()._close()

    # ------------------------------------------------------------------ what it writes down

    def _record_lead(self, replica: Replica, leading: LeaderDriver) -> None:
        super()._record_lead(replica, leading)
        topic, _, index = place_of(replica.partition)
        if topic not in (LOOSE, DEALS) and not topic.startswith(TOPIC):
            return  # dead letters are not copied
        log = replica.logs[DATA].log
        known = LedLog(
            node=self.name,
            epoch=leading.machine.epoch,
            at=self._loop.time(),
            found=log.next_offset,
            marks=[],
        )
        try:
            for entry in entries_of(log):
                _note(known, entry)
        except CorruptLog:
            return  # it has not been found yet, and it will not lead for long
        self.logs.setdefault(PartitionId(f"{topic}/{index}"), []).append(known)
        publish = leading.publish

        def recorded(batch: Any, log: int = DATA, *args: Any, **named: Any) -> AppendResult:
            result = publish(batch, log, *args, **named)
            if log == DATA:
                _note(known, result.entry)
            return result

        leading.publish = recorded  # type: ignore[method-assign]


def marks_of(log: PartitionLog) -> list[Mark]:
    """Of every entry of a log, as it is on the disk."""
    return [_mark(entry) for entry in entries_of(log)]


def _mark(entry: StoredBatch) -> Mark:
    mark = mark_of(entry)
    return mark.base_offset, mark.count, mark.append_time, mark.checksum


def _note(log: LedLog, entry: StoredBatch) -> None:
    log.marks.append(_mark(entry))
    if not entry.hops:
        log.own.append(entry.base_offset)
