"""A plan as text: its numbers, the arithmetic, the costs, the bottleneck, the assumptions."""

from __future__ import annotations

from quiver.cli.plan.capacity import (
    DISK_FILL_MAX,
    PARTITION_BYTES_MAX,
    Plan,
    node_seconds,
)
from quiver.cli.plan.measurement import Measurement
from quiver.cli.plan.workload import Workload

_DAY_S = 86_400
_REMEDY = {
    "node time": "add nodes and move partitions to them, or publish in larger batches",
    "network": "use compression, filters on subscriptions, or faster networks",
    "disk writes": "add nodes, or use faster disks or compression",
    "disk space": "shorten the retention, use compression, or add nodes",
}


def decimal(size: float, unit: str = "B") -> str:
    """As disks and networks are sold: ``7.1 TB``."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(size) < 1000:
            return f"{size:,.0f} {unit}" if not prefix else f"{size:,.1f} {prefix}{unit}"
        size /= 1000
    return f"{size:,.1f} P{unit}"


def rows(workload: Workload, plan: Plan) -> list[tuple[str, str]]:
    quiet, loaded = plan.latency_quiet_ms, plan.latency_at_load_ms
    return [
        ("nodes", f"{plan.nodes:,} (one process and one core each)"),
        ("partitions", f"{plan.partitions:,}, {workload.replicas} replicas of each"),
        ("disk", f"{decimal(plan.disk_bytes)} in all"),
        ("disk of a node", decimal(plan.disk_bytes_per_node)),
        ("disk writes of a node", f"{decimal(plan.write_bytes_per_s_per_node)}/s at the peak"),
        ("network of a node, in", f"{decimal(plan.network_in_per_node)}/s at the peak"),
        ("network of a node, out", f"{decimal(plan.network_out_per_node)}/s at the peak"),
        ("memory of a node", decimal(plan.memory_bytes_per_node)),
        ("latency, quiet", f"p50 {quiet['p50']:,.1f} ms, p99 {quiet['p99']:,.1f} ms"),
        ("latency, at the peak", f"p50 {loaded['p50']:,.1f} ms, p99 {loaded['p99']:,.1f} ms"),
        ("producer processes", f"{plan.producers:,}, each sending single messages"),
    ]


def arithmetic(workload: Workload, measured: Measurement, plan: Plan) -> list[str]:
    cost = node_seconds(workload, measured)
    total_s = sum(cost.values())
    parts = " + ".join(f"{name} {seconds * 1e6:,.2f}" for name, seconds in cost.items())
    reasons = ", ".join(f"{name} {count:,}" for name, count in plan.partitions_for.items())
    days = workload.retention_s / _DAY_S
    return [
        f"messages: {workload.rate_per_s:,.0f}/s = {workload.rate_per_s * _DAY_S:,.0f} a day; "
        f"at the peak x {workload.peak:g} = {plan.peak_per_s:,.0f}/s",
        f"kept: {workload.rate_per_s * _DAY_S:,.0f} a day x {days:g} days "
        f"= {plan.messages_kept:,.0f} messages",
        f"bytes: {workload.size_bytes:,.0f} of payload are {plan.stored_bytes:,.0f} stored; "
        f"x {plan.messages_kept:,.0f} = {decimal(plan.kept_bytes)} before replication",
        f"disk: {decimal(plan.kept_bytes)} x {workload.replicas} replicas "
        f"+ {decimal(plan.unremoved_bytes)} in segments not yet removed = {decimal(plan.disk_bytes)}",
        f"disk of a node: {decimal(plan.disk_bytes)} / {plan.nodes:,} nodes "
        f"/ {DISK_FILL_MAX:g} full = {decimal(plan.disk_bytes_per_node)}",
        f"node time of a message, µs: {parts} = {total_s * 1e6:,.2f}",
        f"nodes: {plan.peak_per_s:,.0f}/s x {total_s * 1e6:,.2f} µs "
        f"= {plan.peak_per_s * total_s:,.2f} nodes at work, / {workload.utilisation_max:g} busy",
        "nodes asked for: "
        + ", ".join(f"{need.resource} {need.nodes:,}" for need in plan.needs)
        + f", replicas {workload.replicas}",
        f"partitions asked for: {reasons}; rounded up to a multiple of the nodes",
    ]


def cost_drivers(workload: Workload, plan: Plan) -> list[str]:
    """What a bill is made of, and what changes it."""
    day = plan.kept_bytes / workload.retention_s * _DAY_S
    copies = workload.replicas - 1
    return [
        f"disk: {decimal(day * workload.replicas)} for each day kept, "
        f"{decimal(plan.kept_bytes)} for each replica",
        f"network between nodes: {decimal(day * copies)} a day (replication)",
        f"network to consumers: {decimal(day * workload.subscriptions)} a day, "
        f"{decimal(day)} for each subscription",
        f"processors: {plan.nodes:,} cores, one for each node",
    ]


def breaks_first(plan: Plan) -> list[str]:
    first = plan.first_to_break
    lines = [
        f"{first.resource}: {first.utilisation:.0%} used; all of it when the workload is "
        f"{1 / first.utilisation:,.1f} times as large ({plan.breaks_at_per_s:,.0f}/s at the peak); "
        f"then {_REMEDY[first.resource]}"
    ]
    if plan.utilisation_with_a_node_lost is not None:
        lost = plan.utilisation_with_a_node_lost
        verdict = "the others carry it" if lost <= 1 else "too much: plan with more nodes"
        lines.append(f"with a node lost the others are {lost:.0%} busy: {verdict}")
    return lines


def assumptions(workload: Workload, measured: Measurement, compression: str | None) -> list[str]:
    lines = [
        f"measured {measured.taken} with {measured.software}, {measured.cores} cores, client and node "
        "on one machine: a node alone on its machine does more",
    ]
    if workload.replicas > 1:
        lines.append(
            "replication is estimated, not measured: a replica costs its node as much as a publish "
            "and its leader as much as a read, and each publish takes one more sync and "
            f"{workload.round_trip_ms:g} ms of network"
        )
    if compression is None:
        lines.append("no compression: give --sample FILE with your messages to measure it")
    else:
        lines.append(f"{compression} compresses all messages as well as the sample")
    lines += [
        "keys spread evenly over partitions: a single key is as fast as one partition",
        "latency at the peak is the quiet latency / (1 - utilisation), as in a simple queue",
        f"a replica holds at most {decimal(PARTITION_BYTES_MAX)}, so that a lost one is copied in "
        "half an hour at 100 MB/s",
    ]
    return lines
