"""``quiver consume``, ``peek``, ``message``, ``cancel``, ``purge`` and ``redrive`` on a running node."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from quiver.client import Client
from tests.serving import Commands, Served, eventually, served

pytestmark = pytest.mark.process

WAIT_S = 60.0
NOW = ("--wait", "0s")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def quiver(node: Served, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """Commands, and a queue ``emails`` that gives up on a message after two deliveries."""
    commands = Commands(node.url, capsys)
    settings = ("--max-deliveries", "2", "--backoff-min", "0s", "--durability", "os")
    made = commands("queue", "create", "emails", *settings)
    assert made.code == 0, made.err
    yield commands
    for noun in ("subscription", "queue", "topic"):
        for one in reversed(commands(noun, "list", "--json").json):
            assert commands(noun, "delete", one["name"], "--yes").code == 0


def depth(quiver: Commands, name: str = "emails") -> dict[str, Any]:
    described: dict[str, Any] = quiver("queue", "describe", name, "--json").json
    return {state: described[state] for state in ("ready", "delayed", "leased", "dead")}


def left(quiver: Commands, name: str = "emails", *flags: str) -> list[Any]:
    """The payloads that are pending."""
    return [line["payload"] for line in quiver("peek", name, "--json", *flags).json_lines]


def pending(quiver: Commands) -> int:
    """What is in nobody's hands; what was given back is ready when it is next looked for."""
    now = depth(quiver)
    assert now["leased"] == 0
    return int(now["ready"] + now["delayed"])


def publish_large(node: Served) -> None:
    """50 messages in one batch, which no pipe holds."""
    with Client(node.url) as client:
        client.publish_many("emails", pa.table({"payload": [b"x" * 10_000] * 50}))


def fail(quiver: Commands, error: str) -> None:
    """Let everything that is ready become a dead letter."""
    told = quiver("consume", "emails", "--nack", "--error", error, *NOW)
    assert told.code == 0, told.err


class TestConsume:
    def test_what_is_printed_is_acknowledged(self, quiver: Commands) -> None:
        quiver("publish", "emails", "x", "y", "--key", "k", "--header", "n=v")
        told = quiver("consume", "emails", *NOW)
        assert (told.code, told.err) == (0, "")
        shown = [line.split("  ")[1:] for line in told.out.splitlines()]
        assert shown == [
            ["emails/0:0", "k", "x", "[n=v]"],
            ["emails/0:1", "k", "y", "[n=v]"],
        ]
        assert depth(quiver) == {"ready": 0, "delayed": 0, "leased": 0, "dead": 0}
        assert quiver("consume", "emails", *NOW) == (0, "", "")

    def test_json_tells_the_topic_and_the_delivery(self, quiver: Commands) -> None:
        quiver("publish", "emails", '{"to": "ada"}')
        quiver("consume", "emails", "--nack", "-n", "1")
        (line,) = quiver("consume", "emails", "--json", *NOW).json_lines
        assert (line["topic"], line["deliveries"]) == ("emails", 2)
        assert (line["payload"], line["offset"]) == ({"to": "ada"}, 0)

    def test_it_takes_no_more_than_the_limit(self, quiver: Commands) -> None:
        quiver("publish", "emails", *map(str, range(250)))
        told = quiver("consume", "emails", "--limit", "120", "--json")
        assert [line["payload"] for line in told.json_lines] == list(range(120))
        assert depth(quiver)["leased"] == 0
        assert left(quiver, "emails", "-n", "1") == [120]

    def test_it_ends_when_nothing_came_for_a_while(self, quiver: Commands) -> None:
        assert quiver("consume", "emails", "--wait", "50ms") == (0, "", "")

    def test_without_acknowledgement_everything_is_given_back(self, quiver: Commands) -> None:
        quiver("publish", "emails", *map(str, range(150)))
        for _ in range(3):
            told = quiver("consume", "emails", "--no-ack", "--json")
            assert told.code == 0, told.err
            lines = told.json_lines
            assert [line["payload"] for line in lines] == list(range(150))
            assert {line["deliveries"] for line in lines} == {1}
            assert pending(quiver) == 150

    def test_looking_ends_before_the_leases_do(self, quiver: Commands) -> None:
        """Else what was only looked at would count as failed."""
        quiver("publish", "emails", "x")
        told = quiver("consume", "emails", "--no-ack", "--wait", "1h", "--visibility", "3s")
        assert len(told.out.splitlines()) == 1
        assert pending(quiver) == 1
        (line,) = quiver("consume", "emails", "--json", *NOW).json_lines
        assert line["deliveries"] == 1

    def test_what_is_nacked_is_tried_again_and_then_a_dead_letter(self, quiver: Commands) -> None:
        quiver("publish", "emails", "x")
        told = quiver("consume", "emails", "--nack", "--error", "mailbox full", *NOW, "--json")
        assert [line["deliveries"] for line in told.json_lines] == [1, 2]
        assert left(quiver, "emails.dlq") == ["x"]
        assert quiver("redrive", "emails", "--filter", "last_error = 'mailbox full'").code == 0
        assert left(quiver) == ["x"]

    def test_a_nacked_message_may_rest(self, quiver: Commands) -> None:
        quiver("publish", "emails", "x")
        quiver("consume", "emails", "--nack", "--delay", "1h", *NOW)
        assert depth(quiver) == {"ready": 0, "delayed": 1, "leased": 0, "dead": 0}

    def test_what_is_rejected_is_a_dead_letter_at_once(self, quiver: Commands) -> None:
        quiver("publish", "emails", "x")
        told = quiver("consume", "emails", "--reject", "--error", "mailbox gone", *NOW, "--json")
        assert [line["deliveries"] for line in told.json_lines] == [1]
        assert left(quiver, "emails.dlq") == ["x"]
        assert quiver("redrive", "emails", "--filter", "last_error = 'mailbox gone'").code == 0
        assert left(quiver) == ["x"]

    @pytest.mark.parametrize("guarantee", ["at-most-once", "exactly-once"])
    def test_every_guarantee_can_be_consumed(self, quiver: Commands, guarantee: str) -> None:
        quiver("queue", "create", "other", "--guarantee", guarantee)
        quiver("publish", "other", "x", "y")
        told = quiver("consume", "other", *NOW)
        assert (told.code, told.err, len(told.out.splitlines())) == (0, "", 2)
        assert quiver("consume", "other", *NOW).out == ""

    def test_a_member_of_a_group_leaves_it_at_the_end(self, quiver: Commands) -> None:
        quiver("queue", "create", "ledger", "--ordering", "partition", "--partitions", "2")
        quiver("publish", "ledger", *map(str, range(10)))
        for _ in range(2):
            told = quiver("consume", "ledger", "-n", "5")
            assert (told.code, len(told.out.splitlines())) == (0, 5)
            assert quiver("queue", "describe", "ledger", "--json").json["members"] == {}


