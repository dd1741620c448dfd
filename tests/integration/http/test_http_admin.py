"""Making, describing, changing and removing things over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.config import Web
from quiver.model.topic import TopicSettings
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node, problem
from tests.unit.test_settings_agree import ALL_OUTSIDE, as_body


@edge_test
async def test_a_topic_is_made_once_and_left_as_it_is_after_that(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        body = {"partitions": 4, "retention": {"age": "1d"}}
        made = await node.http.put("/topics/orders", json=body)
        assert (made.status_code, made.headers["location"]) == (201, "/topics/orders")
        again = await node.http.put("/topics/orders", json=body)
        assert again.status_code == 200
        assert again.json()["settings"] == made.json()["settings"]
        other = await node.http.put("/topics/orders", json={"partitions": 5})
        problem(other, 409, "topic_exists")


@edge_test
async def test_a_topic_is_described_changed_listed_and_removed(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.http.put("/topics/orders", json={"retention": {"age": 60, "messages": 5}})
        changed = await node.http.patch("/topics/orders", json={"retention": {"age": "1h"}})
        assert changed.json()["settings"]["retention"]["age"] == 3600
        assert changed.json()["settings"]["retention"]["messages"] == 5
        described = await node.http.get("/topics/orders")
        assert described.json() == changed.json()
        listed = await node.http.get("/topics")
        assert [topic["name"] for topic in listed.json()["topics"]] == ["orders"]
        assert (await node.http.delete("/topics/orders")).status_code == 204
        problem(await node.http.get("/topics/orders"), 404, "topic_not_found")
        problem(await node.http.delete("/topics/orders"), 404, "topic_not_found")


@edge_test
async def test_a_queue_is_made_changed_listed_and_removed(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        body = {"visibility": "1m", "partitions": 2, "max_deliveries": 3}
        made = await node.http.put("/queues/emails", json=body)
        assert made.status_code == 201
        assert (await node.http.put("/queues/emails", json=body)).status_code == 200
        changed = await node.http.patch("/queues/emails", json={"visibility": 5})
        assert changed.json()["settings"]["visibility"] == 5
        described = await node.http.get("/queues/emails")
        assert described.json()["settings"]["max_deliveries"] == 3
        await node.http.put("/topics/orders")
        await node.http.put("/subscriptions/billing", json={"topics": ["orders"]})
        listed = await node.http.get("/queues")
        assert [queue["name"] for queue in listed.json()["queues"]] == ["emails", "emails.dlq"]
        assert (await node.http.delete("/queues/emails")).status_code == 204
        problem(await node.http.get("/queues/emails"), 404, "subscription_not_found")
        problem(await node.http.get("/topics/emails"), 404, "topic_not_found")


@edge_test
async def test_a_subscription_is_not_a_queue(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await node.http.put("/topics/orders")
        await node.http.put("/subscriptions/billing", json={"topics": ["orders"]})
        problem(await node.http.get("/queues/billing"), 404, "subscription_not_found")
        problem(await node.http.delete("/queues/billing"), 404, "subscription_not_found")
        problem(await node.http.delete("/subscriptions/emails"), 422, "invalid_request")
        assert (await node.http.delete("/subscriptions/billing")).status_code == 204
        problem(await node.http.get("/subscriptions/billing"), 404, "subscription_not_found")


@edge_test
async def test_a_subscription_may_begin_at_the_start_or_at_a_time(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.http.put("/topics/orders")
        await node.http.post("/topics/orders/messages", json={"message": "old"})
        for name, start, expected in (
            ("all", {"start": "earliest"}, ["old"]),
            ("new", {}, []),
            ("since", {"start_time": "2020-01-01T00:00:00Z"}, ["old"]),
        ):
            body = {"topics": ["orders"], **start}
            made = await node.http.put(f"/subscriptions/{name}", json=body)
            assert made.status_code == 201, made.text
            reply = await node.http.get(f"/subscriptions/{name}/messages")
            assert [m["body"] for m in reply.json()["messages"]] == expected


@edge_test
async def test_an_unchanged_description_is_answered_with_304(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.http.put("/topics/orders")
        first = await node.http.get("/topics/orders")
        tag = first.headers["etag"]
        assert first.headers["cache-control"] == "no-cache"
        same = await node.http.get("/topics/orders", headers={"If-None-Match": tag})
        assert (same.status_code, same.content) == (304, b"")
        await node.http.patch("/topics/orders", json={"acks": "leader"})
        other = await node.http.get("/topics/orders", headers={"If-None-Match": tag})
        assert other.status_code == 200


@edge_test
async def test_head_is_answered_where_get_changes_nothing(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        head = await node.http.head("/queues/emails")
        assert (head.status_code, head.content) == (200, b"")
        refused = await node.http.head("/queues/emails/messages")
        assert refused.status_code == 405


@edge_test
async def test_health_and_the_node_are_told(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        for path in ("/healthz", "/readyz"):
            reply = await node.http.get(path)
            assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
        await node.queue()
        cluster = (await node.http.get("/cluster")).json()
        assert cluster["node"] == cluster["controller"] == cluster["nodes"][0]["id"] == "node-1"
        places = [(one["topic"], one["leader"]) for one in cluster["partitions"]]
        assert places == [("emails", "node-1"), ("emails.dlq", "node-1")]


@edge_test
async def test_readiness_tells_that_the_disk_is_full(tmp_path: Path) -> None:
    async with http_node(tmp_path, free_bytes_min=1 << 50) as node:
        await node.queue()
        reply = await node.http.get("/readyz")
        assert (reply.status_code, reply.json()["status"]) == (200, "disk_full")
        assert "limits.free_bytes_min is 1024TiB" in reply.json()["detail"]
        assert (await node.http.get("/queues/emails")).status_code == 200
        refused = await node.http.post("/queues/emails/messages", json={"message": 1})
        assert (refused.status_code, refused.json()["code"]) == (503, "disk_full")
        assert (await node.http.get("/healthz")).json() == {"status": "ok"}


@edge_test
async def test_a_wrong_method_is_told_which_are_right(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        reply = await node.http.post("/topics/orders")
        problem(reply, 405, "method_not_allowed")
        assert reply.headers["allow"] == "DELETE, GET, PATCH, PUT"


@edge_test
async def test_pages_of_other_sites_are_refused_unless_configured(tmp_path: Path) -> None:
    async with http_node(tmp_path, web=Web(cors_origins="https://app.example.org")) as node:
        await node.queue()
        url = "/queues/emails/messages"
        evil = {"Origin": "https://evil.example.org"}
        refused = await node.http.post(url, json={"message": 1}, headers=evil)
        problem(refused, 403, "access_refused")
        assert "access-control-allow-origin" not in refused.headers
        friend = {"Origin": "https://app.example.org"}
        allowed = await node.http.post(url, json={"message": 1}, headers=friend)
        assert allowed.status_code == 201
        assert allowed.headers["access-control-allow-origin"] == "https://app.example.org"
        own = {"Origin": f"http://{node.address}"}
        assert (await node.http.post(url, json={"message": 1}, headers=own)).status_code == 201


@edge_test
async def test_there_is_no_cors_unless_configured(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        headers = {"Origin": "https://a.example.org", "Access-Control-Request-Method": "POST"}
        reply = await node.http.options("/queues/emails/messages", headers=headers)
        problem(reply, 405, "method_not_allowed")
        assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("partitions", 0), ("durability", "maybe"), ("retention", {"age": "soon"}), ("colour", 1)],
)
@edge_test
async def test_a_wrong_setting_is_named(tmp_path: Path, setting: str, value: object) -> None:
    async with http_node(tmp_path) as node:
        reply = await node.http.put("/topics/orders", json={setting: value})
        assert problem(reply, 422, "invalid_request")["field"].startswith(setting)


@edge_test
async def test_a_setting_outside_its_bounds_is_refused_by_name(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for struct, bad in ALL_OUTSIDE:
            body = as_body(bad.setting, bad.value)
            kind = "topics" if struct is TopicSettings else "subscriptions"
            for reply in (
                await node.http.put("/queues/new", json=body),
                await node.http.patch(f"/{kind}/emails", json=body),
            ):
                assert problem(reply, 422, "invalid_request")["field"] == bad.setting.name


@edge_test
async def test_a_time_outside_its_bounds_is_refused_as_text_too(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        for path in ("/queues/emails", "/subscriptions/emails"):
            refused = await node.http.patch(path, json={"session_timeout": "1s"})
            told = problem(refused, 422, "invalid_setting")
            assert told["field"] == "session_timeout"
            assert told["detail"] == "session_timeout must be between 3s and 5m, not '1s'"
