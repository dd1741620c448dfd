"""The broker inside the process: the same behaviour as over the network, on a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import quiver
from quiver.errors import FolderInUse, TopicExists
from tests.aio import async_test


def test_what_is_published_can_be_read_and_is_still_there_after_reopening(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        q.create_topic("notes", partitions=2)
        q.publish("notes", "one", key="a")
        with q.producer("notes") as producer:
            for number in range(500):
                producer.send({"n": number}, key=str(number))
    with quiver.open(tmp_path) as q:
        messages = list(q.read("notes").messages())
        assert len(messages) == 501
        assert sorted(m.json()["n"] for m in messages if m.payload != b"one") == list(range(500))


def test_a_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as first:
        first.create_topic("t")
        with quiver.open(tmp_path) as second, pytest.raises(FolderInUse):
            second.list_topics()


def test_errors_are_the_same_as_over_the_network(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        q.create_topic("t")
        with pytest.raises(TopicExists):
            q.create_topic("t")


@async_test
async def test_an_async_client_can_hold_the_broker_too(tmp_path: Path) -> None:
    async with quiver.open_async(tmp_path) as q:
        await q.create_topic("t")
        published = await q.publish("t", b"x")
        assert (published.partition, published.offset) == (0, 0)


def test_the_pytest_fixture_is_an_empty_working_broker(quiver_broker: quiver.Client) -> None:
    assert quiver_broker.list_topics() == []
    quiver_broker.create_topic("t")
    assert quiver_broker.publish("t", b"x").offset == 0
