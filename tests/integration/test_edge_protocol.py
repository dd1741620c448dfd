"""The native protocol as a client meets it: every call, over a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quiver import protocol
from quiver.broker.partition.reader import FETCH_BYTES_MAX
from quiver.errors import (
    InvalidFilter,
    InvalidRequest,
    InvalidSetting,
    MessageTooLarge,
    OffsetOutOfRange,
    PartitionNotFound,
    ProducerError,
    ProducerFenced,
    QuiverError,
    SequenceGap,
    StaleLayout,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
)
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import BATCH_BYTES_MAX, ENVELOPE_SIZE, ProducerStamp
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.topic import Acks, Compression, TopicSettings
from quiver.protocol.frames import FRAME_BYTES_MAX, frame
from tests.integration.edge_node import GatedDisk, edge_test, running, until
from tests.integration.native_peer import batch_of


def _stamp(opened: protocol.ProducerOpened, sequence: int) -> ProducerStamp:
    return ProducerStamp(
        ProducerId(opened.producer_id), ProducerEpoch(opened.producer_epoch), Sequence(sequence)
    )


def _queue(name: str, **settings: Any) -> protocol.CreateQueue:
    return protocol.CreateQueue(name=name, topic=TopicSettings(), subscription=settings)


# ---------------------------------------------------------------------- the handshake


@edge_test
async def test_a_welcome_tells_the_limits_of_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path, requests_max=7, request_bytes_max=2 << 20) as run:
        welcome = await (await run.peer(greet=False)).greet()
        assert welcome.version == 1
        assert welcome.node == "node-1"
        assert welcome.software.startswith("quiver/")
        assert (welcome.requests_max, welcome.frame_bytes_max) == (7, 2 << 20)


@edge_test
async def test_a_ping_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        answer = await (await run.peer()).ask(protocol.Ping(), expect=protocol.Done)
        assert isinstance(answer, protocol.Done)


@edge_test
async def test_a_node_describes_itself_with_its_counters(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders", partitions=2)
        await peer.store("orders", batch_of(b"p"))
        node = await peer.ask(protocol.DescribeNode(), expect=protocol.Node)
        assert (node.node, node.topics, node.partitions, node.connections) == ("node-1", 1, 1, 1)
        assert node.uptime_s >= 0
        assert node.counters["quiver_published_batches_total"] == 1
        assert node.counters["quiver_requests_total{call=publish}"] == 1


# ---------------------------------------------------------------------- topics


@edge_test
async def test_topics_are_created_described_listed_altered_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        created = await peer.create("orders", partitions=2, compression=Compression.ZSTD)
        described = await peer.ask(protocol.DescribeTopic(name="orders"), expect=protocol.Topic)
        assert described.topic == created
        altered = await peer.ask(
            protocol.AlterTopic(name="orders", changes={"retention": {"age": "1h"}}),
            expect=protocol.Topic,
        )
        assert altered.topic.settings.retention.age_s == 3600
        assert altered.topic.settings.compression is Compression.ZSTD
        listed = await peer.ask(protocol.ListTopics(), expect=protocol.Topics)
        assert [topic.name for topic in listed.topics] == ["orders"]
        await peer.ask(protocol.DeleteTopic(name="orders"), expect=protocol.Done)
        assert (await peer.ask(protocol.ListTopics(), expect=protocol.Topics)).topics == []


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (protocol.DescribeTopic(name="none"), TopicNotFound),
        (protocol.DeleteTopic(name="none"), TopicNotFound),
        (protocol.AlterTopic(name="none", changes={}), TopicNotFound),
        (protocol.CreateTopic(name="here", settings=TopicSettings()), TopicExists),
        (protocol.CreateTopic(name="../up", settings=TopicSettings()), InvalidSetting),
        (protocol.AlterTopic(name="here", changes={"colour": "red"}), InvalidSetting),
        (protocol.AlterTopic(name="here", changes={"partitions": 2}), InvalidSetting),
        (protocol.AlterTopic(name="here", changes={"retention": {1: 1, "a": 1}}), InvalidSetting),
        (protocol.OpenProducer(name="no name"), InvalidSetting),
        (_queue("q", dead_letter="../up"), InvalidSetting),
        (_queue("q", dead_letter=""), InvalidSetting),
        (_queue("q" * 200), InvalidSetting),  # its dead letters would have no name
        (_queue("q", filter="priority >"), InvalidFilter),
        (protocol.Receive(subscription="none"), SubscriptionNotFound),
        (protocol.DescribeSubscription(name="none"), SubscriptionNotFound),
        (protocol.OpenProducer(name="name", topic="none"), TopicNotFound),
        (protocol.Fetch(topic="none", partition=0, offset=0), TopicNotFound),
        (protocol.Fetch(topic="here", partition=1, offset=0), PartitionNotFound),
        (protocol.Fetch(topic="here", partition=-1, offset=0), PartitionNotFound),
        (protocol.Fetch(topic="here", partition=0, offset=1), OffsetOutOfRange),
        (protocol.Fetch(topic="here", partition=0, offset=1, wait_ms=60_000), OffsetOutOfRange),
        (protocol.Fetch(topic="here", partition=0, offset=-1), InvalidRequest),
        (protocol.Fetch(topic="here", partition=0, offset=0, wait_ms=-1), InvalidRequest),
        (protocol.Fetch(topic="here", partition=0, offset=0, bytes_max=-1), InvalidRequest),
        (protocol.FindOffset(topic="here", partition=0, at="middle"), InvalidRequest),
        (protocol.FindOffset(topic="none", partition=0, at="latest"), TopicNotFound),
        (protocol.Publish(topic="none", partition=0), TopicNotFound),
        (protocol.Publish(topic="here", partition=5), PartitionNotFound),
    ],
)
def test_what_cannot_be_done_has_its_own_error(
    request_: protocol.AnyRequest, expected: type[QuiverError], tmp_path: Path
) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            peer = await run.peer()
            await peer.create("here")
            batch = batch_of(b"p")
            body = [batch.head, batch.body] if isinstance(request_, protocol.Publish) else []
            error = await peer.refusal(peer.request(request_, body))
            assert type(error) is expected
            assert run.errors(expected.code) == 1
            await peer.ask(protocol.Ping(), expect=protocol.Done)

    check()


@edge_test
async def test_more_topics_than_fit_into_a_request_can_be_listed(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        for number in range(6):
            await peer.create(f"topic-{number}", partitions=4096)
        listed = await peer.ask(protocol.ListTopics(), expect=protocol.Topics)
        assert [len(topic.partitions) for topic in listed.topics] == [4096] * 6


# ---------------------------------------------------------------------- publishing and reading


@pytest.mark.parametrize("compression", Compression)
def test_what_is_published_is_fetched_byte_for_byte(
    compression: Compression, tmp_path: Path
) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            peer = await run.peer()
            topic = await peer.create("orders")
            sent = batch_of(b"a" * 100, b"", b"c" * 5000, compression=compression)
            stored = await peer.store("orders", sent)
            assert (stored.base_offset, stored.topic_number) == (0, topic.number)
            (entry,) = await peer.entries("orders")
            assert bytes(entry.body) == bytes(sent.body)
            assert entry.record_batch().column("payload").to_pylist() == [
                b"a" * 100,
                b"",
                b"c" * 5000,
            ]

    check()


@edge_test
async def test_publishes_are_stored_in_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    """Also the first ones of all, which come before their partition is open."""
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
    async with running(tmp_path) as run:
        peer = await run.peer()
        sent = [peer.publish("orders", batch_of(b"%d" % number)) for number in range(300)]
        stored = [await peer.expect(request_id, protocol.Published) for request_id in sent]
        assert [place.base_offset for place in stored] == list(range(300))
        assert await peer.payloads("orders") == [b"%d" % number for number in range(300)]


@edge_test
async def test_large_and_small_batches_of_one_connection_keep_their_order(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"first"))
        payloads = [bytes([65 + number]) * (1000 if number % 2 else 600_000) for number in range(8)]
        sent = [
            peer.publish("orders", batch_of(payload, compression=Compression.ZSTD))
            for payload in payloads
        ]
        for request_id in sent:
            await peer.expect(request_id, protocol.Published)
        assert await peer.payloads("orders") == [b"first", *payloads]


@edge_test
async def test_a_publish_that_nobody_waits_for_is_answered_before_it_is_stored(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        for number in range(5):
            sent = peer.publish("orders", batch_of(b"%d" % number), acks=Acks.NONE)
            await peer.expect(sent, protocol.Done)
        await peer.store("orders", batch_of(b"last"))
        assert len(await peer.payloads("orders")) == 6


@edge_test
async def test_an_id_used_again_is_never_answered_with_an_earlier_request_s_answer(
    tmp_path: Path,
) -> None:
    """After a publish that nobody waits for its id is free, though it is still being stored."""
    disk = GatedDisk()
    async with running(tmp_path, disk=disk) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"p"))
        disk.shut()
        sent = peer.publish("orders", batch_of(b"q"), acks=Acks.NONE)
        await peer.expect(sent, protocol.Done)
        fetch = protocol.Fetch(topic="orders", partition=0, offset=1, wait_ms=20_000, id=sent)
        peer.write(*frame(protocol.encode(fetch)))
        await peer.ask(protocol.Ping(), expect=protocol.Done)
        disk.open()
        reply, _ = await peer.answer(sent)
        assert isinstance(reply, protocol.Fetched)
        assert reply.next_offset == 2


@edge_test
async def test_a_message_over_the_topic_s_limit_is_refused_and_nothing_of_it_is_stored(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders", message_bytes_max=1000)
        error = await peer.refusal(peer.publish("orders", batch_of(b"small", b"x" * 1001)))
        assert type(error) is MessageTooLarge
        assert error.details == {"size": 1001, "limit": 1000}
        assert await peer.payloads("orders") == []


@edge_test
async def test_a_publish_of_an_old_layout_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        topic = await peer.create("orders")
        await peer.store("orders", batch_of(b"p"), layout=topic.layout)
        split = protocol.SplitPartition(topic="orders", partition=0, layout=topic.layout)
        await peer.ask(split, expect=protocol.Topic)
        error = await peer.refusal(peer.publish("orders", batch_of(b"p"), layout=topic.layout))
        assert type(error) is StaleLayout
        await peer.store("orders", batch_of(b"p"), layout=topic.layout + 1)


@edge_test
async def test_a_fetch_has_whole_entries_up_to_about_the_size_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        for number in range(20):
            await peer.store("orders", batch_of(bytes([number]) * 1000))
        size = (await peer.entries("orders", bytes_max=0))[0].size()
        assert len(await peer.entries("orders", bytes_max=0)) == 1
        assert len(await peer.entries("orders", bytes_max=3 * size)) == 3
        assert len(await peer.entries("orders", bytes_max=1 << 62)) == 20


@edge_test
async def test_a_fetch_waits_for_data_and_is_answered_as_soon_as_it_comes(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        reader, writer = await run.peer(), await run.peer()
        await writer.create("orders")
        waiting = [
            reader.request(protocol.Fetch(topic="orders", partition=0, offset=0, wait_ms=20_000))
            for _ in range(5)
        ]
        await reader.ask(protocol.Ping(), expect=protocol.Done)
        await writer.store("orders", batch_of(b"p"))
        for request_id in waiting:
            reply, body = await reader.answer(request_id)
            assert isinstance(reply, protocol.Fetched)
            assert (reply.start_offset, reply.next_offset) == (0, 1)
            assert len(body) > 0


@edge_test
async def test_a_fetch_that_waits_in_vain_is_answered_with_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        assert await peer.entries("orders", wait_ms=30) == []


@edge_test
async def test_a_waiting_fetch_of_a_topic_that_is_deleted_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        reader, writer = await run.peer(), await run.peer()
        await writer.create("orders")
        await writer.store("orders", batch_of(b"p"))
        waiting = reader.request(
            protocol.Fetch(topic="orders", partition=0, offset=1, wait_ms=20_000)
        )
        await reader.ask(protocol.Ping(), expect=protocol.Done)
        await writer.ask(protocol.DeleteTopic(name="orders"), expect=protocol.Done)
        assert type(await reader.refusal(waiting)) is TopicNotFound


@edge_test
async def test_offsets_are_found_by_name_and_by_time(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        first = await peer.store("orders", batch_of(b"a", b"b"))
        await until(lambda: run.node.services.clock.time_us() > first.append_time)
        second = await peer.store("orders", batch_of(b"c"))

        async def find(**what: Any) -> int:
            request = protocol.FindOffset(topic="orders", partition=0, **what)
            return (await peer.ask(request, expect=protocol.OffsetFound)).offset

        assert (await find(at="earliest"), await find(at="latest")) == (0, 3)
        assert await find(time_us=second.append_time) == 2
        assert await find(time_us=-(1 << 63)) == 0
        assert await find(time_us=(1 << 63) - 1) == 3


# ---------------------------------------------------------------------- producers


@edge_test
async def test_a_repeat_is_stored_once_and_answered_with_the_first_offset(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer, other = await run.peer(), await run.peer()
        await peer.create("orders")
        opened = await peer.ask(protocol.OpenProducer(), expect=protocol.ProducerOpened)
        batch = batch_of(b"a", b"b", stamp=_stamp(opened, 0))
        first = await peer.store("orders", batch)
        again = await other.store("orders", batch)
        assert (first.duplicate, again.duplicate) == (False, True)
        assert (first.base_offset, first.append_time) == (again.base_offset, again.append_time)
        assert await peer.payloads("orders") == [b"a", b"b"]


@edge_test
async def test_gaps_overlaps_and_predecessors_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        opened = await peer.ask(
            protocol.OpenProducer(name="billing"), expect=protocol.ProducerOpened
        )
        await peer.store("orders", batch_of(b"a", b"b", stamp=_stamp(opened, 0)))
        gap = await peer.refusal(peer.publish("orders", batch_of(b"d", stamp=_stamp(opened, 3))))
        assert type(gap) is SequenceGap
        assert gap.details["expected"] == 2
        overlap = await peer.refusal(
            peer.publish("orders", batch_of(b"b", b"c", stamp=_stamp(opened, 1)))
        )
        assert type(overlap) is ProducerError
        await peer.ask(protocol.OpenProducer(name="billing"), expect=protocol.ProducerOpened)
        fenced = await peer.refusal(peer.publish("orders", batch_of(b"c", stamp=_stamp(opened, 2))))
        assert type(fenced) is ProducerFenced
        assert await peer.payloads("orders") == [b"a", b"b"]


@edge_test
async def test_a_named_producer_is_told_its_own_last_sequence(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders", partitions=2)
        request = protocol.OpenProducer(name="billing", topic="orders")
        opened = await peer.ask(request, expect=protocol.ProducerOpened)
        assert opened.last_sequences == {}
        builder = BatchBuilder()
        builder.add(b"p", sequence=41)
        builder.add(b"q", sequence=42)
        await peer.store("orders", builder.build(stamp=_stamp(opened, 0)), 1)
    async with running(tmp_path) as run:
        peer = await run.peer()
        request = protocol.OpenProducer(name="billing", topic="orders")
        again = await peer.ask(request, expect=protocol.ProducerOpened)
        assert again.last_sequences == {1: 42}
        assert (again.producer_id, again.producer_epoch) == (opened.producer_id, 1)


# ---------------------------------------------------------------------- races


@edge_test
async def test_publishes_that_race_a_deletion_are_stored_or_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        writers = [await run.peer() for _ in range(4)]
        admin = await run.peer()
        await admin.create("orders")
        sent = [
            (writer, writer.publish("orders", batch_of(b"old")))
            for writer in writers
            for _ in range(50)
        ]
        deleting = admin.request(protocol.DeleteTopic(name="orders"))
        sent += [
            (writer, writer.publish("orders", batch_of(b"old")))
            for writer in writers
            for _ in range(50)
        ]
        await admin.expect(deleting, protocol.Done)
        for writer, request_id in sent:
            reply, _ = await writer.answer(request_id)
            if isinstance(reply, protocol.Failed):
                assert reply.code in ("topic_not_found", "partition_unavailable")
        await admin.create("orders")
        assert await admin.payloads("orders") == []


@edge_test
async def test_a_topic_created_by_a_client_that_left_can_be_used_by_others(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        other = await run.peer()
        for number in range(10):
            leaving = await run.peer()
            name = f"topic-{number}"
            leaving.request(protocol.CreateTopic(name=name, settings=TopicSettings()))
            for _ in range(number):
                await asyncio.sleep(0)
            await leaving.reset()
            made = await other.ask(
                protocol.CreateTopic(name=name, settings=TopicSettings(), exist_ok=True),
                expect=protocol.Topic,
            )
            assert made.topic.name == name
            await other.store(name, batch_of(b"p"))
            await other.ask(protocol.DeleteTopic(name=name), expect=protocol.Done)


def test_replies_fit_into_the_frames_that_clients_take() -> None:
    assert max(FETCH_BYTES_MAX, BATCH_BYTES_MAX + ENVELOPE_SIZE + 8) + 1024 < FRAME_BYTES_MAX
