"""Mirrors over HTTP: added, watched, paused, promoted and removed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import quiver
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import HttpNode, http_node, problem
from tests.integration.mirror.nodes import node


async def copied(us: HttpNode, mirror: str, topic: str, end: int) -> dict[str, Any]:
    """The mirror, once a copy has as many messages."""
    async with asyncio.timeout(50):
        while True:
            info: dict[str, Any] = (await us.http.get(f"/mirrors/{mirror}")).json()
            ends = {one["name"]: one["partitions"] for one in info["topics"]}
            if sum(one["next_offset"] for one in ends.get(topic, [])) == end:
                return info
            await asyncio.sleep(0.02)


@edge_test
async def test_a_mirror_is_added_paused_promoted_and_removed(tmp_path: Path) -> None:
    with node(tmp_path / "eu") as eu, quiver.Client(eu.url) as there:
        there.create_queue("orders")
        there.publish("orders", "one")
        await _mirrored(tmp_path / "us", eu.url)
        assert "cluster" in there.describe_topic("orders").moved_to


async def _mirrored(folder: Path, source: str) -> None:
    async with http_node(folder) as us:
        wanted = {"source": source, "topics": ["orders*"], "with_subscriptions": True}
        made = await us.http.put("/mirrors/eu", json={**wanted, "token": "qv_secret"})
        assert made.status_code == 201, made.text
        assert made.headers["location"] == "/mirrors/eu"
        assert made.json()["has_token"] is True
        assert "qv_secret" not in made.text
        assert (await us.http.put("/mirrors/eu", json=wanted)).status_code == 200
        other = {**wanted, "topics": ["bills"]}
        problem(await us.http.put("/mirrors/eu", json=other), 409, "mirror_exists")

        info = await copied(us, "eu", "orders", 1)
        assert (info["state"], info["settings"]["source"]) == ("copying", source)
        (topic,) = [one for one in info["topics"] if one["name"] == "orders"]
        assert topic["partitions"][0]["lag_messages"] == 0
        listed = (await us.http.get("/mirrors")).json()["mirrors"]
        assert [one["name"] for one in listed] == ["eu"]
        shown = (await us.http.get("/topics/orders")).json()
        assert (shown["origin"]["mirror"], shown["origin"]["topic"]) == ("eu", "orders")
        assert (await us.http.get("/queues/orders")).json()["mirror"] == "eu"
        refused = await us.http.post("/queues/orders/messages", json={"message": "two"})
        problem(refused, 409, "read_only_topic")

        paused = await us.http.patch("/mirrors/eu", json={"paused": True})
        assert paused.json()["state"] == "paused"
        await us.http.patch("/mirrors/eu", json={"paused": False})
        await copied(us, "eu", "orders", 1)

        promoted = await us.http.post("/promote", json={"topics": ["orders*"], "timeout": "20s"})
        assert promoted.status_code == 200, promoted.text
        done = {one["name"]: one for one in promoted.json()["topics"]}["orders"]
        assert (done["fenced"], done["complete"], done["error"]) == (True, True, "")
        again = await us.http.post("/queues/orders/messages", json={"message": "two"})
        assert again.status_code == 201
        assert (await us.http.delete("/mirrors/eu")).status_code == 204
        problem(await us.http.get("/mirrors/eu"), 404, "mirror_not_found")


@edge_test
async def test_a_wrong_mirror_names_its_field(tmp_path: Path) -> None:
    async with http_node(tmp_path) as here:
        right = {"source": "quiver://127.0.0.1:1", "topics": ["orders"], "paused": True}
        for change, field in (
            ({"source": "nowhere"}, "source"),
            ({"topics": []}, "topics"),
            ({"topics": ["a b"]}, "topics"),
            ({"rename": "copy"}, "rename"),
            ({"rate": "fast"}, "rate"),
            ({"colour": "red"}, "colour"),
        ):
            refused = await here.http.put("/mirrors/eu", json={**right, **change})
            assert refused.status_code == 422, refused.text
            assert str(refused.json().get("field")).startswith(field), refused.text
        for field in ("source", "topics"):
            body = {name: value for name, value in right.items() if name != field}
            refused = await here.http.put("/mirrors/eu", json=body)
            assert (refused.status_code, refused.json()["field"]) == (422, field)
        assert (await here.http.put("/mirrors/eu", json=right)).status_code == 201
        wrong = await here.http.patch("/mirrors/eu", json={"source": "http://eu"})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "source")
        problem(
            await here.http.post("/promote", json={"topics": ["orders"]}), 404, "topic_not_found"
        )
