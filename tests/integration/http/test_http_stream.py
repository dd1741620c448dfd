"""The WebSocket: credit, deliveries, settling, endings, and hostile frames."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from quiver.edge.http.arrow import stream_of
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import HttpNode, http_node

JSON, ARROW = Subprotocol("quiver.json.v1"), Subprotocol("quiver.arrow.v1")


class Consumer:
    """The other end of a stream."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def told(self) -> dict[str, Any]:
        async with asyncio.timeout(50):
            frame: dict[str, Any] = json.loads(await self.socket.recv())
        return frame

    async def messages(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            frame = await self.told()
            assert frame["type"] == "messages", frame
            found += frame["messages"]
        assert len(found) == count
        return found

    async def nothing(self, seconds: float = 0.3) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.socket.recv()

    async def closed(self) -> int:
        """The code with which the node ends the stream; what comes before is left unread."""
        async with asyncio.timeout(50):
            await self.socket.wait_closed()
        assert self.socket.close_code is not None
        return self.socket.close_code


@asynccontextmanager
async def streaming(
    node: HttpNode, name: str = "emails", protocol: Subprotocol = JSON, query: str = "", **more: Any
) -> AsyncIterator[Consumer]:
    url = f"ws://{node.address}/subscriptions/{name}/stream{query}"
    async with connect(
        url, subprotocols=[protocol], compression=None, proxy=None, **more
    ) as socket:
        yield Consumer(socket)


async def publish(node: HttpNode, *messages: Any) -> None:
    body = [{"message": message} for message in messages]
    reply = await node.http.post("/queues/emails/messages", json=body)
    assert reply.status_code == 201


@edge_test
async def test_messages_are_pushed_as_far_as_there_is_credit(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, *range(10))
        async with streaming(node) as consumer:
            await consumer.nothing()
            await consumer.say(type="credit", messages=3)
            first = await consumer.messages(3)
            assert [message["body"] for message in first] == [0, 1, 2]
            await consumer.nothing()
            await consumer.say(type="credit", messages=100)
            assert len(await consumer.messages(7)) == 7
            await publish(node, "later")
            [late] = await consumer.messages(1)
            assert late["body"] == "later"


@edge_test
async def test_priorities_do_not_change_the_order_of_what_is_pushed(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(ordering="partition")
        body = [{"message": n, "priority": priority} for n, priority in enumerate((4, 9, 4, 9))]
        await node.http.post("/queues/emails/messages", json=body)
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=4)
            assert [message["body"] for message in await consumer.messages(4)] == [0, 1, 2, 3]


@edge_test
async def test_messages_are_settled_on_the_same_socket(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, 1, 2, 3)
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=3)
            one, two, three = (m["receipt_handle"] for m in await consumer.messages(3))
            await consumer.say(type="ack", receipts=[one], ref=7)
            assert await consumer.told() == {"type": "settled", "settled": 1, "ref": 7}
            await consumer.say(type="extend", receipts=[two], visibility="5m", ref=8)
            assert (await consumer.told())["ref"] == 8
            await consumer.say(type="nack", receipts=[three], delay=0, ref=9)
            assert (await consumer.told())["ref"] == 9
            assert await node.depth("emails", "leased") == 1
            await consumer.say(type="ack", receipts=[three], ref=10)
            refused = await consumer.told()
            assert (refused["type"], refused["ref"]) == ("problem", 10)
            assert refused["problem"]["code"] == "stale_receipt"
            await consumer.say(type="credit", messages=1)
            [again] = await consumer.messages(1)
            assert (again["body"], again["deliveries"]) == (3, 2)


@edge_test
async def test_a_message_is_rejected_on_the_same_socket(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, 1, 2)
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=2)
            one, _ = (m["receipt_handle"] for m in await consumer.messages(2))
            await consumer.say(type="reject", receipts=[one], error="no such customer", ref=7)
            assert await consumer.told() == {"type": "settled", "settled": 1, "ref": 7}
            assert await node.depth("emails", "dead") == 1
            assert await node.depth("emails", "leased") == 1
            await consumer.say(type="reject", receipts=[one], ref=8)
            assert (await consumer.told())["problem"]["code"] == "stale_receipt"


