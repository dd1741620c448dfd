"""The dead-letter queue: it comes with its queue, and counts what nobody has handled."""

from __future__ import annotations

from pathlib import Path

import pytest

import quiver
from quiver.errors import SubscriptionNotFound, TopicNotFound
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.integration.queue_node import clocked


def names(q: quiver.Client) -> set[str]:
    return {topic.name for topic in q.list_topics()}


def dead(q: quiver.Client, queue: str) -> int | None:
    return q.describe_subscription(queue).dead


def test_a_queue_has_its_dead_letter_queue_before_it_has_a_dead_letter(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    assert q.peek("jobs.dlq") == []
    assert list(q.read("jobs.dlq").messages()) == []
    assert q.describe_subscription("jobs.dlq").ready == 0
    assert q.receive("jobs.dlq") == []
    q.create_queue("mails", dead_letter="returned")
    assert q.peek("returned") == []
    q.alter_subscription("mails", dead_letter="lost")
    assert q.peek("lost") == []
    assert names(q) == {"jobs", "jobs.dlq", "mails", "returned", "lost"}


def test_a_dead_letter_queue_that_was_made_before_is_left_as_it_is(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs.dlq", visibility="7s")
    q.create_queue("jobs")
    assert q.describe_subscription("jobs.dlq").settings.visibility_s == 7


def test_a_deleted_queue_takes_along_a_dead_letter_queue_that_was_never_used(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    for queue in ("unused", "used", "shared"):
        q.create_queue(queue)
    q.publish("used", b"1")
    q.receive("used")[0].reject()
    q.create_subscription("reader", ["shared.dlq"])
    for queue in ("unused", "used", "shared"):
        q.delete_subscription(queue)
    assert names(q) == {"used.dlq", "shared.dlq"}
    with pytest.raises(SubscriptionNotFound):
        q.peek("unused.dlq")
    with pytest.raises(TopicNotFound):
        q.describe_topic("unused.dlq")


def test_dead_counts_the_letters_that_nobody_has_handled(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", partitions=2)
    q.publish_many("jobs", [b"%d" % number for number in range(6)])
    q.reject("jobs", q.receive("jobs", 100))
    assert dead(q, "jobs") == 6
    (letter, *_) = q.receive("jobs.dlq", 1)
    assert dead(q, "jobs") == 6  # it is only being looked at
    letter.ack()
    assert dead(q, "jobs") == 5
    assert q.redrive("jobs") == 5
    assert dead(q, "jobs") == 0
    q.reject("jobs", q.receive("jobs", 100))
    assert dead(q, "jobs") == 5
    assert q.purge("jobs.dlq") == 5
    assert dead(q, "jobs") == 0


@async_test
async def test_dead_is_the_same_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        await q.publish_many("jobs", [b"1", b"2"])
        await q.reject("jobs", await q.receive("jobs"))
        await q.redrive("jobs", filter="origin_offset = 0")
    async with clocked(tmp_path, clock) as q:
        assert (await q.describe_subscription("jobs")).dead == 1


async def reports(q: quiver.AsyncClient) -> list[str]:
    """What was reported about dead letters, in order."""
    try:
        told = [one.json() async for one in q.read("__alerts").messages()]
    except TopicNotFound:
        return []  # made with the first report
    return [one["state"] for one in told if one["rule"] == "dead-letters"]


async def firing(q: quiver.AsyncClient) -> list[str]:
    return [one.subject for one in (await q.alerts()).firing if one.rule == "dead-letters"]


@async_test
async def test_the_alert_goes_on_over_a_restart_until_the_letters_are_handled(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        await q.publish("jobs", b"1")
        await q.reject("jobs", await q.receive("jobs"))
        while await firing(q) != ["jobs"]:
            await clock.advance(1)
        await clock.advance(3600)
        assert await firing(q) == ["jobs"]
        while await reports(q) != ["firing"]:
            await clock.advance(1)
    async with clocked(tmp_path, clock) as q:
        while await firing(q) != ["jobs"]:
            await clock.advance(1)
        await clock.advance(10)
        assert await reports(q) == ["firing"]
        assert await q.redrive("jobs") == 1
        while await firing(q):
            await clock.advance(1)
        while await reports(q) != ["firing", "cleared"]:
            await clock.advance(1)


def test_a_shared_dead_letter_queue_is_counted_as_a_whole_by_each_of_its_users(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("orders")
    for name in ("packing", "billing"):
        q.create_subscription(name, ["orders"], dead_letter="lost")
    q.publish_many("orders", [b"a", b"b", b"c"])
    q.reject("packing", q.receive("packing", 3))
    q.reject("billing", q.receive("billing", 1))
    for name in ("packing", "billing"):
        q.redrive(name, dry_run=True)  # waits until the letters are stored
        assert q.describe_subscription(name).dead == 4
    letters = [one.dead_letter for one in q.peek("lost", 10)]
    failed = sorted(one.origin_subscription or "" for one in letters if one is not None)
    assert failed == ["billing", "packing", "packing", "packing"]
    assert q.redrive("billing") == 4
    assert len(q.receive("packing", 10)) == 3
    assert len(q.receive("billing", 10)) == 3  # the one it failed with, and two it never had
