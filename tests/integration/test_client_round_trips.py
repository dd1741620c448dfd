"""The client against a real node: what is published is what is read, in every form."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pytest

import quiver
from quiver import errors
from tests.aio import async_test
from tests.integration.client_node import ThreadNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadNode]:
    running = ThreadNode(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def client(node: ThreadNode) -> Iterator[quiver.Client]:
    with quiver.Client(node.url) as connected:
        yield connected


class TestTopics:
    def test_a_topics_life(self, client: quiver.Client) -> None:
        info = client.create_topic(
            "orders",
            partitions=4,
            durability=quiver.Durability.OS,
            retention=quiver.Retention(age="7d", bytes="1GiB"),
            message_bytes_max="2MiB",
        )
        assert info.settings.retention == quiver.Retention(age=7 * 86400.0, bytes=1 << 30)
        assert len(info.partitions) == 4
        with pytest.raises(errors.TopicExists):
            client.create_topic("orders")
        changed = client.alter_topic("orders", retention={"messages": 5}, compression="lz4")
        assert changed.settings.retention.messages == 5
        assert changed.settings.retention.size == 1 << 30
        assert changed.settings.compression is quiver.Compression.LZ4
        client.publish("orders", b"x", partition=2)
        assert client.describe_topic("orders").partitions[2].next_offset == 1
        assert [topic.name for topic in client.list_topics()] == ["orders"]
        client.delete_topic("orders")
        assert client.list_topics() == []
        with pytest.raises(errors.TopicNotFound):
            client.publish("orders", b"x")

    def test_the_same_topic_twice_is_fine_if_one_says_so(self, client: quiver.Client) -> None:
        first = client.create_topic("orders", partitions=2)
        again = client.create_topic("orders", partitions=2, exist_ok=True)
        assert first.number == again.number

    def test_the_node_tells_about_itself(self, client: quiver.Client) -> None:
        told = client.describe_node()
        assert told.software.endswith(quiver.__version__)
        assert told.uptime_s >= 0

    def test_no_node_is_told_at_once(self, node: ThreadNode) -> None:
        node.stop()
        with (
            quiver.Client(node.url, timeout="60s") as client,
            pytest.raises(errors.ConnectionLost, match="check that a node runs there"),
        ):
            client.list_topics()


class TestEveryColumn:
    @pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
    def test_all_that_a_message_has_comes_back(
        self, client: quiver.Client, compression: str
    ) -> None:
        client.create_topic("orders", compression=compression)
        moment = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
        published = client.publish(
            "orders",
            {"id": 1},
            key="customer-7",
            headers={"trace": "abc", "ü": "ö"},
            priority=9,
            delay="1h",
            ttl="2h",
            event_time=moment,
            dedup_id="once",
        )
        (message,) = client.read("orders").messages()
        assert message.id == published.id
        assert message.json() == {"id": 1}
        assert (message.key, message.priority) == (b"customer-7", 9)
        assert message.headers == {"trace": "abc", "ü": "ö"}
        assert message.event_time == moment
        assert message.deliver_at is not None
        assert message.expires_at is not None
        assert message.expires_at - message.deliver_at == timedelta(hours=1)
        assert abs(message.deliver_at - message.timestamp - timedelta(hours=1)).seconds < 60
        assert message.dedup_id == "once"
        (row,) = client.read("orders").table().to_pylist()
        assert row["headers"] == [("trace", "abc"), ("ü", "ö")]
        assert row["timestamp"] == message.timestamp

    def test_payloads_of_any_kind_and_size(self, client: quiver.Client) -> None:
        client.create_topic("orders", message_bytes_max="8MiB")
        payloads = [b"", b"\x00", bytes(7 << 20), *[bytes([n]) * n for n in range(256)]]
        client.publish_many("orders", payloads)
        assert [message.payload for message in client.read("orders").messages()] == payloads
        with pytest.raises(errors.MessageTooLarge):
            client.publish("orders", bytes((8 << 20) + 1))

    def test_a_table_comes_back_as_it_was(self, client: quiver.Client) -> None:
        client.create_topic("orders", partitions=3)
        table = pa.table(
            {
                "key": [f"k{number % 10}".encode() for number in range(25_000)],
                "payload": [b"%d" % number for number in range(25_000)],
                "priority": pa.array([number % 10 for number in range(25_000)], pa.int8()),
            }
        )
        published = client.publish_many("orders", table)
        assert len(published) == 25_000
        read = client.read("orders", columns=["key", "payload", "priority"]).table()
        order = pa.compute.sort_indices(read.column("payload").cast(pa.string()).cast(pa.int64()))
        assert read.take(order).equals(table)

    @pytest.mark.parametrize("acks", ["leader", "quorum", "all"])
    def test_every_kind_of_acknowledgement(self, client: quiver.Client, acks: str) -> None:
        client.create_topic("orders")
        assert client.publish("orders", b"x", acks=acks).offset == 0

    def test_without_acknowledgement_messages_arrive_too(self, client: quiver.Client) -> None:
        client.create_topic("orders")
        with client.producer("orders", acks="none") as producer:
            for number in range(1000):
                assert producer.send(b"%d" % number).result().offset is None
        reader = client.read("orders", follow=True, end=1000)
        found = [message.payload for message in reader.messages()]
        assert found == [b"%d" % number for number in range(1000)]


class TestReading:
    def test_reading_starts_at_a_time(self, client: quiver.Client) -> None:
        client.create_topic("orders", partitions=2)
        for number in range(4):
            client.publish("orders", b"before %d" % number)
        between = max(message.timestamp for message in client.read("orders").messages())
        between += timedelta(microseconds=1)
        after = [client.publish("orders", b"after %d" % number) for number in range(4)]
        found = [message.id for message in client.read("orders", start=between).messages()]
        assert sorted(found) == sorted(each.id or "" for each in after)
        assert len(list(client.read("orders", start="-1h").messages())) == 8
        assert list(client.read("orders", start="latest").messages()) == []
        until = client.read("orders", end=between).messages()
        assert len(list(until)) == 4

    def test_a_range_of_offsets_is_cut_exactly(self, client: quiver.Client) -> None:
        client.create_topic("orders")
        client.publish_many("orders", [b"%d" % number for number in range(1000)])
        for start, end in ((0, 1), (1, 999), (500, 501), (999, 5000)):
            table = client.read("orders", start=start, end=end).table()
            assert table.column("offset").to_pylist() == list(range(start, min(end, 1000)))
        with pytest.raises(errors.OffsetOutOfRange):
            client.read("orders", start=1001).table()

    @async_test
    async def test_following_sees_what_is_published(self, tmp_path: Path) -> None:
        node = ThreadNode(tmp_path)
        node.start()
        try:
            async with quiver.AsyncClient(node.url) as client:
                await client.create_topic("orders", partitions=3)
                reader = client.read("orders", follow=True)

                async def read(count: int) -> list[bytes]:
                    return [
                        (await anext(messages)).payload for messages in [reader.messages()] * count
                    ]

                reading = asyncio.create_task(read(30))
                for number in range(30):
                    await client.publish("orders", b"%02d" % number)
                assert sorted(await reading) == [b"%02d" % number for number in range(30)]
        finally:
            await asyncio.to_thread(node.close)


class TestTogether:
    def test_many_clients_and_threads(self, node: ThreadNode, client: quiver.Client) -> None:
        client.create_topic("orders", partitions=4, durability="os")
        clients, threads, each = 3, 4, 2_000

        def work(own: quiver.Client, name: str, producer: quiver.Producer) -> None:
            for number in range(each):
                producer.send(f"{name}/{number}".encode(), key=name)
            own.publish("orders", f"{name}/{each}", key=name)

        others = [quiver.Client(node.url) for _ in range(clients)]
        workers = []
        try:
            for place, own in enumerate(others):
                producer = own.producer("orders")
                for thread in range(threads):
                    name = f"{place}.{thread}"
                    workers.append(threading.Thread(target=work, args=(own, name, producer)))
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            for own in others:
                own.close()
        found: dict[str, list[int]] = {}
        for message in client.read("orders").messages():
            name, number = message.text().split("/")
            found.setdefault(name, []).append(int(number))
        assert len(found) == clients * threads
        for numbers in found.values():
            assert sorted(numbers) == list(range(each + 1))
            sent_by_producer = [number for number in numbers if number < each]
            assert sent_by_producer == list(range(each)), "one thread's messages keep their order"
