"""``quiver publish`` and ``quiver tail`` against a running node."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Commands, Served, eventually, served

pytestmark = pytest.mark.process

WAIT_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def quiver(node: Served, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """Commands, and a topic ``orders`` with two partitions."""
    commands = Commands(node.url, capsys)
    assert (
        commands("topic", "create", "orders", "--partitions", "2", "--durability", "os").code == 0
    )
    yield commands
    assert commands("topic", "delete", "orders", "--yes").code == 0


def stored(quiver: Commands, *flags: str) -> list[Any]:
    """Every message of the topic, as ``tail --json`` shows it."""
    told = quiver("tail", "orders", "--from", "earliest", "--json", *flags)
    assert told.code == 0, told.err
    return told.json_lines


def payloads(quiver: Commands, *flags: str) -> list[Any]:
    return sorted((line["payload"] for line in stored(quiver, *flags)), key=str)


def give_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


class TestPublish:
    def test_one_message_with_all_it_may_have(self, quiver: Commands) -> None:
        told = quiver(
            *("publish", "orders", '{"id": 1}', "--key", "customer-7", "--priority", "9"),
            *("--header", "source=web", "-H", "a=b=c", "--delay", "1h", "--acks", "leader"),
        )
        assert told == (0, "", "published 1 message to orders\n")
        (message,) = stored(quiver)
        assert message["payload"] == {"id": 1}
        assert message["encoding"] == "json"
        assert message["key"] == "customer-7"
        assert message["headers"] == {"source": "web", "a": "b=c"}
        assert message["priority"] == 9
        assert message["deliver_at"] > message["timestamp"]

    def test_each_argument_is_a_message(self, quiver: Commands) -> None:
        assert quiver("publish", "orders", "x", "y", "z").code == 0
        assert payloads(quiver) == ["x", "y", "z"]

    def test_each_line_of_a_file_is_a_message(self, quiver: Commands, tmp_path: Path) -> None:
        path = tmp_path / "lines"
        path.write_bytes(b"x\n\ny\r\n\xff\n")
        told = quiver("publish", "orders", "--file", str(path))
        assert told.err.startswith("published 3 messages to orders in ")
        assert payloads(quiver) == ["/w==", "x", "y"]

    @pytest.mark.parametrize("flags", [["-"], ["--file", "-"], []], ids=str)
    def test_lines_may_come_from_standard_input(
        self, quiver: Commands, monkeypatch: pytest.MonkeyPatch, flags: list[str]
    ) -> None:
        give_input(monkeypatch, b"x\ny\n")
        assert quiver("publish", "orders", *flags).code == 0
        assert payloads(quiver) == ["x", "y"]

    def test_a_terminal_is_not_read_by_mistake(
        self, quiver: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        told = quiver("publish", "orders")
        assert told.code == 2
        assert told.err.startswith("error: there is nothing to publish: give a PAYLOAD or --file")

    def test_keys_may_come_from_a_json_field(
        self, quiver: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        give_input(monkeypatch, b'{"id": "a"}\n{"id": 7}\n{}\n')
        assert quiver("publish", "orders", "--key-field", "id").code == 0
        assert sorted((line["key"] for line in stored(quiver)), key=str) == ["7", None, "a"]

    def test_positions_are_printed_one_by_one(self, quiver: Commands) -> None:
        told = quiver("publish", "orders", "x", "y", "--key", "k", "--json")
        first, second = told.json_lines
        assert told.err == ""
        assert first["partition"] == second["partition"]
        assert (first["offset"], second["offset"]) == (0, 1)
        assert [first["id"], second["id"]] == [line["id"] for line in stored(quiver)]

    def test_a_mistake_half_way_tells_how_far_it_came(
        self, quiver: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        give_input(monkeypatch, b'{"id": 1}\n{"id": 2}\nno json\n')
        told = quiver("publish", "orders", "--key-field", "id")
        assert told.code == 1
        summary, error = told.err.splitlines()
        assert summary.startswith("published 2 messages to orders")
        assert error.startswith("error: line 3 has no key: it is not JSON")
        assert len(stored(quiver)) == 2

    def test_a_message_that_is_too_large_is_one_clear_line(self, quiver: Commands) -> None:
        quiver("topic", "alter", "orders", "--message-bytes-max", "10")
        told = quiver("publish", "orders", "x" * 11)
        assert told.code == 1
        assert len(told.err.splitlines()) == 1
        assert "11 bytes" in told.err

    def test_a_file_that_is_not_there(self, quiver: Commands) -> None:
        told = quiver("publish", "orders", "--file", "/nowhere")
        assert told == (1, "", "error: /nowhere: No such file or directory\n")


class TestPublishAgain:
    def test_a_rerun_stores_only_what_is_missing(self, quiver: Commands, tmp_path: Path) -> None:
        path = tmp_path / "lines"
        lines = [f"line {number}" for number in range(1, 101)]
        for count, expected in ((40, 40), (100, 60), (100, 0)):
            path.write_text("\n".join(lines[:count]))
            told = quiver("publish", "orders", "--file", str(path), "--producer-name", "loader")
            assert told.err.startswith(f"published {expected} messages to orders")
        assert payloads(quiver) == sorted(lines)

    def test_a_rerun_says_which_were_stored_before(self, quiver: Commands) -> None:
        for duplicate in (False, True):
            told = quiver("publish", "orders", "x", "--producer-name", "once", "--json")
            assert [line["duplicate"] for line in told.json_lines] == [duplicate]

    def test_an_interrupted_run_is_finished_by_the_next(self, quiver: Commands) -> None:
        lines = [f'{{"id": {number}}}' for number in range(500)]
        flags = ("publish", "orders", "-", "--producer-name", "loader", "--key-field", "id")
        child = quiver.start(*flags, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdin is not None
        child.stdin.write("\n".join(lines[:200]).encode() + b"\n")
        child.stdin.flush()
        eventually(lambda: len(stored(quiver)) > 100, "the first lines are stored")
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=WAIT_S)
        assert child.returncode == 130
        assert b"Traceback" not in error
        again = quiver.start(*flags, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        again.communicate("\n".join(lines).encode(), timeout=WAIT_S)
        assert again.returncode == 0
        assert sorted(line["payload"]["id"] for line in stored(quiver)) == list(range(500))


class TestTail:
    def test_without_a_beginning_it_shows_the_newest_of_each_partition(
        self, quiver: Commands
    ) -> None:
        quiver("publish", "orders", "--key", "k", *map(str, range(25)))
        lines = quiver("tail", "orders").out.splitlines()
        assert [line.split("  ")[3] for line in lines] == [str(n) for n in range(15, 25)]

    def test_it_begins_where_it_is_told(self, quiver: Commands) -> None:
        quiver("publish", "orders", "--key", "k", *map(str, range(5)))
        partition = stored(quiver)[0]["partition"]
        where = ("--partition", str(partition))

        def shown(start: str) -> int:
            told = quiver("tail", "orders", "--json", "--from", start, *where)
            assert told.code == 0, told.err
            return len(told.json_lines)

        assert shown("earliest") == 5
        assert shown("3") == 2
        assert shown("-1h") == 5
        assert shown("2026-01-01T00:00") == 5
        assert shown("latest") == 0

    def test_only_one_partition_key_or_number_is_shown(self, quiver: Commands) -> None:
        for key in ("a", "b", "c", "d"):
            quiver("publish", "orders", "--key", key, "x", "y")
        assert {line["key"] for line in stored(quiver, "--key", "b")} == {"b"}
        assert len(stored(quiver, "--limit", "3")) == 3
        assert len(stored(quiver, "--key", "b", "--limit", "1")) == 1
        assert {line["partition"] for line in stored(quiver, "--partition", "1")} <= {1}

    def test_a_partition_that_is_not_there(self, quiver: Commands) -> None:
        for flags in ([], ["--from", "earliest"], ["--follow"]):
            told = quiver("tail", "orders", "--partition", "7", *flags)
            assert told == (1, "", "error: topic 'orders' has partitions 0 to 1, not 7\n")

    def test_an_offset_that_is_not_there(self, quiver: Commands) -> None:
        told = quiver("tail", "orders", "--from", "9")
        assert told.code == 1
        assert told.err.splitlines()[1].startswith("hint: use earliest for the first message")

    def test_following_shows_messages_as_they_come(self, quiver: Commands) -> None:
        quiver("publish", "orders", "before")
        child = quiver.start("tail", "orders", "-f", "--json", "-n", "3", stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["payload"] == "before"
        quiver("publish", "orders", "first")
        assert json.loads(child.stdout.readline())["payload"] == "first"
        quiver("publish", "orders", "second", "third")
        rest, _ = child.communicate(timeout=WAIT_S)
        assert json.loads(rest)["payload"] in ("second", "third")
        assert child.returncode == 0

    def test_following_ends_when_interrupted(self, quiver: Commands) -> None:
        quiver("publish", "orders", "x")
        child = quiver.start(
            "tail", "orders", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=WAIT_S)
        assert (child.returncode, error) == (130, b"")

    @pytest.mark.parametrize("flags", [[], ["--follow"]], ids=["ending", "following"])
    def test_a_reader_that_has_seen_enough_is_no_error(
        self, quiver: Commands, flags: list[str]
    ) -> None:
        quiver("publish", "orders", "--key", "k", *(["x" * 10_000] * 100))
        child = quiver.start(
            *("tail", "orders", "--from", "earliest", *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr is not None
        error = child.stderr.read()
        child.stderr.close()
        assert (child.wait(WAIT_S), error) == (0, b"")

    def test_following_goes_on_after_the_node_is_back(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with served(tmp_path) as first:
            quiver = Commands(first.url, capsys)
            quiver("topic", "create", "orders")
            quiver("publish", "orders", "x")
            child = quiver.start("tail", "orders", "-f", "-n", "2", stdout=subprocess.PIPE)
            try:
                assert child.stdout is not None
                assert child.stdout.readline().rstrip().endswith(b"x")
                native = first.ready["native"]
                assert first.stop() == 0
                with served(tmp_path, "--native", native):
                    assert quiver("publish", "orders", "y").code == 0
                    rest, _ = child.communicate(timeout=WAIT_S)
                assert rest.rstrip().endswith(b"y")
                assert child.returncode == 0
            finally:
                child.kill()
                child.communicate()
