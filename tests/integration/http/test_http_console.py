"""The console over HTTP: its files, its WebSocket and who may see it, and looking into a topic."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from quiver.config import Security
from quiver.console import history
from quiver.edge.http.routes import browse
from quiver.edge.http.routes.console import PROTOCOL
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import HttpNode, http_node, problem
from tests.integration.http.test_http_access import admin_token, made_token

ASKED = Security(authentication=True)


def live(node: HttpNode, *protocols: Any, **options: Any) -> connect:
    return connect(f"ws://{node.address}/console/live", subprotocols=protocols, **options)


async def frame_of(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(50):
        frame: dict[str, Any] = json.loads(await socket.recv())
    return frame


async def closed_with(socket: ClientConnection) -> int:
    async with asyncio.timeout(50):
        await socket.wait_closed()
    assert socket.close_code is not None
    return socket.close_code


@edge_test
async def test_files_are_served_with_a_strict_policy_and_cached(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        for path in ("/console", "/console/main.js", "/console/chart.js", "/console/style.css"):
            reply = await node.http.get(path)
            assert reply.status_code == 200
            policy = reply.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';")
            tag = {"If-None-Match": reply.headers["etag"]}
            assert (await node.http.get(path, headers=tag)).status_code == 304
        problem(await node.http.get("/console/nothing.js"), 404, "path_not_found")
        problem(await node.http.get("/console/..%2fpages.py"), 404, "path_not_found")


@edge_test
async def test_the_root_and_a_trailing_slash_lead_to_the_console(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        page = await node.http.get("/console")
        for path in ("/", "/console/"):
            reply = await node.http.get(path)
            assert (reply.status_code, reply.headers["location"]) == (302, "/console")
            followed = await node.http.get(path, follow_redirects=True)
            assert followed.content == page.content


@edge_test
async def test_figures_come_every_second(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue("emails")
        async with live(node, PROTOCOL) as socket:
            first = await frame_of(socket)
            assert [one["name"] for one in first["subscriptions"]] == ["emails", "emails.dlq"]
            await node.http.post("/queues/emails/messages", json={"message": 1})
            second = await frame_of(socket)
            assert second["totals"]["pending"] == 1
            assert 500 < second["time_ms"] - first["time_ms"] < 10_000


@edge_test
async def test_the_socket_asks_who_is_there(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        admin = {"Authorization": f"Bearer {admin_token(tmp_path)}"}
        for name in ("emails", "secret"):
            await node.http.put(f"/queues/{name}", headers=admin)
        some = await made_token(node, tmp_path, "consume:emails")
        for protocols in ([PROTOCOL], [PROTOCOL, "quiver.bearer.qv_wrong"]):
            with pytest.raises(InvalidStatus) as refused:
                await live(node, *protocols)
            assert refused.value.response.status_code == 401
        async with live(node, PROTOCOL, f"quiver.bearer.{some}") as socket:
            assert socket.subprotocol == PROTOCOL
            frame = await frame_of(socket)
            assert [one["name"] for one in frame["subscriptions"]] == ["emails"]
        async with live(node, PROTOCOL, additional_headers=admin) as socket:
            assert len((await frame_of(socket))["subscriptions"]) == 4


@edge_test
async def test_what_is_no_console_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        cases: list[tuple[dict[str, Any], int]] = [
            ({"subprotocols": ["other"]}, 406),
            ({"subprotocols": [PROTOCOL], "origin": "http://evil.example"}, 403),
            ({"subprotocols": [PROTOCOL, "quiver.bearer.a", "quiver.bearer.b"]}, 400),
        ]
        for options, status in cases:
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{node.address}/console/live", **options)
            assert refused.value.response.status_code == status
        async with live(node, PROTOCOL) as socket:
            await socket.send("hello")
            assert await closed_with(socket) == 1008


@edge_test
async def test_a_stopping_node_says_goodbye(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node, live(node, PROTOCOL) as socket:
        await frame_of(socket)
        await node.node.stop()
        assert await closed_with(socket) == 1001


@edge_test
async def test_the_last_hour_is_told_and_only_what_the_viewer_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "STEP_S", 0.05)
    async with http_node(tmp_path, security=ASKED) as node:
        admin = {"Authorization": f"Bearer {admin_token(tmp_path)}"}
        for name in ("emails", "secret"):
            await node.http.put(f"/queues/{name}", headers=admin)
            await node.http.post(f"/queues/{name}/messages", headers=admin, json={"message": 1})

        async def told(headers: dict[str, str] = admin, **query: str) -> Any:
            return (await node.http.get("/console/history", headers=headers, params=query)).json()

        async with asyncio.timeout(50):
            while (await told())["totals"]["ready"][-1:] != [2]:
                pass
        assert "publish_p99_ms" in (await told())["node"]
        emails = await told(subscription="emails")
        assert emails["subscriptions"]["ready"][-1] == 1
        assert len(emails["times_ms"]) == len(emails["subscriptions"]["ready"])
        assert (await told(topic="emails"))["topics"]["messages"][-1] == 1

        token = await made_token(node, tmp_path, "consume:emails")
        some = {"Authorization": f"Bearer {token}"}
        seen = await told(some)
        assert seen["totals"]["ready"][-1] == 1
        assert "publish_p99_ms" not in seen["node"]
        assert (await told(some, subscription="secret"))["status"] in (403, 404)
        assert (await node.http.get("/console/history")).status_code == 401


# ---------------------------------------------------------------------- looking into a topic


async def filled(node: HttpNode, count: int = 30) -> list[dict[str, Any]]:
    await node.http.put("/topics/orders", json={"partitions": 3})
    messages = [{"message": {"n": n}, "key": f"k{n % 5}"} for n in range(count)]
    reply = await node.http.post("/topics/orders/messages", json=messages)
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


async def looked(node: HttpNode, **query: Any) -> dict[str, Any]:
    reply = await node.http.get("/topics/orders/messages", params=query)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@edge_test
async def test_the_newest_messages_come_first(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await filled(node)
        last = {"message": "last", "headers": {"a": "b"}, "priority": 9}
        sent = await node.http.post("/topics/orders/messages", json=last)
        found = await looked(node, batch_size=7)
        assert len(found["messages"]) == 7
        newest = found["messages"][0]
        assert (newest["id"], newest["body"]) == (sent.json()["id"], "last")
        assert (newest["headers"], newest["priority"], newest["bytes"]) == ({"a": "b"}, 9, 6)
        assert found["complete"] is True


@edge_test
async def test_messages_are_found_by_key_offset_and_time(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        results = await filled(node)
        by_key = await looked(node, key="k3")
        assert sorted(one["body"]["n"] for one in by_key["messages"]) == [3, 8, 13, 18, 23, 28]
        place = results[10]
        at = {"partition": place["partition"], "offset": place["offset"]}
        from_there = await looked(node, **at, batch_size=1)
        assert [one["id"] for one in from_there["messages"]] == [place["id"]]
        assert len((await looked(node, time="-1h"))["messages"]) == 30
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        assert (await looked(node, time=later))["messages"] == []
        assert (await looked(node, offset=10_000))["messages"] == []


@edge_test
async def test_a_look_that_is_cut_short_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "EXAMINED_MAX", 6)
    async with http_node(tmp_path) as node:
        await filled(node)
        found = await looked(node, key="k3")
        assert found["complete"] is False
        assert 0 < found["examined"] <= 6


@edge_test
async def test_what_cannot_be_looked_for_is_explained(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await filled(node)
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({"offset": 1, "time": "-1h"}, 422, "invalid_request"),
            ({"time": "nonsense"}, 422, "invalid_request"),
            ({"partition": 9}, 404, "partition_not_found"),
            ({"batch_size": 0}, 422, "invalid_request"),
        ]
        for query, status, code in cases:
            refused = await node.http.get("/topics/orders/messages", params=query)
            assert problem(refused, status, code)["detail"]
        unknown = await node.http.get("/topics/none/messages")
        assert "none" in problem(unknown, 404, "topic_not_found")["detail"]


@edge_test
async def test_dead_letters_say_why_they_are_there(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue("emails", max_deliveries=1)
        await node.http.post("/queues/emails/messages", json={"message": 1})
        [message] = await node.received()
        body = {"receipts": [message["receipt_handle"]], "error": "no such customer"}
        await node.http.post("/subscriptions/emails/nack", json=body)
        async with asyncio.timeout(50):
            while not (reply := await node.http.get("/topics/emails.dlq/messages")).is_success:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while not reply.json()["messages"]:
                reply = await node.http.get("/topics/emails.dlq/messages")
        [letter] = reply.json()["messages"]
        assert letter["dead_letter"]["last_error"] == "no such customer"
        assert letter["dead_letter"]["origin_subscription"] == "emails"
        assert letter["dead_letter"]["deliveries"] == 1
