"""HTTP, WebSocket and the console through any node; webhooks from one; reading nearby; figures."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import aiohttp
import pytest

import quiver
from tests.integration.cluster.nodes import Cluster, waited
from tests.integration.cluster.test_queues import drain, numbered


def call(url: str, method: str = "GET", body: Any = None) -> Any:
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        data = answer.read()
        return json.loads(data) if "json" in answer.headers.get("Content-Type", "") else data


@pytest.mark.parametrize("entry", ["leader", "follower"])
def test_a_queue_over_http(three: Cluster, entry: str) -> None:
    name = f"http-{entry}"
    three.client().create_queue(name)
    node = three.leader(name) if entry == "leader" else three.follower(name)
    messages = f"{three.http(node)}/queues/{name}/messages"
    call(messages, "POST", {"message": {"n": 1}, "priority": 7})
    received = call(f"{messages}?batch_size=10&wait=10")["messages"]
    assert [one["body"] for one in received] == [{"n": 1}]
    call(f"{messages}/{received[0]['receipt_handle']}", "DELETE")
    assert three.client().describe_subscription(name).leased == 0
    assert b"Quiver" in call(f"{three.http(node)}/console")


def test_a_program_at_one_node_gets_the_messages_of_all_nodes(three: Cluster) -> None:
    name = "http-of-all"
    three.client().create_queue(name, partitions=3)
    for partition in range(3):
        for _ in range(5):
            three.client().publish(name, b"x", partition=partition)
    messages = f"{three.http(0)}/queues/{name}/messages"
    received = [call(f"{messages}?batch_size=1&wait=0")["messages"] for _ in range(15)]
    assert [len(one) for one in received] == [1] * 15


def test_every_node_keeps_the_history_of_the_cluster(three: Cluster) -> None:
    name = "history"
    three.client().create_queue(name)
    three.client().publish_many(name, numbered(7))
    for node in (three.leader(name), three.follower(name)):
        path = f"{three.http(node)}/console/history?subscription={name}"

        def is_kept(path: str = path) -> bool:
            return bool(call(path)["subscriptions"].get("ready", [])[-1:] == [7])

        waited(is_kept, f"{node} has a point with all messages")


@pytest.mark.parametrize("entry", ["leader", "follower"])
def test_deliveries_over_a_websocket(three: Cluster, entry: str) -> None:
    name = f"ws-{entry}"
    three.client().create_queue(name)
    node = three.leader(name) if entry == "leader" else three.follower(name)
    three.client().publish_many(name, numbered(5))

    async def consume() -> list[str]:
        got: list[str] = []
        url = f"{three.http(node)}/subscriptions/{name}/stream"
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
            await socket.send_json({"type": "credit", "messages": 10})
            while len(got) < 5:
                told = await asyncio.wait_for(socket.receive_json(), 20)
                for one in told.get("messages", ()):
                    got.append(str(one["body"]))
                    await socket.send_json({"type": "ack", "receipts": [one["receipt_handle"]]})
        return got

    assert sorted(asyncio.run(consume())) == ["0", "1", "2", "3", "4"]
    waited(lambda: three.client().describe_subscription(name).leased == 0, "all are acknowledged")


class _Pushed(BaseHTTPRequestHandler):
    got: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.update(str(one["body"]) for one in body["messages"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_one_node_pushes_to_a_webhook(three: Cluster) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pushed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = three.client()
    url = f"http://127.0.0.1:{server.server_port}/"
    client.create_topic("pushed", partitions=3)
    client.create_subscription("pushed", topics=["pushed"], push={"url": url}, start="earliest")
    client.publish_many("pushed", [{"n": n} for n in range(30)])
    try:
        waited(lambda: len(_Pushed.got) == 30, "everything is pushed")
        waited(lambda: len(client.describe_subscription("pushed").consumers or ()) <= 1, "by one")
        assert set(_Pushed.got.values()) == {1}
    finally:
        client.delete_subscription("pushed")
        server.shutdown()
        server.server_close()


def test_a_reader_takes_the_replica_in_its_zone(three: Cluster) -> None:
    client = three.client()
    client.create_topic("near", partitions=3)
    client.publish_many("near", numbered(60))
    info = client.describe_topic("near")
    assert {one.zone for part in info.partitions for one in part.in_sync} == {
        "zone-0",
        "zone-1",
        "zone-2",
    }
    with quiver.Client(three.url, zone="zone-1") as near:

        def is_read_nearby() -> bool:
            """Not before the replica has heard how far the messages are committed."""
            before = _fetched(three)
            with near.read("near", read_from="nearest") as reader:
                got = [value.as_py() for batch in reader for value in batch["payload"]]
            assert sorted(got) == sorted(numbered(60))
            after = _fetched(three)
            return [index for index in range(3) if after[index] > before[index]] == [1]

        waited(is_read_nearby, "the node of the zone is read from, and no other")


def _fetched(three: Cluster) -> list[float]:
    counters = [three.client(index).describe_node().counters for index in range(3)]
    return [one.get("quiver_fetched_bytes_total", 0) for one in counters]


def test_replicas_that_are_missing_and_nodes_that_are_down_are_told(three: Cluster) -> None:
    client = three.client()
    client.create_topic("told")
    victim = three.leader("told")
    figures = lambda: "\n".join(  # noqa: E731
        three.client(index).metrics() for index in range(3) if index != victim
    )
    waited(lambda: "quiver_nodes_down 1" not in figures(), "no node is down")
    three.kill(victim)
    waited(lambda: 'quiver_replicas_missing{topic="told"} 1' in figures(), "one is missing")
    waited(lambda: "quiver_nodes_down 1" in figures(), "a node is down")
    assert 'quiver_leader_changes_total{topic="told"}' in figures()
    three.revive(victim)
    waited(lambda: 'quiver_replicas_missing{topic="told"} 1' not in figures(), "none is missing")


def test_the_topic_of_alerts_is_made_once(three: Cluster) -> None:
    for index in range(3):
        three.client(index).create_subscription(
            f"alerts-{index}", topics=["__alerts"], start="earliest"
        )
    topics = [one for one in three.client().list_topics() if one.name == "__alerts"]
    assert len(topics) == 1
    assert drain(three.client(), "alerts-0", 0) == []