class TestInterruption:
    def test_it_prints_messages_as_they_come_until_interrupted(self, quiver: Commands) -> None:
        child = quiver.start("consume", "emails", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        for payload in ("first", "second"):
            quiver("publish", "emails", payload)
            assert child.stdout.readline().decode().split()[-1] == payload
        eventually(lambda: left(quiver) == [], "what was printed is acknowledged")
        child.send_signal(signal.SIGINT)
        rest, error = child.communicate(timeout=WAIT_S)
        assert (child.returncode, rest, error) == (130, b"", b"")
        quiver("publish", "emails", "third")
        assert left(quiver, "emails", "--state", "ready") == ["third"]

    @pytest.mark.parametrize("flags", [[], ["--no-ack", "--wait", "10s"]], ids=["ack", "no-ack"])
    def test_what_was_not_printed_is_given_back(
        self, quiver: Commands, node: Served, flags: list[str]
    ) -> None:
        """The child is stuck in printing to a pipe that nobody reads: nothing is settled yet."""
        publish_large(node)
        child = quiver.start(
            "consume", "emails", *flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        eventually(lambda: depth(quiver)["leased"] == 50, "the child has received them")
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=WAIT_S)
        assert (child.returncode, error) == (130, b"")
        assert pending(quiver) == 50
        assert quiver("consume", "emails", "-n", "1", "--json").json["deliveries"] == 1

    @pytest.mark.parametrize("lines_read", [0, 1])
    def test_a_reader_that_has_seen_enough_is_no_error_and_loses_nothing(
        self,
        quiver: Commands,
        node: Served,
        monkeypatch: pytest.MonkeyPatch,
        lines_read: int,
    ) -> None:
        """Also if all that is to be printed still fits into the buffer of the output."""
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
        if lines_read:
            publish_large(node)
        else:
            quiver("publish", "emails", "x")
        child = quiver.start(
            "consume", "emails", *NOW, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stderr is not None
        for _ in range(lines_read):
            child.stdout.readline()
        child.stdout.close()
        error = child.stderr.read()
        child.stderr.close()
        assert (child.wait(WAIT_S), error) == (0, b"")
        assert pending(quiver) == (50 if lines_read else 1)

    def test_a_lease_that_ended_meanwhile_is_one_clear_line(
        self, quiver: Commands, node: Served
    ) -> None:
        publish_large(node)
        child = quiver.start(
            *("consume", "emails", "--limit", "50", "--visibility", "500ms"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline()
        eventually(lambda: depth(quiver)["leased"] == 0, "its lease has ended")
        _, told = child.communicate(timeout=WAIT_S)
        assert child.returncode == 1
        error, hint = told.splitlines()
        assert error.startswith(b"error: some leases had ended")
        assert b"--visibility" in hint


class TestPeek:
    def test_messages_are_shown_with_their_state(self, quiver: Commands, node: Served) -> None:
        quiver("publish", "emails", "held", "ready")
        quiver("publish", "emails", "later", "--delay", "1h")
        with Client(node.url) as client:
            client.receive("emails", 1)
            lines = quiver("peek", "emails").out.splitlines()
            shown = [line.split("  ")[1:] for line in lines]
            assert shown == [
                ["emails/0:0", "leased", "1 delivery", "-", "held"],
                ["emails/0:1", "ready", "0 deliveries", "-", "ready"],
                ["emails/0:2", "delayed", "0 deliveries", "-", "later"],
            ]
            assert left(quiver, "emails", "--state", "ready") == ["ready"]
            assert left(quiver, "emails", "--state", "leased", "--state", "delayed") == [
                "held",
                "later",
            ]
            (first, *_) = quiver("peek", "emails", "--json").json_lines
            assert (first["topic"], first["state"], first["deliveries"]) == ("emails", "leased", 1)
        assert len(left(quiver, "emails", "--limit", "2")) == 2

    def test_an_empty_queue_says_so(self, quiver: Commands) -> None:
        assert quiver("peek", "emails") == (0, "", "emails has no pending messages\n")
        assert quiver("peek", "emails", "--json") == (0, "", "")
        told = quiver("peek", "emails", "--state", "leased")
        assert told == (0, "", "emails has no messages in this state\n")


class TestMessage:
    def test_where_it_stands_with_each_subscription(self, quiver: Commands) -> None:
        quiver("subscription", "create", "audit", "-t", "emails")
        told = quiver("publish", "emails", "x", "--key", "k", "--json")
        one = told.json["id"]
        quiver("consume", "emails", *NOW)
        status = quiver("message", "emails", one, "--json").json
        assert (status["topic"], status["partition"], status["offset"]) == ("emails", 0, 0)
        assert (status["message"]["id"], status["message"]["payload"]) == (one, "x")
        states = {each["subscription"]: each["state"] for each in status["subscriptions"]}
        assert states == {"audit": "pending", "emails": "acknowledged"}
        about, subscriptions = quiver("message", "emails", one).out.split("\n\n")
        rows = dict(line.split(maxsplit=1) for line in about.splitlines())
        assert rows["MESSAGE"].strip() == one
        assert (rows["place"].strip(), rows["payload"].strip()) == ("emails/0:0", "x")
        assert "audit" in subscriptions

    def test_until_when_it_is_delayed(self, quiver: Commands) -> None:
        one = quiver("publish", "emails", "x", "--delay", "1h", "--json").json
        (status,) = quiver("message", "emails", one["id"], "--json").json["subscriptions"]
        assert status["state"] == "delayed"
        assert status["until"] > one["timestamp"]
        assert status["until"] in quiver("message", "emails", one["id"]).out

    def test_a_topic_without_subscriptions(self, quiver: Commands) -> None:
        quiver("topic", "create", "lonely")
        one = quiver("publish", "lonely", "x", "--json").json["id"]
        told = quiver("message", "lonely", one)
        assert (told.code, told.err) == (0, "lonely has no subscriptions\n")

    def test_an_id_that_is_not_there(self, quiver: Commands) -> None:
        for command in ("message", "cancel"):
            told = quiver(command, "emails", "0" * 32)
            assert told == (1, "", f"error: 'emails' has no message '{'0' * 32}'\n")


class TestCancel:
    def test_scheduled_messages_are_never_delivered(self, quiver: Commands) -> None:
        told = quiver("publish", "emails", "x", "y", "--delay", "1h", "--json")
        first, second = (line["id"] for line in told.json_lines)
        assert quiver("cancel", "emails", first) == (0, "", "cancelled 1 message\n")
        assert left(quiver) == ["y"]
        told = quiver("cancel", "emails", first, second)
        assert told == (0, "", "cancelled 1 message; 1 not scheduled\n")
        assert quiver("cancel", "emails", first, second, "--json").json == {"messages": 0}
        assert left(quiver) == []


class TestPurge:
    def test_it_says_how_many(self, quiver: Commands) -> None:
        quiver("publish", "emails", "x", "y")
        quiver("publish", "emails", "z", "--priority", "9")
        told = quiver("purge", "emails", "--filter", "priority >= 5", "--yes")
        assert told == (0, "", "purged 1 message of emails\n")
        assert left(quiver) == ["x", "y"]
        assert quiver("purge", "emails", "--yes", "--json").json == {"messages": 2}
        assert left(quiver) == []

    @pytest.mark.parametrize(("answer", "code", "count"), [("y\n", 0, 0), ("n\n", 1, 2)])
    @pytest.mark.parametrize(
        ("flags", "question"),
        [
            ([], "Purge 2 pending messages of emails?"),
            (
                ["--filter", "priority = 4"],
                "Purge the matching ones of 2 pending messages of emails?",
            ),
        ],
        ids=["all", "filter"],
    )
    def test_it_asks_first(
        self,
        quiver: Commands,
        monkeypatch: pytest.MonkeyPatch,
        flags: list[str],
        question: str,
        answer: str,
        code: int,
        count: int,
    ) -> None:
        quiver("publish", "emails", "x", "y")
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        told = quiver("purge", "emails", *flags)
        assert told.code == code
        assert told.err.startswith(question)
        assert len(left(quiver)) == count


class TestRedrive:
    @pytest.fixture
    def quiver(self, quiver: Commands) -> Commands:
        """And five dead letters: three of ``card`` and two of ``mail``."""
        for error, payloads in (("card", "abc"), ("mail", "de")):
            quiver("publish", "emails", *payloads)
            fail(quiver, error)
        assert sorted(left(quiver, "emails.dlq")) == [*"abcde"]
        return quiver

    def test_a_dry_run_only_counts(self, quiver: Commands) -> None:
        told = quiver("redrive", "emails", "--dry-run")
        assert told == (0, "", "would send 5 dead letters back\n")
        flags = ("--dry-run", "--filter", "last_error = 'mail'")
        assert quiver("redrive", "emails", *flags, "--json").json == {"messages": 2}
        told = quiver("redrive", "emails", *flags, "--limit", "1")
        assert told.err == "would send 1 dead letter back\n"
        assert left(quiver) == []

    def test_letters_go_back_as_the_flags_say(self, quiver: Commands) -> None:
        told = quiver("redrive", "emails", "--filter", "last_error = 'mail'")
        assert told == (0, "", "sent 2 dead letters back\n")
        assert left(quiver) == ["d", "e"]
        told = quiver("redrive", "emails", "--limit", "1", "--rate", "1000")
        assert told == (0, "", "sent 1 dead letter back\n")
        assert left(quiver) == ["d", "e", "a"]
        assert quiver("redrive", "emails.dlq", "--json").json == {"messages": 2}
        assert left(quiver, "emails.dlq") == []

    def test_letters_may_go_elsewhere(self, quiver: Commands) -> None:
        quiver("queue", "create", "office")
        told = quiver("redrive", "emails", "--to", "office")
        assert told == (0, "", "sent 5 dead letters to office\n")
        assert sorted(left(quiver, "office")) == [*"abcde"]
        told = quiver("redrive", "emails", "--to", "nowhere")
        assert told.code == 1
        assert told.err.splitlines()[0] == "error: there is no topic named 'nowhere'"

    def test_an_interruption_tells_how_many_had_gone(self, quiver: Commands) -> None:
        child = quiver.start("redrive", "emails", "--rate", "0.5", stderr=subprocess.PIPE)
        eventually(lambda: len(left(quiver)) >= 2, "one more letter is sent after the first")
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=WAIT_S)
        assert child.returncode == 130
        told = re.fullmatch(r"sent at least (\d) dead letters? before the error\n", error.decode())
        assert told is not None, error

        def letters() -> set[str]:
            return {*left(quiver, "emails.dlq")}

        # The one that was being sent when the command left is acknowledged a moment later.
        eventually(lambda: not letters() & {*left(quiver)}, "each is in one of the queues")
        assert 1 <= int(told[1]) <= len(left(quiver)) < 5
        assert sorted([*left(quiver), *letters()]) == [*"abcde"]

    def test_on_a_terminal_there_is_a_progress_bar(self, quiver: Commands) -> None:
        ours, theirs = pty.openpty()
        child = quiver.start("redrive", "emails", stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # the child has closed the terminal
        os.close(ours)
        assert child.wait(WAIT_S) == 0
        assert b"redriving" in shown
        assert b"5/5" in shown
        assert b"sent 5 dead letters back" in shown
