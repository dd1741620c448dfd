"""Mirrors between clusters: copied by whoever leads, through the death of nodes on both sides."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import quiver
from quiver.config import Limits
from tests.integration.client_node import ThreadNode
from tests.integration.mirror.nodes import (
    copied,
    entries,
    gaps,
    is_gap_alerted,
    messages,
    node,
    wait_same,
)
from tests.integration.three_nodes import NAMES, ThreeNodes, three_nodes
from tests.serving import eventually

pytestmark = [pytest.mark.process, pytest.mark.long]

PARTITIONS = 3


class Load:
    """Publishes until it is stopped; knows what was confirmed."""

    def __init__(self, url: str, topic: str) -> None:
        self.confirmed: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, topic))

    def _run(self, url: str, topic: str) -> None:
        with quiver.Client(url) as client:
            while not self._stop.is_set():
                begin = len(self.confirmed)
                payloads = [b"%08d" % (begin + i) + os.urandom(200) for i in range(20)]
                client.publish_many(topic, payloads)
                self.confirmed += payloads

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def restarted(nodes: ThreeNodes, name: str) -> None:
    nodes.kill(name)
    nodes.start(name)


def test_a_copy_of_a_cluster_is_exact_through_the_death_of_leaders_and_goes_on_after_a_promote(
    tmp_path: Path,
) -> None:
    with (
        three_nodes(tmp_path / "eu") as eu,
        three_nodes(tmp_path / "us") as us,
        quiver.Client(eu.url) as there,
        quiver.Client(us.url) as here,
    ):
        there.create_queue("orders", partitions=PARTITIONS)
        here.create_mirror("eu", eu.url, "orders*", with_subscriptions=True)
        with Load(eu.url, "orders") as load:
            eventually(lambda: len(load.confirmed) > 500, "there is load")
            restarted(eu, eu.leader("orders", 0))
            eventually(
                lambda: "orders" in {one.name for one in here.list_topics()}, "it is created"
            )
            restarted(us, us.leader("orders", 1))
            before = len(load.confirmed)
            eventually(lambda: len(load.confirmed) > before + 500, "there is load")
            got = there.receive("orders", max_messages=100, wait=10)
            there.ack("orders", [one.receipt for one in got])
        acked = {one.payload for one in got}
        wait_same(eu.url, us.url, "orders", PARTITIONS)
        assert {one for _, one in messages(here, "orders")} == set(load.confirmed)
        promoted = {one.name: one for one in here.promote_topics("orders*", timeout="30s")}
        assert promoted["orders"].is_complete, promoted["orders"].error
        for name in NAMES[:1]:
            restarted(us, name)
        found: list[bytes] = []
        while len(found) < len(load.confirmed) - len(acked):
            some = here.receive("orders", max_messages=500, wait=10)
            assert some, f"{len(found)} of {len(load.confirmed) - len(acked)}"
            here.ack("orders", [one.receipt for one in some])
            found += [one.payload for one in some]
        assert here.receive("orders", wait=1) == []
        assert len(found) == len(set(found))
        assert set(found) == set(load.confirmed) - acked
        here.publish("orders", b"new")
        assert [one.payload for one in here.receive("orders", wait=10)] == [b"new"]


def test_a_single_node_can_be_the_copy_of_a_cluster(tmp_path: Path) -> None:
    with (
        three_nodes(tmp_path / "eu") as eu,
        quiver.open(tmp_path / "edge") as here,
        quiver.Client(eu.url) as there,
    ):
        there.create_topic("orders", partitions=PARTITIONS)
        there.publish_many("orders", [b"%d" % i for i in range(300)])
        there.split_partition("orders", 0)
        here.create_mirror("eu", eu.url, "orders")
        eventually(
            lambda: (
                "orders" in {one.name for one in here.list_topics()}
                and len(messages(here, "orders")) == 300
            ),
            "everything is copied",
        )
        assert messages(here, "orders") == messages(there, "orders")
        assert len(entries(eu.url, "orders", 0)) > 0


def test_a_gap_is_known_to_the_next_leader_of_a_partition(tmp_path: Path) -> None:
    quick = ThreadNode(tmp_path / "eu", limits=Limits(retention_interval_s=0.1))
    quick.start()
    try:
        with (
            three_nodes(tmp_path / "us", QUIVER_ALERTS_DEFAULTS="true") as us,
            quiver.Client(quick.url) as there,
            quiver.Client(us.url) as here,
        ):
            there.create_topic("orders", retention={"messages": 20})
            there.publish_many("orders", [b"a%d" % i for i in range(10)])
            here.create_mirror("eu", quick.url, "orders")
            eventually(copied(here, "eu", "orders"), "the first messages are copied")
            here.alter_mirror("eu", paused=True)
            eventually(lambda: here.describe_mirror("eu").state == "paused", "it is paused")
            for number in range(100):
                there.publish("orders", b"b%d" % number)
            eventually(
                lambda: (there.describe_topic("orders").partitions[0].start_offset or 0) > 50,
                "retention removes messages",
            )
            here.alter_mirror("eu", paused=False)
            eventually(lambda: bool(gaps(here)), "the gap is shown")
            known = gaps(here)
            before = us.leader("orders")
            us.kill(before)
            eventually(lambda: gaps(here) == known, "the next leader shows it")
            eventually(lambda: is_gap_alerted(here), "the next leader's alert fires")
            assert us.leader("orders") != before
    finally:
        quick.close()


def test_a_cluster_fails_back_through_the_death_of_its_leaders(tmp_path: Path) -> None:
    with (
        three_nodes(tmp_path / "eu") as eu,
        node(tmp_path / "us") as us,
        quiver.Client(eu.url) as here,
        quiver.Client(us.url) as there,
    ):
        here.create_queue("orders", partitions=PARTITIONS)
        common = [b"common %d" % number for number in range(300)]
        here.publish_many("orders", common)
        there.create_mirror("eu", eu.url, "orders", with_subscriptions=True)
        wait_same(eu.url, us.url, "orders", PARTITIONS)
        there.promote_topics("orders", fence=False)
        lost = [b"lost %d" % number for number in range(300)]
        for payload in lost:
            here.publish("orders", payload, key=payload)
        later = [b"later %d" % number for number in range(300)]
        there.publish_many("orders", later)

        here.create_mirror("us", us.url, "orders", with_subscriptions=True, failback=True)
        restarted(eu, eu.leader("orders", 0))
        restarted(eu, eu.leader("orders", 1))
        wait_same(us.url, eu.url, "orders", PARTITIONS)
        aside = here.describe_topic("orders").diverged_to
        assert sorted(one for _, one in messages(here, aside)) == sorted(lost)
        eu.wait_whole()
        for name in NAMES:  # whoever leads now, and next, has the same
            restarted(eu, name)
        wait_same(us.url, eu.url, "orders", PARTITIONS)
        (done,) = here.promote_topics("orders", timeout="30s")
        assert done.is_complete, done.error
        found: list[bytes] = []
        while some := here.receive("orders", max_messages=500, wait=3):
            here.ack("orders", [one.receipt for one in some])
            found += [one.payload for one in some]
        assert sorted(found) == sorted(common + later)
