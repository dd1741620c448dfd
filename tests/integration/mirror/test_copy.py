"""Mirrors between nodes on this machine: exact copies that take no publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import quiver
from tests.integration.client_node import ThreadNode
from tests.integration.mirror.nodes import entries, messages, node, wait_same


@pytest.fixture
def source(tmp_path: Path) -> Iterator[ThreadNode]:
    with node(tmp_path / "source") as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ThreadNode]:
    with node(tmp_path / "target") as running:
        yield running


def test_a_copy_has_the_bytes_offsets_times_and_ids_of_its_source(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders", partitions=2)
        there.publish_many("orders", [b"before %d" % i for i in range(500)])
        here.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders", 2)
        there.publish("orders", {"id": 1}, key="a", headers={"x": "y"})
        wait_same(source.url, target.url, "orders", 2)
        assert len(entries(target.url, "orders", 0)) > 0
        assert messages(here, "orders") == messages(there, "orders")
        assert len(messages(here, "orders")) == 501


def test_a_copy_takes_no_publishes_and_names_its_source(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        there.publish("orders", b"one")
        here.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders")
        with pytest.raises(quiver.ReadOnlyTopic, match="'orders' of mirror 'eu'") as refused:
            here.publish("orders", b"two")
        assert refused.value.details["mirror"] == "eu"
        assert refused.value.code == "read_only_topic"
        with pytest.raises(quiver.ReadOnlyTopic):
            here.alter_topic("orders", retention={"age": "1d"})
