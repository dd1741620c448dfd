"""How the answers of several nodes become one."""

from __future__ import annotations

from typing import Any

from quiver import protocol
from quiver.edge.calls import merge
from quiver.model.subscription import SubscriptionSettings


def _info(**figures: Any) -> tuple[protocol.AnyReply, list[bytes]]:
    info = protocol.SubscriptionInfo(
        name="s",
        number=1,
        settings=SubscriptionSettings(topics=["t"]),
        created_us=0,
        is_queue=False,
        **figures,
    )
    return protocol.Subscription(subscription=info), []


def test_figures_are_added_and_consumers_are_told_once() -> None:
    reply, _ = merge.described(
        [
            _info(ready=1, delayed=2, leased=3, dead=4, unseen=5, consumers=["a", "b"]),
            _info(ready=10, delayed=20, leased=30, dead=40, unseen=50, consumers=["b", "c"]),
        ]
    )
    assert isinstance(reply, protocol.Subscription)
    info = reply.subscription
    figures = (info.ready, info.delayed, info.leased, info.dead, info.unseen)
    assert figures == (11, 22, 33, 44, 55)
    assert info.consumers == ["a", "b", "c"]


def test_each_partition_is_described_once_by_the_node_that_has_more_of_it() -> None:
    def at(partition: int, end: int) -> protocol.PartitionProgress:
        return protocol.PartitionProgress(
            topic="t", partition=partition, committed=1, end=end, lag=end - 1
        )

    reply, _ = merge.described(
        [_info(partitions=[at(2, 5), at(0, 3)]), _info(partitions=[at(2, 7), at(1, 4)])]
    )
    assert isinstance(reply, protocol.Subscription)
    assert reply.subscription.partitions == [at(0, 3), at(1, 4), at(2, 7)]


def test_members_are_those_that_the_coordinator_knows() -> None:
    reply, _ = merge.described([_info(members={}), _info(members={"a": ["t/0"]})])
    assert isinstance(reply, protocol.Subscription)
    assert reply.subscription.members == {"a": ["t/0"]}


def test_what_each_node_read_follows_what_the_one_before_read() -> None:
    def read(partition: int) -> protocol.StateRead:
        part = protocol.PartitionDeliveries(
            topic="t", topic_number=1, partition=partition, next_offset=9, states={}, deliveries={}
        )
        return protocol.StateRead(partitions=[part])

    reply, body = merge.state_read([(read(0), [b"a", b"b"]), (read(1), [b"c"])])
    assert isinstance(reply, protocol.StateRead)
    assert [part.partition for part in reply.partitions] == [0, 1]
    assert list(body) == [b"a", b"b", b"c"]


def test_alerts_of_all_nodes_are_one_list_the_worst_first() -> None:
    def alert(rule: str, severity: str, since_us: int, until_us: int | None) -> protocol.AlertInfo:
        return protocol.AlertInfo(
            rule=rule,
            watch="depth",
            subject="",
            severity=severity,  # type: ignore[arg-type]
            state="firing" if until_us is None else "cleared",
            value=1,
            limit=0,
            unit="messages",
            since_us=since_us,
            until_us=until_us,
        )

    here = protocol.Alerts(
        firing=[alert("a", "warning", 5, None)], recent=[alert("x", "warning", 1, 10)]
    )
    there = protocol.Alerts(
        firing=[alert("b", "critical", 1, None), alert("c", "warning", 9, None)],
        recent=[alert("y", "warning", 2, 20)],
    )
    reply, _ = merge.alerts([(here, ()), (there, ())])
    assert isinstance(reply, protocol.Alerts)
    assert [one.rule for one in reply.firing] == ["b", "c", "a"]
    assert [one.rule for one in reply.recent] == ["y", "x"]
