"""Looking after subscriptions over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import HttpNode, http_node, problem

_ID = "0" * 32


async def publish(node: HttpNode, *messages: Any, **more: Any) -> list[str]:
    body = [{"message": message, **more} for message in messages]
    reply = await node.http.post("/queues/emails/messages", json=body)
    assert reply.status_code == 201, reply.text
    return [result["id"] for result in reply.json()["results"]]


@edge_test
async def test_a_subscription_begins_again_where_it_is_told_to(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, 0, 1, 2)
        for message in await node.received():
            await node.http.delete(f"/queues/emails/messages/{message['receipt_handle']}")
        for body, expected in (
            ({"to": "earliest"}, [0, 1, 2]),
            ({"to": 2}, [2]),
            ({"to": "latest"}, []),
            ({"to": "-1h"}, [0, 1, 2]),
            ({"to": "2020-01-01T00:00:00Z"}, [0, 1, 2]),
            ({"places": [{"topic": "emails", "partition": 0, "offset": 1}]}, [1, 2]),
        ):
            reply = await node.http.post("/subscriptions/emails/seek", json=body)
            assert reply.status_code == 204, reply.text
            assert [m["body"] for m in await node.received(visibility=1)] == expected, body


@edge_test
async def test_a_description_has_the_progress_in_each_partition(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, 0, 1, 2)
        first, *_ = await node.received(batch_size=1)
        await node.http.delete(f"/queues/emails/messages/{first['receipt_handle']}")
        for path in ("/queues/emails", "/subscriptions/emails"):
            assert (await node.http.get(path)).json()["partitions"] == [
                {"topic": "emails", "partition": 0, "committed": 1, "end": 3, "lag": 2}
            ]


@edge_test
async def test_a_seek_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for body in (
            {},
            {"to": 1, "places": [{"topic": "emails", "partition": 0, "offset": 1}]},
            {"to": "tomorrow"},
            {"to": "1h"},
            {"to": -1},
            {"to": True},
            {"places": []},
        ):
            reply = await node.http.post("/subscriptions/emails/seek", json=body)
            assert reply.status_code == 422, (body, reply.text)


@edge_test
async def test_peeking_shows_what_is_pending_and_changes_nothing(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        ids = await publish(node, 1, 2)
        await publish(node, 3, delay=3600)
        [taken] = await node.received(batch_size=1)
        reply = await node.http.get("/subscriptions/emails/peek")
        seen = {message["body"]: message["state"] for message in reply.json()["messages"]}
        assert seen == {1: "leased", 2: "ready", 3: "delayed"}
        ready = await node.http.get("/subscriptions/emails/peek?state=ready")
        assert [message["id"] for message in ready.json()["messages"]] == [ids[1]]
        assert taken["id"] == ids[0]
        assert await node.depth("emails", "ready") == 1


@edge_test
async def test_purging_finishes_what_matches(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await publish(node, 1, 2, headers={"region": "eu"})
        await publish(node, 3)
        body = {"filter": "headers.region = 'eu'"}
        some = await node.http.post("/subscriptions/emails/purge", json=body)
        assert some.json() == {"messages": 2}
        rest = await node.http.post("/subscriptions/emails/purge")
        assert rest.json() == {"messages": 1}
        bad = await node.http.post("/subscriptions/emails/purge", json={"filter": "(("})
        problem(bad, 422, "invalid_filter")


@edge_test
async def test_dead_letters_are_counted_and_sent_back(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(max_deliveries=1)
        await publish(node, "poison")
        [message] = await node.received()
        body = {"receipts": [message["receipt_handle"]]}
        await node.http.post("/subscriptions/emails/nack", json=body)
        await node.depth_becomes("emails", "dead", lambda depth: depth == 1)
        counted = await node.http.post("/subscriptions/emails/redrive", json={"dry_run": True})
        assert counted.json() == {"messages": 1}
        sent = await node.http.post("/subscriptions/emails/redrive")
        assert sent.json() == {"messages": 1}
        [again] = await node.received(wait=20)
        assert again["body"] == "poison"


@edge_test
async def test_a_message_is_found_by_its_id(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        [id] = await publish(node, {"a": 1}, key="k")
        found = (await node.http.get(f"/topics/emails/messages/{id}")).json()
        assert found["message"]["body"] == {"a": 1}
        assert (found["message"]["id"], found["message"]["key"]) == (id, "k")
        [state] = found["subscriptions"]
        assert (state["subscription"], state["state"]) == ("emails", "pending")
        problem(await node.http.get("/topics/nobody/messages/" + id), 404, "topic_not_found")
        missing = await node.http.get(f"/topics/emails/messages/{_ID}")
        problem(missing, 404, "message_not_found")
        problem(await node.http.get("/topics/emails/messages/x"), 422, "invalid_request")


@edge_test
async def test_a_scheduled_message_can_be_cancelled(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        [id] = await publish(node, 1, delay=3600)
        assert (await node.http.delete(f"/topics/emails/messages/{id}")).json() == {"messages": 1}
        assert await node.depth("emails", "delayed") == 0


@edge_test
async def test_an_idempotency_key_stores_a_repeat_once(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        headers = {"Idempotency-Key": "order-1"}
        url = "/queues/emails/messages"
        first = await node.http.post(url, json={"message": 1}, headers=headers)
        again = await node.http.post(url, json={"message": 1}, headers=headers)
        assert first.json().get("duplicate") is None
        assert again.json()["duplicate"] is True
        assert again.json()["id"] == first.json()["id"]
        body = [{"message": 2}, {"message": 3}]
        headers = {"Idempotency-Key": "order-2"}
        await node.http.post(url, json=body, headers=headers)
        repeated = await node.http.post(url, json=body, headers=headers)
        assert [result["duplicate"] for result in repeated.json()["results"]] == [True, True]
        assert [message["body"] for message in await node.received()] == [1, 2, 3]


@edge_test
async def test_streams_of_a_group_share_its_partitions(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(partitions=2, ordering="partition")
        url = f"ws://{node.address}/subscriptions/emails/stream"
        async with connect(url, proxy=None) as one, connect(url, proxy=None) as two:
            for socket in (one, two):
                await socket.send('{"type": "credit", "messages": 100}')
            got: dict[int, set[Any]] = {1: set(), 2: set()}

            async def take(number: int, socket: Any) -> None:
                while len(got[1] | got[2]) < 20 or not (got[1] and got[2]):
                    frame = json.loads(await socket.recv())
                    got[number] |= {message["body"] for message in frame["messages"]}
                    receipts = [message["receipt_handle"] for message in frame["messages"]]
                    await socket.send(json.dumps({"type": "ack", "receipts": receipts}))

            takers = [asyncio.create_task(take(1, one)), asyncio.create_task(take(2, two))]
            async with asyncio.timeout(50):
                for number in range(1000):
                    if got[1] and got[2] and number >= 20:
                        break
                    await publish(node, number, key=f"k{number}")
                    await asyncio.sleep(0.01)
                await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
            for taker in takers:
                taker.cancel()
            await asyncio.wait(takers)
            assert not got[1] & got[2]


@edge_test
async def test_a_queue_offers_under_its_own_name_what_its_subscription_does(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for number in range(4):
            await node.http.post("/queues/emails/messages", json={"message": number})
        peeked = (await node.http.get("/queues/emails/peek")).json()["messages"]
        assert len(peeked) == 4
        found = await node.http.get("/queues/emails/messages")
        receipts = [one["receipt_handle"] for one in found.json()["messages"]]
        for action, receipt in zip(("ack", "nack", "reject", "extend"), receipts, strict=True):
            body = {"receipts": [receipt]} | ({"visibility": "5m"} if action == "extend" else {})
            settled = await node.http.post(f"/queues/emails/{action}", json=body)
            assert (settled.status_code, settled.json()) == (200, {"settled": 1}), action
        redriven = await node.http.post("/queues/emails/redrive")
        assert redriven.json() == {"messages": 1}
        assert (await node.http.post("/queues/emails/purge")).status_code == 200
        sought = await node.http.post("/queues/emails/seek", json={"to": "earliest"})
        assert sought.status_code == 204
        problem(await node.http.get("/queues/none/peek"), 404, "subscription_not_found")


@edge_test
async def test_settings_of_a_queue_and_of_its_topic_change_together_or_not_at_all(
    tmp_path: Path,
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        changes = {"visibility": "45s", "retention": {"age": "3d"}}
        altered = await node.http.patch("/queues/emails", json=changes)
        assert (altered.status_code, altered.json()["settings"]["visibility"]) == (200, 45.0)
        topic = (await node.http.get("/topics/emails")).json()
        assert topic["settings"]["retention"]["age"] == 3 * 86_400
        wrong = {"visibility": "50s", "retention": {"age": "-3d"}}
        problem(await node.http.patch("/queues/emails", json=wrong), 422, "invalid_request")
        queue = (await node.http.get("/queues/emails")).json()
        assert queue["settings"]["visibility"] == 45.0
