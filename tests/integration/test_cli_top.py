"""``quiver top`` on a real terminal, against a running node."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import quiver
from tests.serving import Commands, Served, command, eventually, served, unused_address
from tests.terminal import WHOLE_SCREEN, Terminal, terminal

pytestmark = pytest.mark.process

RULES = """
[alerts]
interval_s = 0.2

[alerts.rules.deep]
watch = "depth"
on = "emails"
limit = 2
severity = "critical"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three emails wait, and an order; an alert fires."""
    folder = tmp_path_factory.mktemp("node")
    settings = folder / "quiver.toml"
    settings.write_text(RULES)
    with served(folder, "--config", str(settings)) as running:
        with quiver.Client(running.url) as client:
            client.create_queue("emails")
            client.create_queue("tickets")
            client.create_topic("orders", partitions=3)
            client.publish_many("emails", [1, 2, 3])
            client.publish("tickets", 1)
        yield running


@pytest.fixture
def top(node: Served) -> Iterator[Terminal]:
    arguments = ("--url", node.url, "top", "--interval", "500ms")
    with terminal(command(*arguments)) as opened:
        opened.wait_for("emails", "tickets")
        yield opened


@pytest.fixture
def run(node: Served, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(node.url, capsys)


def names_in(frame: str) -> list[str]:
    """The first word of each row of the table."""
    lines = frame.splitlines()
    header = next(number for number, line in enumerate(lines) if "NAME" in line)
    return [line.split()[0] for line in lines[header + 1 :] if line.strip()][:-1]


def test_the_whole_screen_shows_depths_lag_latency_and_alerts(top: Terminal) -> None:
    frame = top.wait_for("deep on emails")
    assert WHOLE_SCREEN in top.drawn
    for word in ("published", "lag 4", "oldest", "publish p50", "p99", "alerts 1", "▼LAG"):
        assert word in frame, frame
    assert names_in(frame)[:2] == ["emails", "tickets"]


def test_figures_move_while_it_is_looked_at(top: Terminal, node: Served) -> None:
    with quiver.Client(node.url) as client:
        client.publish_many("tickets", [2, 3, 4, 5])
        try:
            assert "lag 8" in top.wait_for("lag 8")
        finally:
            client.purge("tickets")
            client.publish("tickets", 1)
    assert "lag 4" in top.wait_for("lag 4")


def test_keys_choose_the_table_and_the_order(top: Terminal) -> None:
    top.press("t")
    assert "orders" in names_in(top.wait_for("▼PUBLISHED", "PARTITIONS"))
    top.press("\t")
    top.press("\x1b[D")  # to the left: by name
    names = ["emails", "emails.dlq", "tickets", "tickets.dlq"]
    assert names_in(top.wait_for("▲NAME"))[:4] == names
    top.press("r")
    assert names_in(top.wait_for("▼NAME"))[:4] == names[::-1]


def test_q_ends_it_and_the_terminal_is_as_it_was(top: Terminal) -> None:
    assert not top.is_as_before
    top.press("q")
    assert top.wait() == 0
    assert top.is_given_back
    assert top.is_as_before


def test_ctrl_c_ends_it_and_the_terminal_is_as_it_was(top: Terminal) -> None:
    # Only the key's signal: the key itself makes the kernel drop what is drawn, some time later.
    top.interrupt()
    assert top.wait() == 130
    assert top.is_given_back
    assert "Traceback" not in top.drawn
    assert top.is_as_before


def test_a_small_terminal_gets_what_matters_most(top: Terminal) -> None:
    top.resize(40, 10)
    top.tell_size()
    frame = ""

    def is_small() -> bool:
        nonlocal frame
        frame = top.frame
        return "▼LAG" in frame and "q quit" in frame and "CONSUMERS" not in frame

    eventually(is_small, "a picture of the new size")
    lines = frame.splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 40
    assert "emails" in frame


def test_a_node_that_goes_is_told_and_one_that_comes_back_is_shown(tmp_path: Path) -> None:
    address = unused_address()
    with served(tmp_path / "node", "--native", address) as node:
        arguments = ("--url", node.url, "top", "--interval", "500ms")
        with terminal(command(*arguments)) as top:
            top.wait_for("up ", "NAME")
            node.stop(signal.SIGKILL)
            top.wait_for("no answer yet")
            with served(tmp_path / "again", "--native", address) as again:
                with quiver.Client(again.url) as client:
                    client.create_queue("returned")
                assert "no answer yet" not in top.wait_for("returned")
            top.press("q")
            assert top.wait() == 0


def test_one_sample_as_json_has_rates_and_alerts(run: Commands, top: Terminal) -> None:
    top.wait_for("deep on emails")
    told = run("top", "--json", "--interval", "500ms")
    assert (told.code, told.err) == (0, "")
    assert told.json["totals"]["pending"] == 4
    assert {one["name"] for one in told.json["subscriptions"]} >= {"emails", "tickets"}
    assert [one["rule"] for one in told.json["alerts"]] == ["deep"]
    assert [one["version"] for one in told.json["nodes"]] == [quiver.__version__]


def test_one_sample_as_text(run: Commands) -> None:
    for arguments in (["--once"], []):  # without a terminal it is one anyway
        told = run("top", "--interval", "500ms", "--sort", "name", *arguments)
        assert told.code == 0
        assert names_in(told.out + "\n.")[:1] == ["emails"]
        assert "▲NAME" in told.out
    assert "▼PUBLISHED" in run("top", "--topics", "--interval", "500ms").out


def test_no_node_is_told_in_one_line(run: Commands) -> None:
    told = run("top", "--once", url=f"quiver://{unused_address()}")
    assert (told.code, told.out) == (3, "")
    assert told.err.startswith("error: ")
