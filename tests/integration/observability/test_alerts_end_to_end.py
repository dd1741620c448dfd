"""An alert from end to end: a limit is passed, everybody is told, and told again when it is over."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from quiver.config import AlertRule, Alerts, Limits, NodeConfig, Web
from quiver.edge.node import Node
from quiver.errors import InvalidSetting
from tests.integration.edge_node import edge_test, until
from tests.integration.http.http_node import LOOPBACK, HttpNode, problem
from tests.integration.http.test_webhooks import Endpoint, endpoint

DEEP = AlertRule(name="deep", watch="depth", on="emails", limit=2)


@asynccontextmanager
async def watched(folder: Path, *rules: AlertRule, webhook: str = "") -> AsyncIterator[HttpNode]:
    node = await Node.start(
        NodeConfig(
            data=str(folder / "data"),
            http=LOOPBACK,
            native=LOOPBACK,
            limits=Limits(free_bytes_min=0),
            web=Web(webhook_targets="127.0.0.0/8"),
            alerts=Alerts(defaults=False, interval_s=0.1, webhook=webhook),
            alert_rules=rules,
        )
    )
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{node.http_address}", timeout=30, trust_env=False
        ) as http:
            yield HttpNode(node, http)
    finally:
        await node.stop()


async def alerts(node: HttpNode) -> dict[str, list[dict[str, Any]]]:
    reply = await node.http.get("/alerts")
    assert reply.status_code == 200, reply.text
    found: dict[str, list[dict[str, Any]]] = reply.json()
    return found


def posted(called: Endpoint) -> list[tuple[str, str]]:
    documents = [json.loads(body) for _, body in called.requests]
    return [(one["rule"], one["state"]) for one in documents]


@edge_test
async def test_an_alert_fires_and_clears_and_everybody_is_told(tmp_path: Path) -> None:
    async with endpoint() as called, watched(tmp_path, DEEP, webhook=called.url) as node:
        subscribed = await node.http.put("/subscriptions/pager", json={"topics": ["__alerts"]})
        assert subscribed.status_code == 201, subscribed.text
        await node.queue("emails")
        assert await alerts(node) == {"firing": [], "recent": []}

        for number in range(3):
            await node.http.post("/queues/emails/messages", json={"message": number})
        await until(lambda: posted(called) == [("deep", "firing")])
        (firing,) = (await alerts(node))["firing"]
        assert (firing["subject"], firing["value"], firing["limit"]) == ("emails", 3, 2)
        assert firing["summary"] == "deep on emails: depth is 3 (limit 2), firing"
        assert 'quiver_alerts_firing{severity="warning"} 1' in await figures(node)

        for message in await node.received("emails", batch_size=10):
            await node.http.delete(f"/queues/emails/messages/{message['receipt_handle']}")
        await until(lambda: posted(called) == [("deep", "firing"), ("deep", "cleared")])
        assert (await alerts(node))["firing"] == []
        assert [one["state"] for one in (await alerts(node))["recent"]] == ["cleared"]

        told = await read("pager", node)
        assert [(one["node"], one["rule"], one["state"]) for one in told] == [
            ("node-1", "deep", "firing"),
            ("node-1", "deep", "cleared"),
        ]


async def figures(node: HttpNode) -> str:
    reply = await node.http.get("/metrics")
    assert reply.status_code == 200, reply.text
    return reply.text


async def read(subscription: str, node: HttpNode) -> list[dict[str, Any]]:
    reply = await node.http.get(
        f"/subscriptions/{subscription}/messages", params={"batch_size": 10, "wait": 5}
    )
    return [message["body"] for message in reply.json()["messages"]]


@edge_test
async def test_a_webhook_that_fails_is_called_again(tmp_path: Path) -> None:
    async with endpoint(500, 200) as called, watched(tmp_path, DEEP, webhook=called.url) as node:
        await node.queue("emails")
        for number in range(3):
            await node.http.post("/queues/emails/messages", json={"message": number})
        await until(lambda: len(posted(called)) == 2)
        assert posted(called) == [("deep", "firing")] * 2


@edge_test
async def test_a_webhook_goes_only_where_the_node_allows(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"does not allow webhooks to 'example\.com'"):
        async with watched(tmp_path, webhook="http://example.com/"):
            pass


@edge_test
async def test_users_read_the_topic_of_alerts_and_change_nothing_in_it(tmp_path: Path) -> None:
    async with watched(tmp_path) as node:
        mine = {"topics": ["__alerts"]}
        assert (await node.http.put("/subscriptions/pager", json=mine)).status_code == 201
        problem(await node.http.put("/topics/__mine", json={}), 422, "invalid_setting")
        message = {"message": "false alarm"}
        sent = await node.http.post("/topics/__alerts/messages", json=message)
        problem(sent, 422, "invalid_request")
        problem(await node.http.delete("/topics/__alerts"), 422, "invalid_request")
        everything = await node.http.put("/subscriptions/all", json={"topics": ["*"]})
        assert everything.status_code == 201
