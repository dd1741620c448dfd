"""Long lists of messages over HTTP: stored as batches, with a result for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import HttpNode, http_node, problem

PATH = "/queues/emails/messages"


def batches(node: HttpNode) -> float:
    return node.node.services.metrics.values().get("quiver_published_batches_total", 0)


@edge_test
async def test_a_long_list_is_one_batch_with_all_that_its_messages_have(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        given: list[dict[str, Any]] = [
            {
                "message": {"number": n},
                "key": f"customer-{n}",
                "headers": {"region": "eu", "n": str(n)},
                "priority": n % 4,
                "event_time": "2026-01-02T03:04:05Z",
                "dedup_id": f"order-{n}",
            }
            for n in range(50)
        ]
        given.append({"message": "bare"})
        reply = await node.http.post(PATH, json=given)
        assert reply.status_code == 201, reply.text
        assert batches(node) == 1
        received = {one["id"]: one for one in await node.received(batch_size=100)}
        for sent, result in zip(given, reply.json()["results"], strict=True):
            message = received.pop(result["id"])
            message["message"] = message.pop("body")
            assert sent == {name: message[name] for name in sent}
        assert not received


@edge_test
async def test_repeats_in_a_long_list_are_told_in_their_places(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(partitions=3)
        first = [{"message": n, "dedup_id": str(n)} for n in range(0, 40, 2)]
        both = [{"message": n, "dedup_id": str(n)} for n in range(40)]
        known = (await node.http.post(PATH, json=first)).json()["results"]
        results = (await node.http.post(PATH, json=both)).json()["results"]
        assert [one.get("duplicate", False) for one in results] == [n % 2 == 0 for n in range(40)]
        assert [one["id"] for one in results[::2]] == [one["id"] for one in known]
        assert await node.depth("emails", "ready") == 40


@edge_test
async def test_one_message_of_a_long_list_that_is_refused_keeps_none_back(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(message_bytes_max=100)
        given = [{"message": n, "key": "k"} for n in range(30)]
        given[7] = {"message": "x" * 200, "key": "k"}
        reply = await node.http.post(PATH, json=given)
        assert reply.status_code == 207
        errors = [one["error"]["code"] for one in reply.json()["results"] if "error" in one]
        assert errors == ["message_too_large"]
        assert await node.depth("emails", "ready") == 29


@edge_test
async def test_a_long_list_with_a_value_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        deep = "[" * 129 + "]" * 129
        text = ",".join(f'{{"message": {deep if n == 9 else n}, "key": "k"}}' for n in range(30))
        refused = problem(await node.http.post(PATH, content=f"[{text}]"), 422, "invalid_request")
        assert refused["field"] == "[9].message"
        assert await node.depth("emails", "ready") == 0


@edge_test
async def test_a_long_list_for_a_queue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        given = [{"message": n, "key": "k"} for n in range(30)]
        problem(await node.http.post(PATH, json=given), 404, "subscription_not_found")
        await node.queue()
        assert (await node.http.post(PATH, json=given)).status_code == 201
        assert (await node.http.delete("/queues/emails")).status_code == 204
        problem(await node.http.post(PATH, json=given), 404, "subscription_not_found")