@edge_test
async def test_arrow_is_pushed_and_acknowledged(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, *range(5))
        async with streaming(node, protocol=ARROW) as consumer:
            await consumer.say(type="credit", messages=100)
            frame = await consumer.socket.recv()
            assert isinstance(frame, bytes)
            table = pa.ipc.open_stream(frame).read_all()
            assert table.column("payload").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
            await consumer.socket.send(stream_of(table.select(["receipt"]).to_batches()[0]))
            await consumer.say(type="ping", ref=1)
            assert await consumer.told() == {"type": "pong", "ref": 1}
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        assert await node.depth("emails", "ready") == 0


@edge_test
async def test_what_a_consumer_held_goes_back_when_it_leaves(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, "a", "b")
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=2)
            first, _ = await consumer.messages(2)
            await consumer.say(type="ack", receipts=[first["receipt_handle"]])
        [message] = await node.received(wait=20)
        assert (message["body"], message.get("deliveries", 1)) == ("b", 1)


@edge_test
async def test_a_consumer_that_reconnects_again_and_again_loses_no_message(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(max_deliveries=5)
        await publish(node, "patient")
        for _ in range(6):
            async with streaming(node) as consumer:
                await consumer.say(type="credit", messages=1)
                await consumer.messages(1)
        [message] = await node.received(wait=20)
        assert (message["body"], message.get("deliveries", 1)) == ("patient", 1)
        assert await node.depth("emails", "dead") == 0


@edge_test
async def test_what_a_consumer_held_stays_its_own_if_the_subscription_says_so(
    tmp_path: Path,
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(on_disconnect="keep")
        await publish(node, "a")
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=1)
            [message] = await consumer.messages(1)
        assert await node.received(wait=0.3) == []
        kept = await node.http.delete(f"/queues/emails/messages/{message['receipt_handle']}")
        assert kept.status_code == 204


@edge_test
async def test_a_socket_that_ends_without_a_word_counts_only_its_oldest_message(
    tmp_path: Path,
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(max_deliveries=1)
        await publish(node, "done", "in hand", "waiting", "waiting too")
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=3)
            first, *_ = await consumer.messages(3)
            await consumer.say(type="ack", receipts=[first["receipt_handle"]], ref=1)
            assert (await consumer.told())["type"] == "settled"
            consumer.socket.transport.abort()
        await node.depth_becomes("emails.dlq", "ready", lambda depth: depth == 1)
        [dead] = (await node.http.get("/topics/emails.dlq/messages")).json()["messages"]
        assert dead["body"] == "in hand"
        assert dead["dead_letter"]["last_error"] == "the consumer ended without settling it"
        rest = await node.received(wait=20)
        assert [one["body"] for one in rest] == ["waiting", "waiting too"]
        assert [one.get("deliveries", 1) for one in rest] == [1, 1]


@edge_test
async def test_a_message_that_kills_its_consumer_takes_no_other_along(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(max_deliveries=3)
        await publish(node, *range(10), "poison", *range(10, 30))
        handled: list[Any] = []
        for _ in range(3):
            await _work(node, handled)
        await _work(node, handled, until_count=30)
        assert sorted(handled) == list(range(30))
        await node.depth_becomes("emails", "dead", lambda depth: depth == 1)


async def _work(node: HttpNode, handled: list[Any], until_count: int | None = None) -> None:
    """Handle messages one by one, with many on the socket, until one of them kills the consumer."""
    async with streaming(node) as consumer:
        await consumer.say(type="credit", messages=31)
        waiting: list[dict[str, Any]] = []
        while len(handled) != until_count:
            while not waiting:
                waiting += (await consumer.told())["messages"]
            message = waiting.pop(0)
            if message["body"] == "poison":
                consumer.socket.transport.abort()
                return
            await consumer.say(type="ack", receipts=[message["receipt_handle"]], ref=1)
            while (frame := await consumer.told())["type"] != "settled":
                waiting += frame["messages"]
            handled.append(message["body"])


@pytest.mark.parametrize("protocol", [JSON, ARROW])
@edge_test
async def test_exactly_once_keeps_what_a_lost_socket_had_and_returns_what_a_closed_one_had(
    tmp_path: Path, protocol: Subprotocol
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(guarantee="exactly-once")
        await publish(node, "a")
        async with streaming(node, protocol=protocol) as consumer:
            await consumer.say(type="credit", messages=1)
            await consumer.socket.recv()
        [message] = await node.received(wait=20)
        assert message.get("deliveries", 1) == 1
        await publish(node, "b")
        async with streaming(node, protocol=protocol) as consumer:
            await consumer.say(type="credit", messages=1)
            await consumer.socket.recv()
            consumer.socket.transport.abort()
        assert await node.received(wait=0.3) == []
        assert await node.depth("emails", "leased") == 2


@edge_test
async def test_the_messages_of_a_live_socket_outlast_their_visibility(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(visibility=1)
        await publish(node, "slow")
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=1)
            [message] = await consumer.messages(1)
            assert message["deadline"] > message["timestamp"]
            assert await node.received(wait=3) == []
            await consumer.say(type="ack", receipts=[message["receipt_handle"]], ref=1)
            assert (await consumer.told())["type"] == "settled"


@edge_test
async def test_without_credit_nothing_is_kept_from_others(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=2)
            await publish(node, *range(4))
            mine = {message["body"] for message in await consumer.messages(2)}
            theirs = {message["body"] for message in await node.received(wait=20)}
            assert mine | theirs == {0, 1, 2, 3}
            assert len(theirs) == 2


@edge_test
async def test_a_settlement_nobody_waits_for_is_told_only_if_it_came_too_late(
    tmp_path: Path,
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, 1, 2)
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=2)
            one, two = (m["receipt_handle"] for m in await consumer.messages(2))
            await consumer.say(type="reject", receipts=[one])
            await consumer.say(type="ack", receipts=[one, two])
            told = await consumer.told()
            assert (told["type"], told.get("ref")) == ("problem", None)
            assert told["problem"]["code"] == "stale_receipt"
            assert told["problem"]["stale"] == [one]
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        assert await node.depth("emails", "ready") == 0


@edge_test
async def test_what_was_received_elsewhere_is_settled_on_the_socket_too(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, 1, 2)
        elsewhere, other = (m["receipt_handle"] for m in await node.received())
        lease, _, offset = elsewhere.partition(".")
        forged = f"{'B' if lease[0] == 'A' else 'A'}{lease[1:]}.{offset}"
        async with streaming(node) as consumer:
            await consumer.say(type="ack", receipts=[elsewhere], ref=1)
            assert await consumer.told() == {"type": "settled", "settled": 1, "ref": 1}
            await consumer.say(type="ack", receipts=[forged], ref=2)
            assert (await consumer.told())["type"] == "problem"
            await consumer.say(type="ack", receipts=[other])
            await node.depth_becomes("emails", "leased", lambda depth: depth == 0)


@edge_test
async def test_many_messages_are_pushed_as_arrow_and_acknowledged_together(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(partitions=3)
        await publish(node, *range(5000))
        async with streaming(node, protocol=ARROW) as consumer:
            found: list[bytes] = []
            await consumer.say(type="credit", messages=700)
            granted = 700
            while len(found) < 5000:
                frame = await consumer.socket.recv()
                assert isinstance(frame, bytes)
                table = pa.ipc.open_stream(frame).read_all()
                found += table.column("payload").to_pylist()
                assert len(found) <= granted
                await consumer.socket.send(stream_of(table.select(["receipt"]).to_batches()[0]))
                await consumer.say(type="credit", messages=table.num_rows)
                granted += table.num_rows
        assert sorted(map(int, found)) == list(range(5000))
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        assert await node.depth("emails", "ready") == 0


@edge_test
async def test_a_consumer_that_waits_and_leaves_takes_nothing_with_it(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=10)
            await consumer.nothing(0.1)
        await publish(node, 1)
        [message] = await node.received(wait=20)
        assert message.get("deliveries", 1) == 1


@edge_test
async def test_a_reader_that_stops_reading_is_not_buffered_for(tmp_path: Path) -> None:
    async with http_node(tmp_path, write_timeout_s=0.5) as node:
        await node.queue(visibility=60)
        for _ in range(20):
            await publish(node, *["x" * 100_000] * 20)  # 40 MB
        socket = await asyncio.open_connection(node.address.host, node.address.port, limit=1024)
        reader, writer = socket
        writer.write(
            b"GET /subscriptions/emails/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert (await reader.readline()).split()[1] == b"101"
        text = b'{"type":"credit","messages":1000}'
        writer.write(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)
        # It reads nothing more: the connection is given up, and all but nothing was taken for it.
        await node.depth_becomes("emails", "leased", lambda depth: 0 < depth < 200)
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        writer.transport.abort()


@edge_test
async def test_an_idle_socket_is_closed(tmp_path: Path) -> None:
    async with http_node(tmp_path, idle_timeout_s=1) as node:
        await node.queue()
        async with streaming(node) as consumer:
            assert await consumer.closed() == 1000


@edge_test
async def test_a_stopping_node_says_that_it_goes_away(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=1)
            stopping = asyncio.create_task(node.node.stop())
            assert await consumer.closed() == 1001
            await stopping


@edge_test
async def test_a_stopping_node_returns_what_its_sockets_hold_uncounted(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, "kept")
        async with streaming(node) as consumer:
            await consumer.say(type="credit", messages=1)
            await consumer.messages(1)
            await node.node.stop()
    async with http_node(tmp_path) as node:
        [message] = await node.received()
        assert (message["body"], message.get("deliveries", 1)) == ("kept", 1)


@edge_test
async def test_a_stream_of_nothing_is_refused_with_a_problem(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for name, protocol, query, status, code in (
            ("nobody", JSON, "", 404, "subscription_not_found"),
            ("emails", Subprotocol("mqtt"), "", 406, "not_acceptable"),
            ("emails", JSON, "?visibility=-1", 422, "invalid_request"),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with streaming(node, name, protocol, query):
                    pass
            response = refused.value.response
            assert response.status_code == status
            assert json.loads(response.body or b"")["code"] == code
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://{node.address}/nothing", proxy=None):
                pass
        assert refused.value.response.status_code == 404
        with pytest.raises(InvalidStatus) as refused:
            async with streaming(node, origin="https://evil.example.org"):
                pass
        assert refused.value.response.status_code == 403


BAD_FRAMES: list[tuple[str | bytes, str]] = [
    ("", "malformed_body"),
    ("hello", "malformed_body"),
    ("{", "malformed_body"),
    ("[]", "invalid_request"),
    ("null", "invalid_request"),
    ("{}", "invalid_request"),
    ('{"type": "dance"}', "invalid_request"),
    ('{"type": 7}', "invalid_request"),
    ('{"type": "messages", "messages": []}', "invalid_request"),
    ('{"type": "credit"}', "invalid_request"),
    ('{"type": "credit", "messages": 0}', "invalid_request"),
    ('{"type": "credit", "messages": -5}', "invalid_request"),
    ('{"type": "credit", "messages": 1.5}', "invalid_request"),
    ('{"type": "credit", "messages": "9"}', "invalid_request"),
    ('{"type": "credit", "messages": 99999999999999999999}', "invalid_request"),
    ('{"type": "credit", "messages": 1, "more": 1}', "invalid_request"),
    ('{"type": "ack"}', "invalid_request"),
    ('{"type": "ack", "receipts": []}', "invalid_request"),
    ('{"type": "ack", "receipts": [1]}', "invalid_request"),
    ('{"type": "nack", "receipts": ["x"], "delay": -1}', "invalid_request"),
    ('{"type": "reject", "receipts": ["x"], "delay": 1}', "invalid_request"),
    ('{"type": "extend", "receipts": ["x"]}', "invalid_request"),
    ("[" * 5000, "invalid_request"),
    (b"\x00\x01", "unsupported_media_type"),
]


@edge_test
async def test_a_bad_frame_is_told_and_ends_the_stream(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for frame, code in BAD_FRAMES:
            async with streaming(node) as consumer:
                await consumer.socket.send(frame)
                told = await consumer.told()
                assert (told["type"], told["problem"]["code"]) == ("problem", code), frame
                assert await consumer.closed() == 1008


@edge_test
async def test_a_ref_may_be_any_json_scalar(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        async with streaming(node) as consumer:
            for ref in (7, -1, 1.5, "a", "", True, False, 2**60):
                await consumer.say(type="ping", ref=ref)
                assert await consumer.told() == {"type": "pong", "ref": ref}


@edge_test
async def test_a_bad_frame_with_a_ref_fails_alone(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], Any]] = [
        ({"type": "ping", "ref": [1]}, None),
        ({"type": "ping", "ref": {"a": 1}}, None),
        ({"type": "ping", "ref": "x" * 201}, None),
        ({"type": "ack", "receipts": [], "ref": "a"}, "a"),
        ({"type": "dance", "ref": 7}, 7),
    ]
    async with http_node(tmp_path) as node:
        await node.queue()
        async with streaming(node) as consumer:
            for frame, ref in bad:
                await consumer.say(**frame)
                told = await consumer.told()
                assert (told["type"], told["problem"]["code"]) == ("problem", "invalid_request")
                assert told.get("ref") == ref
            await consumer.say(type="ping", ref=1)
            assert await consumer.told() == {"type": "pong", "ref": 1}


@edge_test
async def test_a_receipt_that_is_none_is_told_and_the_stream_goes_on(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        async with streaming(node) as consumer:
            await consumer.say(type="ack", receipts=["nonsense"], ref=1)
            told = await consumer.told()
            assert (told["problem"]["code"], told["ref"]) == ("invalid_receipt", 1)
            await consumer.say(type="ping")
            assert await consumer.told() == {"type": "pong"}


@pytest.mark.parametrize("seed", range(5))
@edge_test
async def test_whatever_is_said_no_message_is_lost(tmp_path: Path, seed: int) -> None:
    """Frames drawn from a seed, good ones and mangled ones; then a sane consumer gets the rest."""
    chance = random.Random(seed)
    async with http_node(tmp_path) as node:
        await node.queue(max_deliveries=0)
        await publish(node, *range(50))
        acked: set[int] = set()
        for _ in range(15):
            async with streaming(node) as consumer:
                await _babble(consumer, chance, acked)
        rest = set()
        while len(acked | rest) < 50:
            found = await node.received(batch_size=100, wait=20)
            assert found, f"seed {seed}: lost {set(range(50)) - acked - rest}"
            rest |= {message["body"] for message in found}
        assert (await node.http.get("/healthz")).status_code == 200


async def _babble(consumer: Consumer, chance: random.Random, acked: set[int]) -> None:
    receipts: dict[str, int] = {}
    try:
        for _ in range(chance.randrange(1, 12)):
            kind = chance.choice(["credit", "ack", "nack", "extend", "ping", "mangled", "bytes"])
            some = chance.sample(sorted(receipts), min(len(receipts), chance.randrange(1, 4)))
            frame: dict[str, Any] = {"type": kind}
            if kind == "credit":
                frame["messages"] = chance.randrange(1, 10)
            elif kind in ("ack", "nack", "extend"):
                if not some:
                    continue
                frame |= {"receipts": some, "ref": 1}
                if kind == "nack":
                    frame["delay"] = 0
                if kind == "extend":
                    frame["visibility"] = 5
            text = bytearray(json.dumps(frame).encode())
            if kind == "mangled":
                text = bytearray(b'{"type": "credit", "messages": 5}')
                text[chance.randrange(len(text))] = chance.randrange(32, 127)
            if kind == "bytes":
                await consumer.socket.send(chance.randbytes(chance.randrange(20)))
                continue
            if kind == "ack":  # it may count from now on, whether we hear of it or not
                acked |= {receipts[one] for one in some}
            await consumer.socket.send(text.decode())
            async with asyncio.timeout(0.02):
                told = json.loads(await consumer.socket.recv())
            for message in told.get("messages", []):
                receipts[message["receipt_handle"]] = message["body"]
    except (TimeoutError, ConnectionClosed):
        return
