"""``quiver topic`` against a running node."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from quiver.cli.support.exit_codes import run
from tests.serving import Commands, Served, app, served, unused_address

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def quiver(node: Served, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    commands = Commands(node.url, capsys)
    yield commands
    for topic in commands("topic", "list", "--json").json:
        assert commands("topic", "delete", topic["name"], "--yes").code == 0


def test_a_topic_is_made_as_the_flags_say(quiver: Commands) -> None:
    made = quiver(
        *("topic", "create", "orders", "--partitions", "4", "--durability", "interval"),
        *("--sync-interval", "20ms", "--retention-age", "2h", "--retention-bytes", "10GB"),
        *("--retention-messages", "1000", "--retention-acked", "--compression", "zstd"),
        *("--message-bytes-max", "2MiB", "--acks", "leader"),
        *("--segment-bytes", "8MiB", "--segment-age", "1h", "--json"),
    )
    assert made.code == 0
    expected = {
        "partitions": 4,
        "durability": "interval",
        "sync_interval_ms": 20,
        "retention": {
            "age": 7200.0,
            "bytes": 10**10,
            "messages": 1000,
            "acked": True,
            "scope": "partition",
            "unread": None,
            "unread_age": None,
            "unread_bytes": None,
            "unread_overflow": "refuse",
        },
        "compression": "zstd",
        "message_bytes_max": 2 << 20,
        "acks": "leader",
        "segment_bytes": 8 << 20,
        "segment_age_s": 3600,
    }
    assert made.json["settings"] | expected == made.json["settings"]
    assert len(made.json["partitions"]) == 4


def test_what_was_done_is_told_on_standard_error(quiver: Commands) -> None:
    assert quiver("topic", "create", "orders") == (0, "", "created topic orders with 1 partition\n")
    assert quiver("topic", "delete", "orders", "-y") == (0, "", "deleted topic orders\n")


def test_a_topic_that_is_there_already(quiver: Commands) -> None:
    quiver("topic", "create", "orders")
    again = quiver("topic", "create", "orders")
    assert again.code == 1
    assert again.err.splitlines()[1].startswith("hint: --if-not-exists")
    found = quiver("topic", "create", "orders", "--if-not-exists")
    assert (found.code, found.err.split()[:2]) == (0, ["found", "topic"])
    new = quiver("topic", "create", "bills", "--if-not-exists")
    assert (new.code, new.err.split()[:2]) == (0, ["created", "topic"])
    assert quiver("topic", "create", "orders", "--if-not-exists", "--partitions", "2").code == 1


def test_a_name_that_no_topic_may_have_is_wrong_usage(quiver: Commands) -> None:
    told = quiver("topic", "create", "a/b")
    assert told.code == 2
    assert told.err.startswith("error: 'a/b' is not a topic name")


def test_topics_are_listed_by_name(quiver: Commands) -> None:
    for name in ("b", "a"):
        quiver("topic", "create", name, "--retention-age", "1h30m", "--retention-bytes", "1GB")
    assert [topic["name"] for topic in quiver("topic", "list", "--json").json] == ["a", "b"]
    header, *rows = quiver("topic", "list").out.splitlines()
    assert header.split()[0] == "TOPIC"
    assert [row.split()[0] for row in rows] == ["a", "b"]
    assert "1h30m, 1GB" in rows[0]


def test_quivers_own_topics_are_listed_when_asked_for(quiver: Commands) -> None:
    quiver("topic", "create", "orders")
    assert quiver("subscription", "create", "pager", "--topic", "__alerts").code == 0
    assert [topic["name"] for topic in quiver("topic", "list", "--json").json] == ["orders"]
    everything = quiver("topic", "list", "--all", "--json").json
    assert [topic["name"] for topic in everything] == ["__alerts", "orders"]
    assert quiver("subscription", "delete", "pager", "--yes").code == 0


def test_no_topics_are_an_empty_list(quiver: Commands) -> None:
    assert quiver("topic", "list", "--json").json == []
    told = quiver("topic", "list")
    assert (told.code, told.out) == (0, "")
    assert "quiver topic create" in told.err


def test_a_description_shows_settings_and_partitions(quiver: Commands) -> None:
    quiver("topic", "create", "orders", "--partitions", "2", "--message-bytes-max", "1500")
    quiver("publish", "orders", "x", "y")
    settings, partitions = quiver("topic", "describe", "orders").out.split("\n\n")
    rows = {line.split()[0]: line.split()[1:] for line in settings.splitlines()}
    assert rows["TOPIC"] == ["orders"]
    assert rows["durability"] == ["fsync"]
    assert rows["retention"] == ["7d"]
    assert rows["message_bytes_max"] == ["1500"]
    assert len(partitions.splitlines()) == 3
    described = quiver("topic", "describe", "orders", "--json").json
    assert sum(each["next_offset"] for each in described["partitions"]) == 2


def test_altering_changes_only_what_is_given(quiver: Commands) -> None:
    quiver("topic", "create", "orders", "--retention-bytes", "1GB", "--acks", "all")
    altered = quiver("topic", "alter", "orders", "--retention-age", "none", "--json").json
    assert altered["settings"]["retention"]["age"] is None
    assert altered["settings"]["retention"]["bytes"] == 10**9
    assert altered["settings"]["acks"] == "all"
    assert quiver("topic", "describe", "orders", "--json").json["settings"] == altered["settings"]


def test_an_alteration_out_of_bounds_is_wrong_usage(quiver: Commands) -> None:
    quiver("topic", "create", "orders")
    told = quiver("topic", "alter", "orders", "--sync-interval", "2h")
    assert told.code == 2
    assert "--sync-interval must be between 1ms and 1m, not '2h'" in told.err


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, []), ("n\n", 1, ["orders"])])
def test_deleting_asks_first(
    quiver: Commands,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    left: list[str],
) -> None:
    quiver("topic", "create", "orders")
    quiver("publish", "orders", "x")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    told = quiver("topic", "delete", "orders")
    assert told.code == code
    assert told.err.startswith("Delete topic orders and its messages (1)?")
    assert [topic["name"] for topic in quiver("topic", "list", "--json").json] == left


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "describe", "none"],
        ["topic", "delete", "none", "--yes"],
        ["topic", "delete", "none"],
        ["topic", "alter", "none", "--acks", "all"],
        ["publish", "none", "x"],
        ["tail", "none"],
        ["tail", "none", "--follow"],
        ["bench", "publish", "--topic", "none"],
    ],
    ids=" ".join,
)
def test_a_topic_that_is_not_there(quiver: Commands, command: list[str]) -> None:
    assert quiver(*command) == (
        1,
        "",
        "error: there is no topic named 'none'\nhint: list the topics with: quiver topic list\n",
    )


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "create", "a"],
        ["publish", "a", "x"],
        ["tail", "a"],
        ["bench", "latency"],
    ],
    ids=" ".join,
)
def test_a_node_that_is_not_there(quiver: Commands, command: list[str]) -> None:
    address = unused_address()
    told = quiver(*command, url=f"quiver://{address}")
    assert (told.code, told.out) == (3, "")
    error, hint = told.err.splitlines()
    assert error.startswith(f"error: cannot connect to {address}: ")
    assert "quiver serve" in hint


def test_the_address_may_stand_after_the_command(quiver: Commands) -> None:
    nowhere = f"quiver://{unused_address()}"
    assert quiver("topic", "list", "--url", quiver.url, url=nowhere).code == 0
    assert quiver("topic", "list", "--url", "http://x").code == 2


def test_the_address_may_come_from_the_environment(
    quiver: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIVER_URL", quiver.url)
    assert run(app, ["topic", "list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
