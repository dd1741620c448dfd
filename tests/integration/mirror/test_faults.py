"""Mirrors when things go wrong: gaps, sources that lost messages, killed nodes, slow and far links."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quiver
from quiver.config import Limits
from tests.chaos.proxy import DelayProxy
from tests.integration.client_node import ProcessNode, ThreadNode
from tests.integration.mirror.nodes import copied, entries, gaps, messages, wait_same
from tests.serving import eventually


def test_what_retention_was_faster_with_is_a_gap_and_the_copy_goes_on(
    tmp_path: Path, target: ThreadNode
) -> None:
    source = ThreadNode(tmp_path / "quick", limits=Limits(retention_interval_s=0.1))
    source.start()
    try:
        with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
            there.create_topic("orders", retention={"messages": 20})
            there.publish_many("orders", [b"a%d" % i for i in range(10)])
            here.create_mirror("eu", source.url, "orders")
            eventually(copied(here, "eu", "orders"), "the first messages are copied")
            here.alter_mirror("eu", paused=True)
            eventually(lambda: here.describe_mirror("eu").state == "paused", "it is paused")
            for number in range(100):
                there.publish("orders", b"b%d" % number)
            eventually(
                lambda: (there.describe_topic("orders").partitions[0].start_offset or 0) > 50,
                "retention removes messages",
            )
            eventually(
                lambda: here.describe_mirror("eu").lag_messages == 100,
                "it shows how far behind it is",
            )
            assert (here.describe_mirror("eu").lag_s or 0) > 0
            assert here.describe_mirror("eu").state == "paused"
            here.alter_mirror("eu", paused=False)
            there.publish("orders", b"last")
            eventually(copied(here, "eu", "orders"), "the copy goes on")
            eventually(lambda: messages(here, "orders")[-1][1] == b"last", "the copy goes on")
            ((begin, end),) = here.describe_mirror("eu").topics[0].partitions[0].gaps
            assert begin == 10
            assert 50 < end <= 110
            target.stop()
            target.start()
            eventually(lambda: gaps(here) == [(begin, end)], "the gap is known after a restart")
            ours = messages(here, "orders")
            theirs = messages(there, "orders")
            assert ours[-len(theirs) :] == theirs
            kept = [one for one in entries(target.url, "orders") if one[0] >= end]
            assert kept[-10:] == entries(source.url, "orders")[-10:]
    finally:
        source.close()


def test_a_source_that_lost_messages_is_reported_and_never_merged(
    tmp_path: Path, target: ThreadNode
) -> None:
    folder = tmp_path / "source"
    source = ThreadNode(folder)
    source.start()
    try:
        with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
            there.create_topic("orders")
            there.publish("orders", b"both have it")
            source.stop()
            shutil.copytree(folder, tmp_path / "earlier")
            source.start()
            here.create_mirror("eu", source.url, "orders")
            for number in range(5):
                there.publish("orders", b"lost %d" % number)
            wait_same(source.url, target.url, "orders")
            before = entries(target.url, "orders")
            source.stop()
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "earlier", folder)
            source.start()
            for number in range(9):
                there.publish("orders", b"other %d" % number)
            eventually(lambda: here.describe_mirror("eu").state == "broken", "it is broken")
            (part,) = here.describe_mirror("eu").topics[0].partitions
            assert part.is_broken
            assert "offset" in part.error
            assert entries(target.url, "orders") == before
    finally:
        source.close()


def test_another_cluster_in_the_place_of_the_source_is_reported(
    tmp_path: Path, target: ThreadNode
) -> None:
    folder = tmp_path / "source"
    source = ThreadNode(folder)
    source.start()
    try:
        with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
            there.create_topic("orders")
            here.create_mirror("eu", source.url, "orders")
            wait_same(source.url, target.url, "orders")
            source.stop()
            shutil.rmtree(folder)
            source.start()
            there.create_topic("orders")
            there.publish("orders", b"of another cluster")
            eventually(lambda: here.describe_mirror("eu").state == "broken", "it is broken")
            assert messages(here, "orders") == []
    finally:
        source.close()


@contextmanager
def process(folder: Path) -> Iterator[ProcessNode]:
    running = ProcessNode(folder)
    running.start()
    try:
        yield running
    finally:
        running.close()


@pytest.mark.process
@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_copy_is_exact_after_a_kill_in_the_middle(tmp_path: Path, victim: str) -> None:
    with (
        process(tmp_path / "source") as source,
        process(tmp_path / "target") as target,
        quiver.Client(source.url) as there,
        quiver.Client(target.url) as here,
    ):
        there.create_topic("orders", partitions=2)
        here.create_mirror("eu", source.url, "orders")
        payloads = [b"%06d" % i + os.urandom(400) for i in range(3000)]
        for at in range(0, len(payloads), 50):
            there.publish_many("orders", payloads[at : at + 50])
            if at in (1000, 2000):
                killed = source if victim == "source" else target
                killed.kill()
                killed.start()
        wait_same(source.url, target.url, "orders", 2)
        assert sorted(one for _, one in messages(here, "orders")) == sorted(payloads)


def test_a_rate_limit_holds(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        for _ in range(10):
            there.publish("orders", os.urandom(60_000))
        began = time.monotonic()
        here.create_mirror("eu", source.url, "orders", rate="200KB")
        there.publish("orders", b"last")
        eventually(
            lambda: (
                "orders" in {one.name for one in here.list_topics()}
                and len(messages(here, "orders")) == 11
            ),
            "everything is copied",
        )
        there.publish("orders", b"after the debt")
        eventually(lambda: len(messages(here, "orders")) == 12, "the debt is paid")
        assert time.monotonic() - began > 600_000 / 200_000 * 0.7


def test_a_far_link_is_filled(source: ThreadNode, target: ThreadNode) -> None:
    rate, size = 16e6, 48 << 20
    host, _, port = source.url.removeprefix("quiver://").rpartition(":")
    far = DelayProxy("127.0.0.1", (host, int(port)), delay_s=0.05, rate=rate)
    try:
        with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
            there.create_topic("orders")
            block = os.urandom(1000)
            for at in range(0, size, 500_000):
                there.publish_many("orders", [b"%09d" % (at + i) + block for i in range(500)])
            end = there.describe_topic("orders").partitions[0].next_offset
            here.create_mirror("eu", f"quiver://{far.address}", "orders", compression="none")
            eventually(
                lambda: "orders" in {one.name for one in here.list_topics()}, "it is created"
            )
            began = time.monotonic()
            done = lambda: here.describe_topic("orders").partitions[0].next_offset  # noqa: E731
            first = done() or 0
            eventually(lambda: done() == end, "everything is copied")
            took_s = time.monotonic() - began
            share = (end - first) * 1009 / took_s / rate
            assert share >= 0.7, f"{share:.2f} of the link"
    finally:
        far.close()
