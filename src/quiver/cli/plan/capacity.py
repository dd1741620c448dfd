"""The arithmetic of a plan: from a workload and a measurement to nodes, partitions and disks.

Pure: nothing is measured or looked up here. The scarcest resource decides the number of nodes.
Invariant: every resource is then within its bound. What was not measured is an assumption, and the
report lists each.
"""

from __future__ import annotations

import math

import msgspec

from quiver.cli.plan.measurement import Measurement
from quiver.cli.plan.workload import Workload
from quiver.config import NodeConfig
from quiver.errors import InvalidSetting
from quiver.model.topic import PARTITIONS_MAX

DISK_FILL_MAX = 0.8
"""How full a disk may be."""
PARTITION_BYTES_MAX = 200e9
"""What one replica of a partition may hold: copied anew at 100 MB/s, that is half an hour."""
LEADERS_PER_NODE_MIN = 2
"""With fewer, a node that is lost hands its whole load to a single other."""
NODE_BYTES = 250e6
"""The memory of a node that holds nothing: interpreter, Arrow and buffers."""
CACHE_S = 60.0
"""How far behind a reader may be without touching the disk."""
NODES_MAX = 10_000
_ROUNDING = 1e-9
"""What arithmetic with fractions may be off by; no node is added for it."""


class Need(msgspec.Struct, frozen=True):
    """One resource: how many nodes it asks for, and how much of it is used then."""

    resource: str
    nodes: int
    utilisation: float
    bound: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes are bytes. ``disk`` counts all replicas; ``…_per_node`` is what a node must have."""

    nodes: int
    partitions: int
    producers: int
    """Processes that send one by one, at least; batches from Arrow need fewer."""
    peak_per_s: float
    messages_kept: float
    stored_bytes: float
    """What a message takes on disk."""
    kept_bytes: float
    """Before replication."""
    unremoved_bytes: float
    """Of all replicas, what is too old but in a segment with something that is not."""
    disk_bytes: float
    disk_bytes_per_node: float
    write_bytes_per_s_per_node: float
    network_in_per_node: float
    network_out_per_node: float
    memory_bytes_per_node: float
    latency_quiet_ms: dict[str, float]
    latency_at_load_ms: dict[str, float]
    needs: list[Need]
    partitions_for: dict[str, int]
    utilisation_with_a_node_lost: float | None

    @property
    def first_to_break(self) -> Need:
        """The resource that is nearest to its end."""
        return max(self.needs, key=lambda need: need.utilisation)

    @property
    def breaks_at_per_s(self) -> float:
        """The peak at which it is used up, if the workload grows as it is."""
        return self.peak_per_s / self.first_to_break.utilisation


def plan_for(workload: Workload, measured: Measurement) -> Plan:
    """Nodes and partitions ask for each other: begin with the fewest, and grow until all is within bounds."""
    nodes = workload.replicas
    while True:
        partitions_for = _partitions_for(workload, measured, nodes)
        partitions = math.ceil(max(partitions_for.values()) / nodes) * nodes
        needs = _needs(workload, measured, partitions, nodes)
        enough = max(need.nodes for need in needs)
        if enough <= nodes:
            break
        nodes = enough
        if nodes > NODES_MAX:
            raise InvalidSetting(
                f"this needs more than {NODES_MAX:,} nodes: split the workload, or use larger "
                "messages, faster disks or fewer replicas"
            )
    if partitions > PARTITIONS_MAX:
        raise InvalidSetting(
            f"this needs {partitions:,} partitions and a topic has at most {PARTITIONS_MAX:,}: "
            "use several topics and plan each"
        )
    return _plan(workload, measured, nodes, partitions, needs, partitions_for)


def stored_bytes(workload: Workload, measured: Measurement) -> float:
    """What a message takes on disk and on the network: the same bytes."""
    if workload.packed is not None:
        return workload.size_bytes * workload.packed
    return measured.stored_bytes(workload.size_bytes)


def node_seconds(workload: Workload, measured: Measurement) -> dict[str, float]:
    """The time of nodes that each message takes, by what it is for.

    A replica is counted as dear as a publish, and its copying as a read: neither was measured.
    """
    size, copies = workload.size_bytes, workload.replicas - 1
    publish_s = measured.seconds_per_message("publish_per_s", size)
    return {
        "publish": publish_s,
        "replicate": copies * (publish_s + measured.seconds_per_message("read_per_s", size)),
        "deliver": workload.subscriptions * measured.seconds_per_message("deliver_per_s", size),
    }


def unremoved_bytes(workload: Workload, measured: Measurement, partitions: int) -> float:
    """A segment goes as a whole: each partition keeps up to one that should be gone."""
    per_partition = workload.rate_per_s / partitions * stored_bytes(workload, measured)
    segment = min(workload.segment_bytes, per_partition * workload.segment_age_s)
    return segment * partitions * workload.replicas


def _kept_bytes(workload: Workload, measured: Measurement) -> float:
    return workload.rate_per_s * workload.retention_s * stored_bytes(workload, measured)


def _partitions_for(workload: Workload, measured: Measurement, nodes: int) -> dict[str, int]:
    """How many partitions each reason asks for."""
    one_s = measured.seconds_per_message("publish_per_s", workload.size_bytes)
    return {
        "rate": math.ceil(workload.peak_per_s * one_s / workload.utilisation_max),
        "consumers": workload.consumers,
        "size": math.ceil(_kept_bytes(workload, measured) / PARTITION_BYTES_MAX),
        "balance": nodes * LEADERS_PER_NODE_MIN if nodes > 1 else 1,
    }


def _needs(workload: Workload, measured: Measurement, partitions: int, nodes: int) -> list[Need]:
    stored = stored_bytes(workload, measured)
    bound = workload.utilisation_max
    busy = workload.peak_per_s * sum(node_seconds(workload, measured).values())
    writes = workload.peak_per_s * stored * workload.replicas / measured.disk_write_bytes_per_s
    out = workload.peak_per_s * stored * (workload.replicas - 1 + workload.subscriptions)
    taken_in = workload.peak_per_s * stored * workload.replicas
    network = max(out, taken_in) / workload.node_network_bytes_per_s
    used = {"node time": busy, "network": network, "disk writes": writes}
    needs = [_need(name, amount, bound, nodes) for name, amount in used.items()]
    if workload.node_disk_bytes is not None:
        kept = _kept_bytes(workload, measured) * workload.replicas
        kept += unremoved_bytes(workload, measured, partitions)
        needs.append(_need("disk space", kept / workload.node_disk_bytes, DISK_FILL_MAX, nodes))
    return needs


def _need(resource: str, used: float, bound: float, nodes: int) -> Need:
    """``used`` is in nodes: how many would be used up entirely."""
    return Need(resource, max(1, math.ceil(used / bound - _ROUNDING)), used / nodes, bound)


def _plan(
    workload: Workload,
    measured: Measurement,
    nodes: int,
    partitions: int,
    needs: list[Need],
    partitions_for: dict[str, int],
) -> Plan:
    stored = stored_bytes(workload, measured)
    kept = _kept_bytes(workload, measured)
    unremoved = unremoved_bytes(workload, measured, partitions)
    disk = kept * workload.replicas + unremoved
    flow = workload.peak_per_s * stored / nodes
    written = flow * workload.replicas
    busiest = max(need.utilisation for need in needs if need.resource != "disk space")
    quiet = _latency_ms(workload, measured)
    memory = NODE_BYTES + NodeConfig().limits.tail_bytes_total + written * CACHE_S
    return Plan(
        nodes=nodes,
        partitions=partitions,
        producers=math.ceil(workload.peak_per_s / measured.send_per_s),
        peak_per_s=workload.peak_per_s,
        messages_kept=workload.rate_per_s * workload.retention_s,
        stored_bytes=stored,
        kept_bytes=kept,
        unremoved_bytes=unremoved,
        disk_bytes=disk,
        disk_bytes_per_node=disk / nodes / DISK_FILL_MAX,
        write_bytes_per_s_per_node=written,
        network_in_per_node=written,
        network_out_per_node=flow * (workload.replicas - 1 + workload.subscriptions),
        memory_bytes_per_node=memory,
        latency_quiet_ms=quiet,
        latency_at_load_ms={name: ms / (1 - min(busiest, 0.99)) for name, ms in quiet.items()},
        needs=needs,
        partitions_for=partitions_for,
        utilisation_with_a_node_lost=busiest * nodes / (nodes - 1) if nodes > 1 else None,
    )


def _latency_ms(workload: Workload, measured: Measurement) -> dict[str, float]:
    """As measured on one node, and with replicas a trip to a follower and its sync after that."""
    replicated = workload.replicas > 1
    return {
        name: measured.latency_ms[name]
        + (measured.sync_ms[name] + workload.round_trip_ms if replicated else 0.0)
        for name in ("p50", "p99")
    }
