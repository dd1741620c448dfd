"""Nodes and metadata that an earlier version left are one cluster again under every later version."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import quiver
from quiver.errors import PermissionDenied, StaleReceipt, Unauthenticated
from tests.golden.content_node_v1 import KEYS, NUMBERED, opened
from tests.golden.described import described, missing
from tests.golden.generate_cluster_v1 import FOLDER, PINNED, Golden, lapsed, load
from tests.integration.three_nodes import NAMES, ThreeNodes

pytestmark = pytest.mark.process

GOLDEN = msgspec.json.decode((FOLDER / "described.json").read_bytes(), type=Golden)
NOTES = GOLDEN.notes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    """The three nodes, and an etcd that knows what theirs did."""
    folder = tmp_path_factory.mktemp("cluster")
    for name in NAMES:
        with tarfile.open(FOLDER / f"{name}.tar.gz") as packed:
            packed.extractall(folder / name / "data", filter="data")
    nodes = ThreeNodes(folder, "--authentication")
    nodes.token = GOLDEN.admin
    try:
        nodes.etcd.start()
        load(nodes.etcd.endpoint, json.loads((FOLDER / "metadata.json").read_text()))
        nodes.start(*NAMES)
        nodes.wait_whole()
        yield nodes
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def told(nodes: ThreeNodes) -> dict[str, Any]:
    """What the cluster tells of itself, before any test changes something."""
    with quiver.Client(nodes.url, token=GOLDEN.admin) as client:
        client.run(lapsed)
        return client.run(described)


@pytest.fixture(scope="module")
def client(nodes: ThreeNodes, told: dict[str, Any]) -> Iterator[quiver.Client]:
    with quiver.Client(nodes.url, token=GOLDEN.admin) as client:
        yield client


def test_everything_is_as_it_was(told: dict[str, Any]) -> None:
    tokens = {**GOLDEN.described["tokens"]}
    del tokens["old"]  # it is forgotten some time after it was revoked
    assert missing({**GOLDEN.described, "tokens": tokens}, told) == []


def test_the_folders_say_from_now_on_which_version_uses_them(
    nodes: ThreeNodes, told: dict[str, Any]
) -> None:
    for name in NAMES:
        found = msgspec.json.decode((nodes.data(name) / "version.json").read_bytes())
        assert found["quiver"] == quiver.__version__
        assert set(found["formats"].values()) == {1}, "it may go back to the version that wrote it"


def test_replicas_are_where_they_were_and_epochs_go_on(client: quiver.Client) -> None:
    placed = {f"{one.topic}/{one.index}": one for one in client.describe_cluster().partitions}
    assert {name: sorted(placed[name].replicas) for name in GOLDEN.replicas} == GOLDEN.replicas
    assert GOLDEN.replicas["{}/{}".format(*PINNED)] == ["node-2", "node-3"]
    for name, epoch in GOLDEN.epochs.items():
        assert placed[name].epoch > epoch


def test_a_named_producer_goes_on_where_it_was_and_fences_the_one_before(
    client: quiver.Client,
) -> None:
    assert client.run(opened) == (NOTES.producer_id, NOTES.producer_epoch + 1)
    with client.producer("divided", name="import") as producer:
        for number in range(NUMBERED + 5):
            producer.send(b"%d" % number, key=KEYS[number % 16], sequence=number)
    found = [message.payload for message in client.read("divided").messages()]
    assert sorted(int(one) for one in found if one != b"once") == list(range(NUMBERED + 5))


def test_queues_go_on(client: quiver.Client) -> None:
    with pytest.raises(StaleReceipt):
        client.ack("work", NOTES.held)  # their leases ended long ago
    messages = client.receive("work", 100)
    assert messages[0].payload == b"urgent"
    counts = {message.payload.decode(): message.deliveries for message in messages}
    again = {"work-2": 2, "work-5": 2, "work-6": 2}
    assert counts == {"urgent": 1, "work-7": 1, "work-8": 1, "work-9": 1, **again}
    client.ack("work", messages)
    assert client.redrive("work") == 2
    assert len(client.receive("work", 100)) == 2


def test_tokens_count_or_do_not(nodes: ThreeNodes, told: dict[str, Any]) -> None:
    with quiver.Client(nodes.url, token=NOTES.token) as shop:
        shop.publish("orders", b"new")
        with pytest.raises(PermissionDenied):
            shop.publish("plain", b"new")
    with (
        quiver.Client(nodes.url, token=NOTES.revoked) as old,
        pytest.raises(Unauthenticated),
    ):
        old.publish("orders", b"new")


def test_what_is_made_now_gets_numbers_of_its_own(client: quiver.Client) -> None:
    assert client.create_topic("gone").number > NOTES.number
