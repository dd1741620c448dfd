"""Why a message is a dead letter, and where it comes from: told wherever it can be looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quiver
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node
from tests.integration.http.test_http_stream import streaming
from tests.serving import Commands, Served, served


def die(q: quiver.Client) -> None:
    q.create_queue("jobs", max_deliveries=2, backoff={"min": 0})
    q.publish("jobs", b"poison")
    for error in ("first", "no such\x1b customer"):
        q.receive("jobs")[0].nack(error=error)
    assert q.describe_subscription("jobs").dead == 1


def require_facts(letter: quiver.DeadLetter | None) -> None:
    assert letter is not None
    origin = (letter.origin_topic, letter.origin_partition, letter.origin_offset)
    assert origin == ("jobs", 0, 0)
    assert (letter.origin_subscription, letter.deliveries) == ("jobs", 2)
    assert letter.last_error == "no such\x1b customer"
    assert letter.origin_time is not None
    assert letter.first_delivery is not None
    assert letter.last_delivery is not None
    assert letter.origin_time <= letter.first_delivery < letter.last_delivery


def test_messages_that_are_read_peeked_at_or_received_say_why_they_are_dead_letters(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    die(q)
    (peeked,) = q.peek("jobs.dlq")
    require_facts(peeked.dead_letter)
    require_facts(next(iter(q.read("jobs.dlq").messages())).dead_letter)
    status = q.message_status("jobs.dlq", peeked.id)
    assert status.message is not None
    require_facts(status.message.dead_letter)
    with q.consumer("jobs.dlq") as consumer:
        require_facts(next(iter(consumer)).dead_letter)
    q.publish("jobs", b"alive")
    assert q.peek("jobs")[0].dead_letter is None


@edge_test
async def test_http_and_the_socket_say_why(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await node.http.post("/queues/emails/messages", json={"message": "x"})
        [message] = await node.received()
        body = {"receipts": [message["receipt_handle"]], "error": "mailbox gone"}
        await node.http.post("/subscriptions/emails/reject", json=body)
        found = (await node.http.get("/subscriptions/emails.dlq/peek")).json()["messages"]
        found += await node.received("emails.dlq", visibility=0)
        async with streaming(node, "emails.dlq") as consumer:
            await consumer.say(type="credit", messages=1)
            found += await consumer.messages(1)
        assert len(found) == 3
        for one in found:
            assert one["dead_letter"]["last_error"] == "mailbox gone"
            assert one["dead_letter"]["origin_subscription"] == "emails"
            assert one["origin_identity"] == message["id"]


@pytest.mark.process
class TestCommands:
    @pytest.fixture(scope="class")
    @staticmethod
    def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
        with served(tmp_path_factory.mktemp("node")) as running:
            with quiver.Client(running.url) as client:
                die(client)
            yield running

    @pytest.fixture
    def commands(self, node: Served, capsys: pytest.CaptureFixture[str]) -> Commands:
        return Commands(node.url, capsys)

    @staticmethod
    def calls(commands: Commands) -> dict[str, tuple[str, ...]]:
        (letter,) = commands("peek", "jobs.dlq", "--json").json_lines
        return {
            "peek": ("peek", "jobs.dlq"),
            "tail": ("tail", "jobs.dlq"),
            "consume": ("consume", "jobs.dlq", "--limit", "1", "--no-ack", "--wait", "10s"),
            "message": ("message", "jobs.dlq", letter["id"]),
        }

    @pytest.mark.parametrize("name", ["peek", "tail", "consume", "message"])
    def test_json_has_every_fact(self, commands: Commands, name: str) -> None:
        told: Any = json.loads(commands(*self.calls(commands)[name], "--json").out)
        letter = told["message"]["dead_letter"] if name == "message" else told["dead_letter"]
        assert letter["last_error"] == "no such\x1b customer"
        assert (letter["origin_topic"], letter["origin_offset"]) == ("jobs", 0)
        assert (letter["origin_subscription"], letter["deliveries"]) == ("jobs", 2)
        assert letter["origin_time"] <= letter["first_delivery"] < letter["last_delivery"]

    @pytest.mark.parametrize("name", ["peek", "tail", "consume"])
    def test_a_line_says_why(self, commands: Commands, name: str) -> None:
        (line,) = commands(*self.calls(commands)[name]).out.splitlines()
        assert "(dead letter of jobs from jobs/0:0 after 2 deliveries: no such" in line
        assert "\x1b" not in line

    def test_the_page_of_a_message_says_why(self, commands: Commands) -> None:
        shown = commands(*self.calls(commands)["message"]).out
        facts = dict(line.rstrip().split(maxsplit=1) for line in shown.splitlines() if line)
        assert facts["last_error"].startswith("no such")
        assert facts["origin"] == "jobs/0:0"
        assert (facts["origin_subscription"], facts["deliveries"]) == ("jobs", "2")
        assert facts["first_delivery"] < facts["last_delivery"]
