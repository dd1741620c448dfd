"""Settings as descriptions print them are taken back: in Python, over HTTP and on the command line."""

from __future__ import annotations

from pathlib import Path

import msgspec

import quiver
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node


def test_python_takes_the_names_that_it_prints(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("a", **{"retention.age": "2d", "visibility_s": 40, "segment_age": "1h"})
    described = q.describe_topic("a").settings
    assert (described.retention.age_s, described.segment_age_s) == (172_800, 3600)
    printed = msgspec.to_builtins(described)
    q.create_topic("b", **printed)
    assert q.describe_topic("b").settings == described
    settings = q.describe_subscription("a").settings
    assert settings.visibility_s == 40
    again = msgspec.to_builtins(settings) | {"topics": ["b"]}
    q.create_subscription("c", **again)
    q.alter_subscription("c", visibility_s=50, **{"backoff.max": "1m"})
    altered = q.describe_subscription("c").settings
    assert (altered.visibility_s, altered.backoff.max, altered.backoff.min) == (50, 60, 1)
    q.alter_topic("b", **{"retention.bytes": "1.5GB", "segment_age": "2h"})
    assert q.describe_topic("b").settings.retention.size == 1_500_000_000


@edge_test
async def test_http_takes_the_names_that_it_prints(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        body = {"retention.age": "2d", "visibility_s": "40s", "segment_age": "1h"}
        await node.queue("a", **body, sync_interval_ms="20ms")
        topic = (await node.http.get("/topics/a")).json()["settings"]
        assert (topic["retention"]["age"], topic["segment_age_s"]) == (172_800, 3600)
        assert topic["sync_interval_ms"] == 20
        assert (await node.http.put("/topics/b", json=topic)).status_code == 201
        queue = (await node.http.get("/queues/a")).json()["settings"]
        assert queue["visibility"] == 40
        made = await node.http.put("/subscriptions/c", json=queue)
        assert made.status_code == 201, made.text
        changes = {"retention.age": "3d", "visibility_s": 50}
        altered = await node.http.patch("/queues/a", json=changes)
        assert altered.json()["settings"]["visibility"] == 50
        assert (await node.http.get("/topics/a")).json()["settings"]["retention"]["age"] == 259_200
        altered = await node.http.patch("/topics/b", json={"retention.age": "1h"})
        assert altered.json()["settings"]["retention"]["age"] == 3600
