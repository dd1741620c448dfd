"""The calls that restore a backup: entries at their offsets, and state of subscriptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyroaring import BitMap64

from quiver import protocol
from quiver.errors import InvalidRequest, PartitionUnavailable, TopicExists
from quiver.model.batch import StoredBatch
from quiver.model.envelope import store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from tests.integration.edge_node import edge_test, running
from tests.integration.native_peer import Peer, batch_of

LONG_AGO = 1_700_000_000_000_000


def info(number: int = 7, start_offset: int = 100) -> protocol.TopicInfo:
    partition = protocol.PartitionInfo(index=0, first_hash=0, start_offset=start_offset)
    return protocol.TopicInfo(
        name="orders",
        number=number,
        layout=1,
        settings=TopicSettings(),
        created_us=LONG_AGO,
        partitions=[partition],
    )


def entry(offset: int, *payloads: bytes) -> StoredBatch:
    return store_batch(
        batch_of(*payloads),
        base_offset=Offset(offset),
        epoch=LeaderEpoch(3),
        append_time=Microseconds(LONG_AGO + offset),
        durable_offset=Offset(offset),
    )


def restore_topic(backup: str = "b") -> protocol.RestoreTopic:
    return protocol.RestoreTopic(name="orders", info=info(), backup=backup)


async def restore(peer: Peer, *entries: StoredBatch) -> int:
    body = [buffer for one in entries for buffer in one.buffers()]
    request = protocol.RestoreEntries(topic="orders", partition=0)
    restored = await peer.expect(peer.request(request, body), protocol.EntriesRestored)
    return restored.next_offset


@edge_test
async def test_entries_keep_their_offsets_and_times_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        made = await peer.ask(restore_topic(), expect=protocol.Topic)
        assert (made.topic.number, made.topic.is_restoring) == (7, True)
        assert await restore(peer) == 100
        assert await restore(peer, entry(100, b"a", b"b"), entry(102, b"c")) == 103
        assert await restore(peer, entry(102, b"c"), entry(103, b"d")) == 104, "one was there"
        await peer.ask(protocol.FinishRestore(topic="orders"), expect=protocol.Done)
        await peer.store("orders", batch_of(b"new"))
    async with running(tmp_path) as run:
        peer = await run.peer()
        fetch = protocol.Fetch(topic="orders", partition=0, offset=100)
        reply = await peer.expect(peer.request(fetch), protocol.Fetched)
        assert (reply.start_offset, reply.next_offset, reply.topic_number) == (100, 105, 7)
        kept = await peer.entries("orders", offset=100)
        assert [one.base_offset for one in kept] == [100, 102, 103]
        assert [one.append_time - LONG_AGO for one in kept] == [100, 102, 103]
        (new,) = await peer.entries("orders", offset=104)
        assert new.append_time > LONG_AGO + 10**12


@edge_test
async def test_nobody_publishes_into_a_topic_that_is_being_restored(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.ask(restore_topic(), expect=protocol.Topic)
        with pytest.raises(PartitionUnavailable, match="being restored"):
            await peer.store("orders", batch_of(b"too soon"))


@edge_test
async def test_only_the_same_backup_continues_a_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.ask(restore_topic(), expect=protocol.Topic)
        await peer.ask(restore_topic(), expect=protocol.Topic)
        with pytest.raises(TopicExists):
            await peer.ask(restore_topic("another"), expect=protocol.Topic)


@edge_test
async def test_an_entry_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.ask(restore_topic(), expect=protocol.Topic)
        for wrong in (99, 101):
            with pytest.raises(InvalidRequest, match="the next offset here is 100"):
                await restore(peer, entry(wrong, b"x", b"y"))


@edge_test
async def test_nothing_is_restored_into_a_topic_in_use(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        with pytest.raises(InvalidRequest, match="not being restored"):
            await restore(peer, entry(0, b"x"))


@edge_test
async def test_a_subscription_goes_on_where_the_backup_has_it(tmp_path: Path) -> None:
    """Finished messages stay finished, and deliveries count, also after a restart."""
    settings = SubscriptionSettings(topics=["orders"])
    described = protocol.SubscriptionInfo(
        name="billing", number=1, settings=settings, created_us=0, is_queue=False
    )
    pending, twice = BitMap64([101, 103]).serialize(), BitMap64([103]).serialize()
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.ask(restore_topic(), expect=protocol.Topic)
        await restore(peer, entry(100, b"a", b"b", b"c"), entry(103, b"d", b"e"))
        request = protocol.RestoreSubscription(name="billing", info=described)
        await peer.ask(request, expect=protocol.Subscription)
        state = protocol.RestoreState(
            subscription="billing",
            topic="orders",
            partition=0,
            next_offset=104,
            states={"ready": len(pending)},
            deliveries={2: len(twice)},
        )
        for _ in range(2):
            await peer.expect(peer.request(state, [pending, twice]), protocol.Done)
        receive = protocol.Receive(subscription="billing")
        assert (await peer.ask(receive, expect=protocol.Received)).portions == [], "not finished"
        await peer.ask(protocol.FinishRestore(topic="orders"), expect=protocol.Done)
    async with running(tmp_path) as run:
        peer = await run.peer()
        received = await peer.ask(receive, expect=protocol.Received)
        (portion,) = received.portions
        assert list(BitMap64.deserialize(portion.offsets)) == [101, 103, 104]
        counts = {
            count: list(BitMap64.deserialize(one)) for count, one in portion.deliveries.items()
        }
        assert counts[3] == [103]
