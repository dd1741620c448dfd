"""Subscriptions and queues: making them, what they cover, where they begin, changing and removing."""

from __future__ import annotations

from pathlib import Path

import pytest

import quiver
from quiver.errors import (
    InvalidRequest,
    InvalidSetting,
    OffsetOutOfRange,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
)
from quiver.model.message import datetime_of


def payloads(q: quiver.Client, subscription: str, count: int = 100) -> list[bytes]:
    """Everything that is ready, received and acknowledged."""
    messages = q.receive(subscription, count)
    q.ack(subscription, messages)
    return [message.payload for message in messages]


def test_every_subscription_gets_every_message(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t", partitions=3)
    for name in ("a", "b"):
        q.create_subscription(name, ["t"])
    q.publish_many("t", [str(n).encode() for n in range(50)])
    for name in ("a", "b"):
        assert sorted(map(int, payloads(q, name))) == list(range(50))


def test_consumers_of_one_subscription_share_its_messages(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    q.publish_many("jobs", [b"%d" % n for n in range(10)])
    first, second = (q.receive("jobs", 5, consumer=name) for name in ("a", "b"))
    assert {m.offset for m in first} | {m.offset for m in second} == set(range(10))
    assert q.receive("jobs") == []


def test_a_subscription_reads_several_topics(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    for topic in ("x", "y", "z"):
        q.create_topic(topic)
    q.create_subscription("s", ["x", "y"])
    for topic in ("x", "y", "z"):
        q.publish(topic, topic)
    assert sorted(m.topic for m in q.receive("s")) == ["x", "y"]


def test_a_topic_made_later_joins_a_pattern_from_its_beginning(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_subscription("s", ["orders.*"])
    assert q.receive("s") == []
    q.create_topic("orders.eu")
    q.create_topic("other")
    q.publish("other", b"no")
    q.publish("orders.eu", b"yes")
    assert payloads(q, "s") == [b"yes"]


def test_a_pattern_does_not_lead_a_subscription_to_its_own_dead_letters(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("t")
    q.create_subscription("s", ["*"], max_deliveries=1)
    q.publish("t", b"poison")
    q.nack("s", q.receive("s"))
    q.create_subscription("watch", ["*"], start="earliest")
    letters = q.receive("watch", wait=20)
    while not any(m.topic == "s.dlq" for m in letters):
        letters = q.receive("watch", wait=20)
    assert q.receive("s") == []


def test_a_subscription_starts_at_the_latest_the_earliest_a_time_or_an_offset(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("t")
    q.publish("t", b"1")
    second = q.publish("t", b"2")
    q.create_subscription("latest", ["t"])
    q.create_subscription("earliest", ["t"], start="earliest")
    q.create_subscription("time", ["t"], start=datetime_of(second.timestamp_us or 0))
    q.create_subscription("offset", ["t"], start=1)
    with pytest.raises(OffsetOutOfRange):
        q.create_subscription("beyond", ["t"], start=7)
    q.publish("t", b"3")
    assert payloads(q, "latest") == [b"3"]
    assert payloads(q, "earliest") == [b"1", b"2", b"3"]
    assert payloads(q, "time") == [b"2", b"3"]
    assert payloads(q, "offset") == [b"2", b"3"]


def test_an_unknown_start_is_refused(quiver_broker: quiver.Client) -> None:
    quiver_broker.create_topic("t")
    with pytest.raises(InvalidRequest, match="earliest"):
        quiver_broker.create_subscription("s", ["t"], start="yesterday")


def test_a_description_counts_messages_by_their_state(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", visibility="1h")
    q.publish_many("jobs", [b"1", b"2", b"3"])
    q.publish("jobs", b"later", delay="1h")
    q.receive("jobs", 1)
    info = q.describe_subscription("jobs")
    assert (info.is_queue, info.settings.visibility) == (True, 3600.0)
    assert (info.ready, info.leased, info.delayed) == (2, 1, 1)


def test_subscriptions_are_listed_by_name(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("b")
    q.create_subscription("a", ["b"])
    assert [info.name for info in q.list_subscriptions()] == ["a", "b", "b.dlq"]


def test_altered_settings_hold_at_once_and_the_others_stay(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", max_deliveries=9, visibility="1h")
    q.publish("jobs", b"x")
    q.nack("jobs", q.receive("jobs"))
    info = q.alter_subscription("jobs", max_deliveries=2, dead_letter="graves")
    assert (info.settings.max_deliveries, info.settings.visibility) == (2, 3600.0)
    q.nack("jobs", q.receive("jobs", wait=20))
    q.create_subscription("mourner", ["grave*"], start="earliest")
    assert [m.payload for m in q.receive("mourner", wait=20)] == [b"x"]


def test_other_topics_of_an_altered_subscription_are_read(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    for topic in ("x", "y"):
        q.create_topic(topic)
    q.create_subscription("s", ["x"])
    assert q.receive("s") == []
    q.alter_subscription("s", topics=["y"])
    q.publish("x", b"x")
    q.publish("y", b"y")
    assert payloads(q, "s") == [b"y"]
    with pytest.raises(TopicNotFound):
        q.alter_subscription("s", topics=["missing"])


@pytest.mark.parametrize("change", [{"ordering": "key"}, {"guarantee": "exactly-once"}])
def test_ordering_and_guarantee_stay_as_they_are(
    quiver_broker: quiver.Client, change: dict[str, str]
) -> None:
    quiver_broker.create_queue("jobs")
    with pytest.raises(InvalidSetting, match="cannot be changed"):
        quiver_broker.alter_subscription("jobs", **change)


def test_deleting_a_queue_deletes_its_topic(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    q.publish("jobs", b"x")
    q.delete_subscription("jobs")
    assert (q.list_topics(), q.list_subscriptions()) == ([], [])


def test_deleting_a_subscription_leaves_the_topic_and_the_others(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("t")
    q.create_subscription("a", ["t"])
    q.create_subscription("b", ["t"])
    q.publish("t", b"x")
    q.receive("a")
    q.delete_subscription("a")
    assert payloads(q, "b") == [b"x"]


def test_a_new_subscription_of_an_old_name_begins_anew(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t")
    q.create_subscription("s", ["t"])
    q.publish("t", b"x")
    assert payloads(q, "s") == [b"x"]
    q.delete_subscription("s")
    q.create_subscription("s", ["t"], start="earliest")
    assert payloads(q, "s") == [b"x"]


def test_a_deleted_topic_leaves_its_subscriptions_and_they_go_on(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("t.1")
    q.create_topic("t.2")
    q.create_subscription("s", ["t.*"])
    q.publish("t.1", b"1")
    q.receive("s", 1)
    q.delete_topic("t.1")
    q.publish("t.2", b"2")
    assert payloads(q, "s") == [b"2"]


def test_exist_ok_accepts_the_same_and_refuses_another(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    first = q.create_queue("jobs", visibility=5)
    assert q.create_queue("jobs", visibility=5, exist_ok=True).number == first.number
    with pytest.raises(SubscriptionExists):
        q.create_queue("jobs", visibility=6, exist_ok=True)
    with pytest.raises(TopicExists):
        q.create_queue("jobs", visibility=5)
    q.create_subscription("s", ["jobs"])
    q.create_subscription("s", ["jobs"], exist_ok=True)
    with pytest.raises(SubscriptionExists):
        q.create_subscription("s", ["jobs"])


def test_unknown_names_are_told_as_such(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    for call in (
        lambda: q.receive("nobody"),
        lambda: q.receive("nobody", wait=20),
        lambda: q.describe_subscription("nobody"),
        lambda: q.alter_subscription("nobody", visibility=1),
        lambda: q.delete_subscription("nobody"),
    ):
        with pytest.raises(SubscriptionNotFound, match="nobody"):
            call()


def test_a_subscription_of_a_missing_topic_is_refused(quiver_broker: quiver.Client) -> None:
    with pytest.raises(TopicNotFound, match="missing"):
        quiver_broker.create_subscription("s", ["missing"])
    assert quiver_broker.list_subscriptions() == []


def test_settings_are_checked_where_they_are_given(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    with pytest.raises(InvalidSetting, match="visibilty"):
        q.create_queue("jobs", visibilty=3)
    q.create_queue("jobs")
    with pytest.raises(InvalidSetting, match="speed"):
        q.alter_subscription("jobs", speed=3)
    for wrong in ({"visibility": "13h"}, {"ordering": "random"}, {"max_deliveries": -1}):
        with pytest.raises(InvalidSetting):
            q.create_subscription("s", ["jobs"], **wrong)
    assert [info.name for info in q.list_subscriptions()] == ["jobs", "jobs.dlq"]


def test_subscriptions_are_there_after_reopening(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        q.create_queue("jobs", visibility=7)
    with quiver.open(tmp_path) as q:
        assert q.describe_subscription("jobs").settings.visibility == 7.0
