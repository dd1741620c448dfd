"""``quiver mirror``, as an operator of two clusters meets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver.cli.support.exit_codes import ExitCode, run
from tests.serving import Commands, Served, app, eventually, served, unused_address

pytestmark = pytest.mark.process

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "source") as node:
        yield node


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "target") as node:
        yield node


def lag(quiver: Commands, mirror: str) -> int | None:
    """How many messages the copies lack; ``None`` before the source has answered."""
    info = quiver("mirror", "describe", mirror, "--json").json
    lags = [one["lag_messages"] for topic in info["topics"] for one in topic["partitions"]]
    return None if not lags or None in lags else sum(lags)


def wait_copied(quiver: Commands, mirror: str, topic: str, messages: int) -> None:
    def is_copied() -> bool:
        found = quiver("topic", "describe", topic, "--json")
        if found.code:
            return False
        ends = [one["next_offset"] for one in found.json["partitions"]]
        return sum(ends) == messages and lag(quiver, mirror) == 0

    eventually(is_copied, f"{messages} messages of {topic} are copied")


def test_a_mirror_is_added_watched_paused_and_removed(
    source: Served, target: Served, capsys: Capture
) -> None:
    there, here = Commands(source.url, capsys), Commands(target.url, capsys)
    assert "there are no mirrors yet" in here("mirror", "list").err
    there("topic", "create", "orders.eu", "--partitions", "2")
    there("topic", "create", "other")
    there("publish", "orders.eu", "1", "2", "3")
    added = here("mirror", "add", "eu", "--from", source.url, "--topics", "orders.*")
    assert (added.code, added.err) == (0, "added mirror eu\n")
    wait_copied(here, "eu", "orders.eu", 3)
    assert here("topic", "describe", "other").code == ExitCode.FAILED

    listed = here("mirror", "list").out.splitlines()
    assert listed[0].split() == [
        *("MIRROR", "STATE", "TOPICS", "COPIES", "LAG", "LAG", "BYTES", "LAG", "TIME", "SOURCE"),
    ]
    assert listed[1].split()[:5] == ["eu", "copying", "orders.*", "1", "0"]
    described = here("mirror", "describe", "eu").out
    assert source.url in described
    copies = [line.split() for line in described.splitlines()[-2:]]
    assert [(one[:2], one[4], one[-1]) for one in copies] == [
        (["orders.eu", "0"], "0", "copying"),
        (["orders.eu", "1"], "0", "copying"),
    ]
    assert sum(int(one[2]) for one in copies) == 3

    top = here("top", "--json", "--interval", "500ms").json
    assert [(one["name"], one["lag_messages"]) for one in top["mirrors"]] == [("eu", 0)]

    refused = here("publish", "orders.eu", "4")
    assert refused.code == ExitCode.FAILED
    assert "mirror 'eu'" in refused.err

    assert here("mirror", "pause", "eu").err == "paused mirror eu\n"
    eventually(
        lambda: here("mirror", "list", "--json").json[0]["state"] == "paused", "the mirror pauses"
    )
    there("publish", "orders.eu", "4")
    assert here("mirror", "resume", "eu").err == "resumed mirror eu\n"
    wait_copied(here, "eu", "orders.eu", 4)
    assert here("mirror", "alter", "eu", "--rate", "50MB").code == 0
    assert here("mirror", "describe", "eu", "--json").json["settings"]["rate"] == 50_000_000

    assert "its copies stay" in here("mirror", "remove", "eu").err
    assert here("mirror", "describe", "eu").code == ExitCode.FAILED
    assert here("publish", "orders.eu", "5").code == ExitCode.FAILED


def test_a_promoted_topic_takes_publishes_and_its_source_names_the_new_place(
    source: Served, target: Served, capsys: Capture
) -> None:
    there, here = Commands(source.url, capsys), Commands(target.url, capsys)
    there("topic", "create", "orders")
    there("publish", "orders", "1")
    here("mirror", "add", "eu", "--from", source.url, "--topics", "orders")
    wait_copied(here, "eu", "orders", 1)
    promoted = here("mirror", "promote", "orders")
    assert promoted.code == 0
    assert "promoted orders: it has everything" in promoted.err
    assert here("publish", "orders", "2").code == 0
    refused = there("publish", "orders", "3")
    assert refused.code == ExitCode.FAILED
    assert "cluster" in refused.err


def test_a_promote_without_its_source_says_that_messages_may_be_missing(
    source: Served, target: Served, capsys: Capture
) -> None:
    there, here = Commands(source.url, capsys), Commands(target.url, capsys)
    there("topic", "create", "orders")
    there("publish", "orders", "1")
    here("mirror", "add", "eu", "--from", source.url, "--topics", "orders")
    wait_copied(here, "eu", "orders", 1)
    source.close()
    promoted = here("mirror", "promote", "orders", "--timeout", "1s")
    assert promoted.code == 0
    assert "its source goes on" in promoted.err
    assert "warning: orders may lack messages of its source" in promoted.err
    assert here("publish", "orders", "2").code == 0


def test_copies_under_another_name_stand_beside_local_topics(
    source: Served, target: Served, capsys: Capture
) -> None:
    there, here = Commands(source.url, capsys), Commands(target.url, capsys)
    for side in (there, here):
        side("topic", "create", "orders")
    there("publish", "orders", "theirs")
    here("publish", "orders", "ours")
    named = ["--topics", "orders", "--as", "{cluster}.{topic}"]
    assert here("mirror", "add", "eu", "--from", source.url, *named).code == 0
    wait_copied(here, "eu", "eu.orders", 1)
    assert "theirs" in here("tail", "eu.orders", "--from", "earliest", "--limit", "1").out
    assert here("publish", "orders", "again").code == 0


def test_a_token_goes_to_the_source_and_is_never_shown(
    tmp_path: Path, target: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "secured", "--authentication") as node:
        there, here = Commands(node.url, capsys), Commands(target.url, capsys)
        with monkeypatch.context() as as_admin:
            as_admin.setenv("QUIVER_TOKEN", (node.data / "admin.token").read_text().strip())
            there("topic", "create", "orders")
            there("publish", "orders", "1")
            token = there("token", "create", "copy", "--grant", "consume:orders").out.strip()
        with monkeypatch.context() as with_token:
            with_token.setenv("QUIVER_SOURCE_TOKEN", token)
            assert here("mirror", "add", "eu", "--from", node.url, "--topics", "orders").code == 0
        wait_copied(here, "eu", "orders", 1)
        shown = here("mirror", "describe", "eu")
        assert "given" in shown.out
        assert token not in shown.out + here("mirror", "list", "--json").out + target.log


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "eu", "--topics", "a"], "give --from"),
        (["add", "eu", "--from", "quiver://eu:7401"], "give --topics"),
        (["add", "eu", "--from", "quiver://eu:7401", "--topics", "a b"], "is not a topic name"),
        (
            ["add", "eu", "--from", "quiver://eu:7401", "--topics", "a", "--as", "copy"],
            "--as: rename must contain {topic}",
        ),
        (
            [
                *("add", "eu", "--from", "quiver://eu:7401", "--topics", "a", "--as"),
                *("{cluster}.{topic}", "--with-subscriptions"),
            ],
            "only where names stay as they are",
        ),
        (
            ["add", "eu", "--from", "quiver://eu:7401", "--topics", "a", "--rate", "fast"],
            "--rate",
        ),
        (["alter", "eu"], "nothing to change"),
        (["promote", "a", "--timeout", "soon"], "not a duration"),
    ],
)
def test_mistakes_are_told_before_a_node_is_asked(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    nobody = f"quiver://{unused_address()}"
    assert run(app, ["--url", nobody, "mirror", *arguments]) == ExitCode.USAGE
    assert said in capsys.readouterr().err
