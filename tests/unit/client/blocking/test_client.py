"""The blocking client over a node in memory: many threads, waiting, and endings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from quiver.client import Client, Delivery
from quiver.errors import (
    ConnectionLost,
    InvalidBatch,
    InvalidRequest,
    InvalidSetting,
    Overloaded,
    RequestTimeout,
    TopicNotFound,
)
from tests.unit.client.scripted_node import Fate, ScriptedDialer, ScriptedNode


@contextmanager
def scripted(partitions: int = 1, timeout: str = "30s") -> Iterator[tuple[Client, ScriptedNode]]:
    node = ScriptedNode()
    node.add_topic("orders", partitions)
    with Client(dialer=ScriptedDialer(node), timeout=timeout) as client:
        yield client, node


def hold(client: Client, node: ScriptedNode, *, held: bool) -> None:
    """Let the node answer nothing, or everything again."""

    async def act() -> None:
        node.open.clear() if held else node.open.set()

    client._thread.run(act)


class TestCalls:
    def test_topics_are_made_described_listed_and_deleted(self) -> None:
        with scripted() as (client, _):
            info = client.create_topic("bills", partitions=3, message_bytes_max="2MiB")
            assert (info.name, info.settings.message_bytes_max) == ("bills", 2 << 20)
            assert client.describe_topic("bills").partitions[2].index == 2
            assert {topic.name for topic in client.list_topics()} == {"orders", "bills"}
            client.delete_topic("bills")
            with pytest.raises(TopicNotFound):
                client.describe_topic("bills")

    @pytest.mark.parametrize(
        "settings",
        [
            {"partitions": 0},
            {"partitions": "many"},
            {"durability": "none"},
            {"colour": "red"},
            {"retention": {"age": -1}},
            {"message_bytes_max": "huge"},
        ],
    )
    def test_settings_that_do_not_exist_are_told(self, settings: dict[str, object]) -> None:
        with scripted() as (client, node):
            with pytest.raises(InvalidSetting):
                client.create_topic("bills", **settings)  # type: ignore[arg-type]
            with pytest.raises(InvalidSetting, match="not a topic name"):
                client.create_topic("no/slashes")
            assert not node.requests

    @pytest.mark.parametrize(
        "settings",
        [
            {"linger": "-1s"},
            {"batch_bytes": 0},
            {"batch_count": 0},
            {"buffer_bytes": "0B"},
            {"delivery_timeout": "0s"},
            {"compression": "gzip"},
            {"acks": "most"},
            {"name": 5},
        ],
    )
    def test_a_producers_settings_are_checked(self, settings: dict[str, object]) -> None:
        with scripted() as (client, node):
            with pytest.raises(InvalidSetting):
                client.producer("orders", **settings)  # type: ignore[arg-type]
            assert not node.requests

    def test_nothing_is_dialled_before_it_is_needed(self) -> None:
        with scripted() as (_, node):
            assert node.dials == 0

    def test_many_threads_share_batches(self) -> None:
        with scripted() as (client, node):
            threads = [
                threading.Thread(target=lambda: [client.publish("orders", b"x") for _ in range(50)])
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert node.payloads("orders") == [[b"x"] * 400]
            assert node.publishes < 400


class TestProducer:
    def test_what_many_threads_send_arrives_in_each_threads_order(self) -> None:
        with scripted(partitions=2) as (client, node), client.producer("orders") as producer:

            def send(thread: int) -> None:
                for number in range(3000):
                    producer.send(b"%d/%d" % (thread, number), partition=thread % 2)

            threads = [threading.Thread(target=send, args=(thread,)) for thread in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
            for thread_number in range(6):
                prefix = b"%d/" % thread_number
                stored = node.payloads("orders")[thread_number % 2]
                mine = [each for each in stored if each.startswith(prefix)]
                assert mine == [b"%d/%d" % (thread_number, number) for number in range(3000)]

    def test_a_delivery_tells_what_became_of_its_message(self) -> None:
        with scripted() as (client, node), client.producer("orders") as producer:
            hold(client, node, held=True)
            delivery = producer.send({"id": 1}, key="k")
            assert not delivery.done()
            with pytest.raises(RequestTimeout, match="may still be stored"):
                delivery.result(timeout=0.01)
            called: list[Delivery] = []
            delivery.add_done_callback(called.append)
            delivery.add_done_callback(lambda _: 1 / 0)
            hold(client, node, held=False)
            assert delivery.result().offset == 0
            assert delivery.exception() is None
            assert called == [delivery]
            delivery.add_done_callback(called.append)
            assert called == [delivery, delivery]

    def test_a_failure_is_raised_by_result_and_by_the_end_of_the_block(self) -> None:
        with scripted() as (client, node):
            node.fate = lambda _: InvalidBatch("no")

            def block() -> None:
                with client.producer("orders") as producer:
                    producer.send(b"x")

            with pytest.raises(InvalidBatch):
                block()
            producer = client.producer("orders")
            delivery = producer.send(b"x")
            assert isinstance(delivery.exception(), InvalidBatch)
            with pytest.raises(InvalidBatch):
                delivery.result()
            producer.close()

    def test_a_full_buffer_blocks_and_then_refuses(self) -> None:
        with scripted(timeout="100ms") as (client, node):
            producer = client.producer("orders", buffer_bytes=10_000)
            hold(client, node, held=True)
            producer.send(bytes(9_000))
            with pytest.raises(Overloaded, match=r"stayed full for 0\.1 s"):
                producer.send(bytes(9_000))
            hold(client, node, held=False)
            producer.send(bytes(9_000))
            producer.close()

    def test_a_thread_that_waits_for_room_goes_on_when_there_is_some(self) -> None:
        with scripted() as (client, node):
            producer = client.producer("orders", buffer_bytes=10_000)
            for _ in range(200):
                producer.send(bytes(5_000))
            producer.close()
            assert node.payloads("orders") == [[bytes(5_000)] * 200]

    def test_tables_are_sent_as_they_are(self) -> None:
        with scripted() as (client, _), client.producer("orders") as producer:
            delivery = producer.send_arrow(pa.table({"payload": [b"a", b"b"]}))
            assert [each.offset for each in delivery.result()] == [0, 1]
            assert delivery.done()

    def test_deliveries_can_be_awaited_from_another_loop(self) -> None:
        with scripted() as (client, _), client.producer("orders") as producer:

            async def remote() -> int | None:
                return (await producer.send(b"x")).offset

            assert asyncio.run(remote()) == 0

    def test_a_callback_that_would_wait_for_itself_is_told(self) -> None:
        with scripted() as (client, node), client.producer("orders") as producer:
            caught: list[BaseException] = []
            done = threading.Event()

            def call(_: Delivery) -> None:
                for act in (client.list_topics, producer.send(b"y").result):
                    try:
                        act()
                    except InvalidRequest as error:
                        caught.append(error)
                done.set()

            hold(client, node, held=True)
            producer.send(b"x").add_done_callback(call)
            hold(client, node, held=False)
            assert done.wait(30)
            assert len(caught) == 2

    def test_a_topic_that_is_not_there_is_told_when_the_producer_is_made(self) -> None:
        with scripted() as (client, _), pytest.raises(TopicNotFound):
            client.producer("bills")


class TestReader:
    def test_batches_messages_and_tables(self) -> None:
        with scripted() as (client, _):
            client.publish_many("orders", [b"%d" % number for number in range(10)])
            with client.read("orders") as reader:
                assert next(reader).num_rows == 10
                assert list(reader) == []
            payloads = [message.payload for message in client.read("orders", start=5).messages()]
            assert payloads == [b"5", b"6", b"7", b"8", b"9"]
            assert client.read("orders", columns=["offset"]).table().num_columns == 1

    def test_a_reader_that_follows_is_ended_by_the_client(self) -> None:
        with scripted() as (client, _):
            client.publish("orders", b"x")
            reader = client.read("orders", follow=True)
            assert next(reader).num_rows == 1


class TestEndings:
    def test_a_closed_client_says_so(self) -> None:
        with scripted() as (client, _):
            client.publish("orders", b"x")
            producer = client.producer("orders")
            client.close()
            client.close()
            for act in (
                lambda: client.publish("orders", b"x"),
                client.list_topics,
                lambda: client.read("orders"),
                lambda: client.producer("orders"),
                lambda: producer.send(b"x"),
            ):
                with pytest.raises(InvalidRequest, match="closed"):
                    act()

    def test_closing_flushes_producers_that_were_left_open(self) -> None:
        with scripted() as (client, node):
            producer = client.producer("orders", linger="60s")
            deliveries = [producer.send(b"%d" % number) for number in range(100)]
            client.close()
            assert all(delivery.done() for delivery in deliveries)
            assert len(node.payloads("orders")[0]) == 100

    def test_a_call_that_another_thread_closes_under_fails(self) -> None:
        with scripted() as (client, node):
            client.list_topics()
            hold(client, node, held=True)
            failures: list[BaseException] = []

            def call() -> None:
                try:
                    client.list_topics()
                except (ConnectionLost, InvalidRequest) as error:
                    failures.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            client.close()
            thread.join(30)
            assert len(failures) == 1

    def test_a_client_that_was_never_used_has_nothing_to_close(self) -> None:
        before = threading.active_count()
        Client().close()
        client = Client("quiver://nowhere.invalid")
        del client
        assert threading.active_count() == before

    def test_a_client_that_is_dropped_unclosed_warns_and_ends_its_thread(self) -> None:
        node = ScriptedNode()
        node.add_topic("orders")
        clients = [Client(dialer=ScriptedDialer(node))]
        clients[0].list_topics()
        thread = clients[0]._thread._thread
        assert thread is not None
        with pytest.warns(ResourceWarning, match="unclosed client"):
            clients.clear()
        thread.join(30)
        assert not thread.is_alive()

    def test_an_unanswered_message_fails_after_its_time(self) -> None:
        with scripted() as (client, node):
            node.fate = lambda _: Fate.OVERLOADED
            producer = client.producer("orders", delivery_timeout="200ms")
            assert isinstance(producer.send(b"x").exception(), Overloaded)
            producer.close()
