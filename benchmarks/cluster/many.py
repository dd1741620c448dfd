"""A thousand partitions on three nodes: what they cost idle, and how soon all are led again."""

from __future__ import annotations

import signal
import time

from benchmarks.cluster.stage import Stage, cluster_of, wait
from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_most
from quiver import Client

_TOPICS = 10
_SETTLES_S_MAX = 60


def hold_a_thousand_partitions(bench: Bench) -> list[Row]:
    count, idle_s = bench.pick(1_000, 20), bench.pick(10, 1)
    with bench.folder() as folder, cluster_of(folder, 3) as stage:
        began = time.monotonic()
        with Client(stage.url, timeout="120s") as client:
            for number in range(_TOPICS):
                client.create_topic(f"many-{number}", partitions=count // _TOPICS, replicas=3)
        stage.wait_whole()
        created_s = time.monotonic() - began
        _settle(stage)
        idle = _idle_cpu(stage, idle_s)
        controller = stage.described().controller
        assert controller is not None
        began = time.monotonic()
        stage.send(controller, signal.SIGKILL)
        stage.end(controller)
        wait(lambda: _is_led(stage, controller), "every partition is led, under a controller")
        led_s = time.monotonic() - began
        began = time.monotonic()
        stage.start(controller)
        stage.wait_whole()
        whole_s = time.monotonic() - began
    name = f"{count:,} partitions of three replicas on three nodes"
    return [
        Row(name=f"{name}: creating them", value=created_s, unit="s"),
        Row(
            name=f"{name}: idle, the busiest node",
            value=max(idle),
            unit="% of a core",
            target=at_most(15),
            note="the others: " + ", ".join(f"{one:.1f}" for one in sorted(idle)[:-1]),
        ),
        Row(
            name=f"{name}: the controller is killed, until all are led under another",
            value=led_s,
            unit="s",
            target=at_most(10),
        ),
        Row(
            name=f"{name}: its node is started, until every replica is in sync",
            value=whole_s,
            unit="s",
            note="from the start of the process",
        ),
    ]


def _settle(stage: Stage) -> None:
    """Until the nodes have opened what they hold: they use less from one second to the next no more."""
    before = float("inf")
    for _ in range(_SETTLES_S_MAX):
        now = sum(_idle_cpu(stage, 1))
        if now > 0.9 * before:
            return
        before = now


def _idle_cpu(stage: Stage, seconds: int) -> list[float]:
    """Each node's share of a core, in percent."""
    before = {name: node.cpu_seconds() for name, node in stage.nodes.items()}
    began = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return [
        100 * (node.cpu_seconds() - before[name]) / passed for name, node in stage.nodes.items()
    ]


def _is_led(stage: Stage, dead: str) -> bool:
    cluster = stage.described()
    return cluster.controller not in (None, dead) and all(
        one.leader not in (None, dead) for one in cluster.partitions
    )
