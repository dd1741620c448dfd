"""Limits of retention in a cluster: what one excludes stays excluded, whoever leads."""

from __future__ import annotations

import pytest

import quiver
from quiver.errors import OffsetOutOfRange
from tests.integration.cluster.nodes import Cluster, waited
from tests.integration.cluster.test_publishing import payloads


def start_of(client: quiver.Client, topic: str) -> int | None:
    return client.describe_topic(topic).partitions[0].start_offset


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_what_a_limit_excluded_does_not_come_back_with_another_leader(three: Cluster) -> None:
    client = three.client()
    client.create_topic("limited", retention=quiver.Retention(messages=10))
    client.publish_many("limited", numbers(0, 1000))
    waited(lambda: start_of(client, "limited") == 990, "the limit holds")
    three.kill(three.leader("limited"))
    assert waited(lambda: start_of(client, "limited"), "another node leads") == 990
    assert payloads(client, "limited") == numbers(990, 1000)
    with pytest.raises(OffsetOutOfRange):
        next(iter(client.read("limited", start=989)))
    client.publish_many("limited", numbers(1000, 1005))
    waited(lambda: start_of(client, "limited") == 995, "the limit holds on the next leader too")


def test_a_follower_that_was_away_learns_where_the_log_begins(three: Cluster) -> None:
    client = three.client()
    client.create_topic("caught-up", retention=quiver.Retention(messages=10))
    client.publish_many("caught-up", numbers(0, 50))
    away = three.follower("caught-up")
    three.kill(away)
    client.publish_many("caught-up", numbers(50, 100))
    waited(lambda: start_of(client, "caught-up") == 90, "the limit holds without one replica")
    three.revive(away)
    for _ in range(2):  # until the one that was away has led, or cannot be missed
        three.kill(three.leader("caught-up"))
        assert waited(lambda: start_of(client, "caught-up"), "another node leads") == 90
        assert payloads(client, "caught-up") == numbers(90, 100)
        three.heal()


def test_a_limit_of_the_topic_holds_for_partitions_of_several_leaders(three: Cluster) -> None:
    client = three.client()
    retention = quiver.Retention(messages=10, scope="topic")
    client.create_topic("shared-limit", partitions=3, retention=retention)
    for partition, count in enumerate((100, 2, 40)):
        for payload in numbers(0, count):
            client.publish("shared-limit", payload, partition=partition)

    def held() -> list[int]:
        partitions = client.describe_topic("shared-limit").partitions
        return [(one.next_offset or 0) - (one.start_offset or 0) for one in partitions]

    leaders = {three.leader("shared-limit", index) for index in range(3)}
    assert len(leaders) > 1
    waited(lambda: sum(held()) == 10, "the limit holds")
    assert held()[1] == 2
