"""What a backup reuses, and what a restore takes."""

from __future__ import annotations

import msgspec
import pytest

from quiver.backup.plan import (
    Limit,
    chosen_subscriptions,
    chosen_topics,
    covers,
    cut,
    earlier_chunks,
    restored_info,
    reusable,
)
from quiver.model.batch import StoredBatch
from quiver.model.envelope import store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from tests.integration.native_peer import batch_of
from tests.unit.backup.backups import (
    chunk_of,
    manifest_of,
    partition_of,
    subscription_of,
    topic_of,
)


def entry(offset: int, *payloads: bytes) -> StoredBatch:
    return store_batch(
        batch_of(*payloads),
        base_offset=Offset(offset),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(offset),
        durable_offset=Offset(offset),
    )


def test_chunks_of_another_topic_of_the_same_name_are_not_reused() -> None:
    topic = topic_of("orders", partition_of((0, 10)), number=7)
    earlier = manifest_of(topic)
    assert [one.next_offset for one in earlier_chunks(earlier, topic.info, 0)] == [10]
    assert earlier_chunks(earlier, topic.info, 1) == []
    assert earlier_chunks(None, topic.info, 0) == []
    for changes in ({"number": 8}, {"created_us": 1}):
        other = msgspec.structs.replace(topic.info, **changes)
        assert earlier_chunks(earlier, other, 0) == []


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        (0, 30, [10, 20, 30]),
        (10, 30, [20, 30]),
        (15, 30, [20, 30]),
        (30, 40, []),
        (0, 25, [10, 20]),
    ],
)
def test_chunks_are_reused_that_the_log_still_reaches(
    start: int, end: int, kept: list[int]
) -> None:
    chunks = [chunk_of(0, 10), chunk_of(10, 20), chunk_of(20, 30)]
    assert [one.next_offset for one in reusable(chunks, start, end)] == kept


def test_a_limit_by_time_keeps_entries_up_to_it() -> None:
    limit = Limit(time_us=12)
    assert limit.is_within(chunk_of(0, 13), None)
    assert not limit.is_within(chunk_of(10, 20), None)
    assert limit.is_beyond(chunk_of(13, 20), None)
    entries = [entry(10, b"a"), entry(12, b"b"), entry(13, b"c")]
    assert cut(entries, limit, None) == entries[:2]


def test_a_limit_by_offset_cuts_through_an_entry() -> None:
    kept = cut([entry(10, b"a", b"b"), entry(12, b"c", b"d", b"e"), entry(15, b"f")], Limit(), 14)
    assert [(one.base_offset, one.count) for one in kept] == [(10, 2), (12, 2)]
    assert kept[1].record_batch().column("payload").to_pylist() == [b"c", b"d"]
    assert kept[1].append_time == 12


def test_another_limit_is_another_restore() -> None:
    names = {
        limit.name_of("b")
        for limit in (Limit(), Limit(time_us=1), Limit(offsets={("t", 0): 1}), Limit(time_us=2))
    }
    assert len(names) == 4
    assert Limit().name_of("b") == "b"


def test_topics_are_restored_in_the_order_of_their_numbers() -> None:
    topics = [topic_of(name, partition_of((0, 1)), number=n) for name, n in (("b", 9), ("a.x", 3))]
    names = [one.info.name for one in chosen_topics(manifest_of(*topics), [])]
    assert names == ["a.x", "b"]
    assert [one.info.name for one in chosen_topics(manifest_of(*topics), ["a*"])] == ["a.x"]


def test_subscriptions_that_need_another_topic_are_left_out() -> None:
    subscriptions = (
        subscription_of("both", "orders", "emails"),
        subscription_of("one", "orders"),
        subscription_of("pattern", "o*"),
        subscription_of("other", "emails"),
    )
    manifest = manifest_of(subscriptions=subscriptions)
    chosen, left_out = chosen_subscriptions(manifest, ["orders"])
    assert {one.info.name for one in chosen} == {"one", "pattern"}
    assert left_out == ["both"]


def test_no_pattern_covers_a_subscriptions_own_dead_letters() -> None:
    every = subscription_of("every", "*").info
    assert covers(every, "orders")
    assert not covers(every, "every.dlq")


def test_a_split_is_not_after_the_end_of_its_parent() -> None:
    """In a cluster, a child would wait for ever for what its parent will never have."""
    topic = topic_of("orders", partition_of((5, 10)), partition_of((0, 3)))
    split = msgspec.structs.replace(topic.info.partitions[1], parent=0, parent_offset=10)
    info = msgspec.structs.replace(topic.info, partitions=[topic.info.partitions[0], split])
    topic = msgspec.structs.replace(topic, info=info)
    restored = restored_info(topic, [7, 3])
    assert [one.start_offset for one in restored.partitions] == [5, 0]
    assert [one.parent_offset for one in restored.partitions] == [None, 7]
    assert {one.leader for one in restored.partitions} == {None}
