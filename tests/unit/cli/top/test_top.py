"""What ``quiver top`` draws fits, whatever the size; keys choose what is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.cli.top.columns import shown_age, shown_rate
from quiver.cli.top.keys import keys_in
from quiver.cli.top.mirrors import MirrorRates, MirrorRow
from quiver.cli.top.screen import TopSample, lines_of
from quiver.cli.top.view import View
from quiver.console.snapshot import (
    ConsoleSnapshot,
    NodeMetricsRow,
    SubscriptionMetricsRow,
    TopicMetricsRow,
    Totals,
)
from quiver.errors import InvalidSetting
from quiver.model.mirror.settings import MirrorSettings
from quiver.protocol import AlertInfo, MirrorInfo, NodeInfo

NODE = NodeMetricsRow(
    name="node-1",
    software="quiver/1",
    uptime_s=93,
    topics=1,
    partitions=1,
    connections=2,
    answer_ms=1,
    publish_p50_ms=0.5,
    publish_p99_ms=12.3456,
)


def alert(number: int) -> AlertInfo:
    return AlertInfo(
        rule=f"rule-{number}",
        watch="depth",
        subject="emails",
        severity="critical",
        state="firing",
        value=3,
        limit=2,
        unit="messages",
        since_us=0,
        summary=f"rule-{number} on emails: depth is 3 (limit 2), firing",
    )


def mirror(number: int) -> MirrorRow:
    return MirrorRow(
        name=f"site-{number}",
        state="copying",
        lag_messages=12,
        lag_bytes=2048,
        lag_s=float(number),
        byte_rate=1024,
        error="\x1bno answer" if number else "",
    )


def sample(
    names: list[str], *, alerts: int = 0, versions: tuple[str, ...] = (), mirrors: int = 0
) -> TopSample:
    queues = [
        SubscriptionMetricsRow(
            name=name, is_queue=True, topics=[name], pending=number, oldest_s=None
        )
        for number, name in enumerate(names)
    ]
    topics = [TopicMetricsRow(name=name, partitions=1, rate=1.5) for name in names]
    figures = ConsoleSnapshot(
        time_ms=0, node=NODE, totals=Totals(pending=7), topics=topics, subscriptions=queues
    )
    nodes = [NodeInfo(id=f"n{one}", version=version) for one, version in enumerate(versions, 1)]
    return TopSample(
        figures,
        [alert(number) for number in range(alerts)],
        nodes,
        [mirror(number) for number in range(mirrors)],
    )


def text_of(taken: TopSample, view: View, width: int = 120, height: int | None = 40) -> str:
    return "\n".join(line.plain for line in lines_of(taken, view, width, height))


@given(
    names=st.lists(st.text(min_size=1, max_size=40), max_size=60, unique=True),
    alerts=st.integers(0, 9),
    versions=st.lists(st.sampled_from(["0.1.0", "0.2.0", ""]), max_size=9),
    mirrors=st.integers(0, 9),
    width=st.integers(1, 200),
    height=st.integers(1, 60),
    keys=st.lists(st.sampled_from(["t", "right", "left", "r", "down", "up", "x"]), max_size=10),
)
def test_every_line_fits_and_the_lines_fit_the_screen(
    names: list[str],
    alerts: int,
    versions: list[str],
    mirrors: int,
    width: int,
    height: int,
    keys: list[str],
) -> None:
    view = View()
    for key in keys:
        view.press(key)
    taken = sample(names, alerts=alerts, versions=tuple(versions), mirrors=mirrors)
    lines = lines_of(taken, view, width, height)
    assert 1 <= len(lines) <= height
    assert max(line.cell_len for line in lines) <= width
    assert all("\n" not in line.plain and "\x1b" not in line.plain for line in lines)


def test_where_there_is_room_everything_is_shown() -> None:
    text = text_of(sample(["emails"], alerts=1), View())
    for word in ("node-1", "up 1m33s", "lag 7", "publish p50 0.5 ms", "p99 12.3 ms", "rule-0 on"):
        assert word in text
    header = next(line for line in text.splitlines() if "NAME" in line)
    assert header.split() == [
        *("NAME", "▼LAG", "OLDEST", "DONE", "READY"),
        *("LEASED", "DELAYED", "DEAD", "CONSUMERS"),
    ]


def test_on_a_narrow_screen_the_lag_stays_to_the_last() -> None:
    text = text_of(sample(["a-queue-with-a-long-name"]), View(), width=24)
    header, row = text.splitlines()[-3:-1]
    assert header.split()[:2] == ["NAME", "▼LAG"]
    assert "CONSUMERS" not in text
    assert row.startswith("a-queue")
    assert "…" in row


def test_of_many_alerts_the_first_are_shown_and_the_others_counted() -> None:
    text = text_of(sample([], alerts=9), View(), height=24)
    assert "rule-3 on" in text
    assert "rule-4 on" not in text
    assert "and 5 more" in text


def test_nodes_of_different_versions_are_named_with_their_versions() -> None:
    text = text_of(sample([], versions=("0.10.0", "0.9.1", "0.10.0")), View())
    assert "nodes 3" in text
    assert "! nodes have different versions: 0.9.1 on n2; 0.10.0 on n1, n3" in text


def test_a_node_that_is_down_is_missed_and_its_version_does_not_count() -> None:
    taken = sample([], versions=("0.1.0", "0.1.0", "0.0.9"))
    taken.nodes[2].alive = False
    text = text_of(taken, View())
    assert "nodes 2 of 3" in text
    assert "different versions" not in text


def test_a_node_on_its_own_shows_no_cluster() -> None:
    assert "nodes" not in text_of(sample([], versions=("0.1.0",)), View())


def test_each_mirror_has_a_line_and_the_one_furthest_behind_is_first() -> None:
    lines = text_of(sample(["emails"], mirrors=2), View()).splitlines()
    first, second = [line for line in lines if line.startswith("mirror ")]
    assert first.startswith("mirror site-1  copying  lag 12  bytes 2.0 KiB  behind 1 s")
    assert "no answer" in first
    assert second.endswith("behind 0 s  copied 1.0 KiB/s")
    many = text_of(sample([], mirrors=9), View(), height=24)
    assert "and 5 more" in many


def test_the_throughput_of_a_mirror_is_between_two_looks() -> None:
    rates = MirrorRates()
    settings = MirrorSettings(source="quiver://eu:7401", topics=["orders"])

    def rate(copied: int, now: float) -> float:
        info = MirrorInfo(name="eu", settings=settings, created_us=0, copied_bytes=copied)
        (row,) = rates.rows([info], now)
        return row.byte_rate

    assert [rate(100, 1.0), rate(300, 3.0), rate(50, 4.0), rate(60, 5.0)] == [0, 100, 0, 10]


def test_the_trouble_is_beside_the_name() -> None:
    taken = sample(["emails"])
    taken.trouble = "no answer yet"
    assert "no answer yet" in text_of(taken, View()).splitlines()[0]


def rows(view: View, names: list[str], room: int = 10) -> list[str]:
    return [row.name for row in view.rows(sample(names).node, room)]


def test_the_deepest_come_first_until_that_is_reversed() -> None:
    view = View()
    assert rows(view, ["a", "b", "c"]) == ["c", "b", "a"]
    view.press("r")
    assert rows(view, ["a", "b", "c"]) == ["a", "b", "c"]


def test_names_come_in_their_order_until_that_is_reversed() -> None:
    view = View.of(sort="Name")
    assert rows(view, ["b", "a"]) == ["a", "b"]
    view.press("r")
    assert rows(view, ["b", "a"]) == ["b", "a"]


def test_topics_have_an_order_of_their_own() -> None:
    view = View()
    view.press("r")
    view.press("t")
    assert (view.shows_topics, view.sorted_by.title, view.is_descending) == (
        True,
        "PUBLISHED",
        True,
    )
    view.press("tab")
    assert (view.shows_topics, view.is_descending) == (False, False)


def test_sorting_goes_round_through_the_columns() -> None:
    view = View()
    for _ in view.columns:
        view.press("right")
    assert view.sorted_by.title == "LAG"
    view.press("left")
    view.press("left")
    assert view.sorted_by.title == "CONSUMERS"


def test_scrolling_ends_with_the_last_row() -> None:
    view = View.of(sort="name")
    for _ in range(9):
        view.press("down")
        shown = rows(view, ["a", "b", "c"], room=2)
    assert shown == ["b", "c"]
    view.press("up")
    assert rows(view, ["a", "b", "c"], room=2) == ["a", "b"]


@pytest.mark.parametrize("key", ["q", "escape"])
def test_the_end(key: str) -> None:
    view = View()
    view.press("x")
    assert not view.is_ended
    view.press(key)
    assert view.is_ended


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="--sort is one of name, lag, oldest"):
        View.of(sort="age")


def test_keys_have_names() -> None:
    assert keys_in(b"q\x1b[A\x1bOB\x1b[1;5Cr\t") == ["q", "up", "down", "\x1b[1;5C", "r", "tab"]
    assert keys_in(b"\x1b") == ["escape"]
    assert keys_in(b"") == []


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.25, "250 ms"),
        (59.4, "59 s"),
        (93, "1m33s"),
        (3600, "1h00m"),
        (90_000, "1d01h"),
    ],
)
def test_ages_are_short(age_s: float | None, shown: str) -> None:
    assert shown_age(age_s) == shown


def test_small_rates_have_a_fraction() -> None:
    assert [shown_rate(rate) for rate in (0, 0.5, 12.5, 12_345)] == [
        "0/s",
        "0.5/s",
        "12/s",
        "12,345/s",
    ]
