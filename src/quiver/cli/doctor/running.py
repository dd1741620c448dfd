"""Checks of a node that runs: can it be reached, does it serve, who may use it, is its cluster well."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from quiver.cli.doctor.finding import Finding, failure, ok, warning
from quiver.cli.support.text import (
    plural,
    shown_bytes,
    shown_duration,
    shown_versions,
    versions_of,
)
from quiver.errors import AccessRefused, NotACluster, QuiverError
from quiver.version import __version__

if TYPE_CHECKING:
    from quiver import Client

_SLOW_S = 0.5
_CLOCK_S = 2.0
"""Delays, expiry and leases are about seconds: a clock that differs by more is worth a look."""
_NAMED_MAX = 5


def examine_running(client: Client, anonymous: Callable[[], Client], url: str) -> Iterator[Finding]:
    """``anonymous`` connects in the same way, without a token."""
    began, before = time.monotonic(), time.time()
    try:
        node = client.describe_node()
    except QuiverError as error:
        yield failure("node", f"{url}: {error.message}", "check the URL, the token and the node")
        return
    took_s = time.monotonic() - began
    yield _reached(node.node, took_s, url)
    yield _version(node.software.partition("/")[2])
    yield _clock(node.time_us, before, took_s)
    yield _access(anonymous, url)
    yield from _metrics(client)
    yield from _alerts(client)
    yield from _cluster(client)


def _reached(name: str, took_s: float, url: str) -> Finding:
    message = f"{name} at {url} answers within {took_s * 1000:.0f} ms"
    if took_s > _SLOW_S:
        return warning("node", message, "the node or the network is busy: see quiver top")
    return ok("node", message)


def _version(found: str) -> Finding:
    if found != __version__:
        return warning(
            "version", f"the node has {found}, this command {__version__}", "use the same version"
        )
    return ok("version", f"the node has {found}, as this command")


def _clock(time_us: int, before: float, took_s: float) -> Finding:
    if not time_us:
        return ok("clock", "the node does not tell its time")
    difference_s = time_us / 1e6 - (before + took_s / 2)
    if abs(difference_s) - took_s / 2 > _CLOCK_S:
        side = "ahead of" if difference_s > 0 else "behind"
        return warning(
            "clock",
            f"the node's clock is {abs(difference_s):.1f} s {side} this machine's",
            "use NTP on both: delays and expiry depend on it",
        )
    return ok("clock", "the node's clock agrees with this machine's")


def _access(anonymous: Callable[[], Client], url: str) -> Finding:
    try:
        with anonymous() as client:
            client.list_topics()
    except AccessRefused:
        plain = (
            "" if url.startswith("quivers://") else "; without TLS tokens can be read on their way"
        )
        return ok("authentication", f"on: clients need a token or a certificate{plain}")
    except QuiverError as error:
        return warning("authentication", f"unknown: {error.message}", "check TLS and the URL")
    return warning(
        "authentication",
        "off: everybody who can connect may do everything",
        "set security.authentication = true; see docs/howto/secure.md",
    )


def _metrics(client: Client) -> Iterator[Finding]:
    """Its disk, and whether it serves all it has."""
    try:
        text = client.metrics()
    except AccessRefused:
        yield warning(
            "disk space",
            "unknown: the token may not read metrics",
            "use a token with consume:cluster:*",
        )
        return
    free = min(_values(text, "quiver_disk_free_bytes"), default=None)
    yield ok("disk space", f"{shown_bytes(free)} free on the disk of the node's data folder")
    failed = int(sum(_values(text, "quiver_partitions_failed")))
    if failed:
        yield failure(
            "readiness",
            f"{plural(failed, 'partition')} cannot be written to",
            "see the node's log for the cause; the node tries again by itself",
        )
    else:
        served = int(sum(_values(text, "quiver_partitions")))
        yield ok("readiness", f"{plural(served, 'partition')} open, none failed")


def _values(text: str, name: str) -> list[float]:
    """One, or one of each process of the machine."""
    samples = re.findall(rf"^{name}(?:\{{process=\S+\}})? (\S+)$", text, re.MULTILINE)
    return [float(value) for value in samples]


def _alerts(client: Client) -> Iterator[Finding]:
    firing = client.alerts().firing
    if not firing:
        yield ok("alerts", "none is firing")
    for one in firing[:_NAMED_MAX]:
        judge = failure if one.severity == "critical" else warning
        since = shown_duration(max(0, round(time.time() - one.since_us / 1e6)))
        yield judge(
            "alerts", f"{one.summary} (for {since})", "see quiver top and docs/howto/observe.md"
        )


def _cluster(client: Client) -> Iterator[Finding]:
    try:
        cluster = client.describe_cluster()
    except (NotACluster, AccessRefused):
        return
    down = [one.id for one in cluster.nodes if not one.alive]
    if down:
        names = ", ".join(down[:_NAMED_MAX])
        yield failure("cluster", f"nodes are down: {names}", "start them, or decommission them")
    full = [one.id for one in cluster.nodes if one.disk_is_full]
    if full:
        names = ", ".join(full[:_NAMED_MAX])
        yield failure(
            "cluster", f"disks are full: {names}", "free some space: they take no publishes"
        )
    leaderless = [f"{one.topic}/{one.index}" for one in cluster.partitions if one.leader is None]
    if leaderless:
        names = ", ".join(leaderless[:_NAMED_MAX])
        yield failure(
            "cluster",
            f"partitions without a leader: {names}",
            "start the nodes with their replicas",
        )
    behind = [one for one in cluster.partitions if len(one.in_sync) < len(one.replicas)]
    if behind:
        yield warning(
            "cluster",
            f"{plural(len(behind), 'partition')} with replicas that are not in sync",
            "see quiver cluster partitions",
        )
    versions = versions_of(cluster.nodes)
    if len(versions) > 1:
        yield warning(
            "cluster",
            f"nodes have different versions: {shown_versions(versions)}",
            "finish the upgrade: see docs/howto/upgrade.md",
        )
    if not (down or full or leaderless or behind):
        alive = plural(len(cluster.nodes), "node")
        hosts = {one.host for one in cluster.nodes}
        if len(hosts) == 1 and "" not in hosts:
            alive = f"{plural(len(cluster.nodes), 'process')} of one machine"
        yield ok("cluster", f"{alive}, all replicas in sync, controller {cluster.controller}")
