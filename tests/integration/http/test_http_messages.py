"""Messages in and out over HTTP, on real sockets."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from quiver.edge.http.arrow import stream_of
from quiver.edge.http.operation import ARROW
from quiver.testing.clock import ManualClock
from tests.integration.edge_node import edge_test, until
from tests.integration.http.http_node import http_node, problem


@edge_test
async def test_the_three_calls_send_receive_and_delete_a_message(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        body = {"message": {"to": "ada"}, "priority": 5, "delay": 0}
        sent = await node.http.post("/queues/emails/messages", json=body)
        assert sent.status_code == 201

        [message] = await node.received(batch_size=10)
        assert message["body"] == {"to": "ada"}
        assert message["id"] == sent.json()["id"]
        assert message["priority"] == 5

        gone = await node.http.delete(f"/queues/emails/messages/{message['receipt_handle']}")
        assert (gone.status_code, gone.content) == (204, b"")
        assert await node.depth("emails", "leased") == 0


@edge_test
async def test_a_message_is_kept_as_the_bytes_that_were_sent(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        text = b'{"message": {"a":   1.50, "b": "\\u00e9"}}'
        await node.http.post("/queues/emails/messages", content=text)
        reply = await node.http.get("/queues/emails/messages")
        assert b'{"a":   1.50, "b": "\\u00e9"}' in reply.content


@edge_test
async def test_what_curl_posts_without_a_content_type_is_taken_as_json(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        await node.http.post("/queues/emails/messages", content=b'{"message": 1}', headers=headers)
        [message] = await node.received()
        assert message["body"] == 1


@edge_test
async def test_everything_a_message_may_have_arrives(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        sent = {
            "message": [1, None, "x"],
            "key": "customer-7",
            "headers": {"region": "eu"},
            "priority": 9,
            "ttl": "1h",
            "event_time": "2026-01-02T03:04:05Z",
            "dedup_id": "order-1",
        }
        reply = await node.http.post("/queues/emails/messages", json=sent)
        assert reply.status_code == 201, reply.text
        [message] = await node.received()
        assert message["body"] == [1, None, "x"]
        assert message["key"] == "customer-7"
        assert message["headers"] == {"region": "eu"}
        assert message["event_time"] == "2026-01-02T03:04:05Z"
        assert message["dedup_id"] == "order-1"
        assert message["expires_at"] > message["timestamp"]


@edge_test
async def test_a_message_is_kept_back_until_the_time_it_was_given(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        for body in ({"message": 1, "deliver_at": later}, [{"message": 2, "deliver_at": later}]):
            reply = await node.http.post("/queues/emails/messages", json=body)
            assert reply.status_code == 201
        raw = await node.http.post(
            "/queues/emails/messages",
            params={"deliver_at": later},
            content=b"3",
            headers={"content-type": "text/plain"},
        )
        assert raw.status_code == 201
        past = {"message": "now", "deliver_at": "2020-01-01T00:00:00Z"}
        assert (await node.http.post("/queues/emails/messages", json=past)).status_code == 201
        assert await node.depth("emails", "delayed") == 3
        both = past | {"delay": 1}
        problem(await node.http.post("/queues/emails/messages", json=both), 422, "invalid_request")


@edge_test
async def test_acks_can_be_chosen_for_each_request(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for body in ({"message": 1}, [{"message": 1}, {"message": 2}]):
            for acks in ("none", "leader", "quorum", "all"):
                url = f"/queues/emails/messages?acks={acks}"
                reply = await node.http.post(url, json=body)
                assert reply.status_code == 201
                (stored, *_) = reply.json().get("results") or [reply.json()]
                assert ("offset" in stored) is (acks != "none")
        wrong = await node.http.post("/queues/emails/messages?acks=most", json={"message": 1})
        problem(wrong, 422, "invalid_request")


@edge_test
async def test_a_delayed_message_is_kept_back(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for delay in (3600, "1h"):
            await node.http.post("/queues/emails/messages", json={"message": 1, "delay": delay})
        assert await node.received() == []
        assert await node.depth("emails", "delayed") == 2


@pytest.mark.parametrize("has_keys", [True, False])
@edge_test
async def test_a_list_is_stored_with_a_result_for_each(tmp_path: Path, has_keys: bool) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(partitions=2, message_bytes_max=100)
        batch = [{"message": n, **({"key": str(n)} if has_keys else {})} for n in range(50)]
        reply = await node.http.post("/queues/emails/messages", json=batch)
        assert reply.status_code == 201
        results = reply.json()["results"]
        assert len({result["id"] for result in results}) == 50
        messages = await node.received(batch_size=100)
        by_id = {message["id"]: message["body"] for message in messages}
        assert [by_id[result["id"]] for result in results] == list(range(50))


@edge_test
async def test_a_message_of_a_list_that_is_not_stored_is_told_in_its_place(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(message_bytes_max=100)
        batch = [{"message": 1}, {"message": "x" * 200}, {"message": 3}]
        reply = await node.http.post("/queues/emails/messages", json=batch)
        assert reply.status_code == 207
        first, second, third = reply.json()["results"]
        assert second["error"]["code"] == "message_too_large"
        assert [first["offset"], third["offset"]] == [0, 1]


@edge_test
async def test_bytes_travel_with_their_content_type(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        picture = bytes(range(256))
        reply = await node.http.post(
            "/queues/emails/messages?key=k&priority=7",
            content=picture,
            headers={"Content-Type": "image/png"},
        )
        assert reply.status_code == 201, reply.text
        [message] = await node.received()
        assert message["encoding"] == "base64"
        assert base64.b64decode(message["body"]) == picture
        assert message["headers"] == {"content-type": "image/png"}
        assert (message["key"], message["priority"]) == ("k", 7)


@edge_test
async def test_bytes_may_come_as_base64_in_json(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        text = base64.b64encode(b"\x00\xff").decode()
        await node.http.post(
            "/queues/emails/messages", json={"message": text, "encoding": "base64"}
        )
        [message] = await node.received()
        assert (message["body"], message["encoding"]) == (text, "base64")


@edge_test
async def test_arrow_goes_in_and_out_and_settles(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        batch = pa.record_batch({"payload": [b"1", b"2", b"3"], "key": [b"a", b"b", b"c"]})
        stream = {"Content-Type": ARROW}
        sent = await node.http.post(
            "/queues/emails/messages", content=stream_of(batch), headers=stream
        )
        assert (sent.status_code, sent.json()) == (201, {"stored": 3})
        got = await node.http.get("/queues/emails/messages", headers={"Accept": ARROW})
        assert got.headers["content-type"] == ARROW
        table = pa.ipc.open_stream(got.content).read_all()
        assert table.column("payload").to_pylist() == [b"1", b"2", b"3"]
        receipts = stream_of(table.select(["receipt"]).to_batches()[0])
        acked = await node.http.post("/subscriptions/emails/ack", content=receipts, headers=stream)
        assert (acked.status_code, acked.json()) == (200, {"settled": 3})
        assert await node.depth("emails", "leased") == 0


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
@edge_test
async def test_bodies_may_be_packed_in_both_directions(tmp_path: Path, codec: str) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        text = json.dumps({"message": "x" * 5000}).encode()
        packed = pa.compress(text, codec=codec, asbytes=True)
        reply = await node.http.post(
            "/queues/emails/messages", content=packed, headers={"Content-Encoding": codec}
        )
        assert reply.status_code == 201, reply.text
        async with node.http.stream(
            "GET", "/queues/emails/messages", headers={"Accept-Encoding": codec}
        ) as got:
            raw = b"".join([part async for part in got.aiter_raw()])
        assert got.headers["content-encoding"] == codec
        assert len(raw) < 1000
        plain = pa.CompressedInputStream(pa.py_buffer(raw), codec).read()
        assert json.loads(plain)["messages"][0]["body"] == "x" * 5000


@edge_test
async def test_a_body_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path, body_bytes_max=100_000) as node:
        await node.queue()
        bomb = gzip.compress(bytes(10_000_000))
        assert len(bomb) < 100_000
        reply = await node.http.post(
            "/queues/emails/messages", content=bomb, headers={"Content-Encoding": "gzip"}
        )
        problem(reply, 413, "body_too_large")


@edge_test
@pytest.mark.parametrize(
    ("ordering", "received"),
    [("none", [1, 3, 0, 2]), ("key", [0, 1, 2, 3]), ("partition", [0, 1, 2, 3])],
)
async def test_priorities_count_only_where_there_is_no_order(
    tmp_path: Path, ordering: str, received: list[int]
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(ordering=ordering)
        body = [{"message": n, "priority": priority} for n, priority in enumerate((4, 9, 4, 9))]
        await node.http.post("/queues/emails/messages", json=body)
        messages = await node.received(batch_size=10, wait=20)
        assert [message["body"] for message in messages] == received


@edge_test
async def test_a_receive_waits_for_a_message(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        waiting = asyncio.create_task(node.received(wait=20))
        await _is_waiting(node.node)
        await node.http.post("/queues/emails/messages", json={"message": "at last"})
        [message] = await waiting
        assert message["body"] == "at last"


@edge_test
async def test_a_wait_whose_client_leaves_takes_nothing(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        waiting = asyncio.create_task(node.received(wait=20))
        await _is_waiting(node.node)
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: not _waiters(node.node))
        await node.http.post("/queues/emails/messages", json={"message": 1})
        [message] = await node.received()
        assert message.get("deliveries", 1) == 1


@edge_test
async def test_a_stopping_node_ends_waits_with_503(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        waiting = asyncio.create_task(node.http.get("/queues/emails/messages?wait=20"))
        await _is_waiting(node.node)
        await node.node.stop()
        reply = await waiting
        assert problem(reply, 503, "shutting_down")["retry_after"] == 1
        assert reply.headers["retry-after"] == "1"


@edge_test
async def test_a_message_that_is_given_back_comes_again(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await node.http.post("/queues/emails/messages", json={"message": 1})
        [message] = await node.received()
        receipts = [message["receipt_handle"]]
        body = {"receipts": receipts, "delay": 0, "error": "mailbox full"}
        reply = await node.http.post("/subscriptions/emails/nack", json=body)
        assert (reply.status_code, reply.json()) == (200, {"settled": 1})
        [again] = await node.received()
        assert again["deliveries"] == 2


@edge_test
async def test_a_rejected_message_is_a_dead_letter_with_its_error(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await node.http.post("/queues/emails/messages", json={"message": 1})
        [message] = await node.received()
        body = {"receipts": [message["receipt_handle"]], "error": "no such customer"}
        reply = await node.http.post("/subscriptions/emails/reject", json=body)
        assert (reply.status_code, reply.json()) == (200, {"settled": 1})
        stored = (await node.http.get("/topics/emails.dlq/messages")).json()["messages"]
        assert [one["dead_letter"]["last_error"] for one in stored] == ["no such customer"]
        again = await node.http.post("/subscriptions/emails/reject", json=body)
        assert (again.status_code, again.json()["stale"]) == (409, body["receipts"])


@edge_test
async def test_a_lease_can_be_extended(tmp_path: Path) -> None:
    clock = ManualClock()
    async with http_node(tmp_path, clock=clock) as node:
        await node.queue(visibility=30)
        await node.http.post("/queues/emails/messages", json={"message": 1})
        [message] = await node.received()
        body = {"receipts": [message["receipt_handle"]], "visibility": "5m"}
        reply = await node.http.post("/subscriptions/emails/extend", json=body)
        assert reply.status_code == 200, reply.text
        await clock.advance(60)
        assert await node.received() == []
        await clock.advance(300)
        while not (again := await node.received()):
            await clock.advance(1)  # until it has noticed that the lease ended
        assert len(again) == 1


@edge_test
async def test_a_stale_receipt_is_a_conflict_that_names_it(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await node.http.post("/queues/emails/messages", json=[{"message": 1}, {"message": 2}])
        first, second = (m["receipt_handle"] for m in await node.received())
        await node.http.post("/subscriptions/emails/nack", json={"receipts": [first], "delay": 60})
        reply = await node.http.post(
            "/subscriptions/emails/ack", json={"receipts": [first, second]}
        )
        assert problem(reply, 409, "stale_receipt")["stale"] == [first]
        assert await node.depth("emails", "leased") == 0


@edge_test
async def test_a_receipt_of_another_queue_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await node.queue("letters")
        await node.http.post("/queues/emails/messages", json={"message": 1})
        [message] = await node.received()
        reply = await node.http.delete(f"/queues/letters/messages/{message['receipt_handle']}")
        problem(reply, 422, "invalid_receipt")
        assert await node.depth("emails", "leased") == 1


@edge_test
async def test_every_subscription_of_a_topic_gets_every_message(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.http.put("/topics/orders", json={"partitions": 2})
        for name in ("billing", "shipping"):
            made = await node.http.put(f"/subscriptions/{name}", json={"topics": ["orders"]})
            assert made.status_code == 201, made.text
        await node.http.post("/topics/orders/messages", json={"message": {"id": 1}})
        for name in ("billing", "shipping"):
            reply = await node.http.get(f"/subscriptions/{name}/messages")
            assert [m["body"] for m in reply.json()["messages"]] == [{"id": 1}]


@edge_test
async def test_messages_are_never_cached(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        reply = await node.http.get("/queues/emails/messages")
        assert reply.headers["cache-control"] == "no-store"
        assert "etag" not in reply.headers


def _waiters(node: object) -> int:
    subscriptions = node.services.broker.directory._at_work  # type: ignore[attr-defined]
    return sum(len(each._waiters) for each in subscriptions.values())


async def _is_waiting(node: object) -> None:
    await until(lambda: _waiters(node) == 1)


@edge_test
async def test_nothing_that_was_answered_is_lost_when_the_node_stops(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()

        async def post(number: int) -> str | None:
            try:
                reply = await node.http.post("/queues/emails/messages", json={"message": number})
            except (httpx.TransportError, AttributeError):
                return None  # anyio's AttributeError: the socket was closed while it was opened
            assert reply.status_code in (201, 503), reply.text
            return reply.json()["id"] if reply.status_code == 201 else None

        posts = [asyncio.create_task(post(number)) for number in range(200)]
        await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
        await node.node.stop()
        answered = {id for id in await asyncio.gather(*posts) if id is not None}
        assert answered
    async with http_node(tmp_path) as node:
        stored = {message["id"] for message in await node.received(batch_size=1000)}
        assert answered <= stored
