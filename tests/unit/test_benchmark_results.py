"""What the benchmarks measured is kept: a run replaces its own sets, and pages follow from the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.harness.kept import README, RESULTS
from benchmarks.harness.machine import Machine
from benchmarks.harness.page import BEGIN, END, FIGURES, results_page, with_figures
from benchmarks.harness.result import SetResult, load_all, save
from benchmarks.harness.row import Row, at_least, ratio_at_least

from tests.paths import REPOSITORY

MACHINE = Machine(
    cores=2,
    memory_gib=8.0,
    system="Linux x86_64",
    kernel="6.1.0",
    python="3.11.7",
    pyarrow="26.0.1",
    uvloop="0.23.0",
    fdatasync_ms=0.1,
    load=0.0,
)
SENT, REDIS = FIGURES[0]


def result(name: str, *rows: Row, date: str = "2026-01-02 03:04") -> SetResult:
    return SetResult(benchmark=name, date=date, quick=False, machine=MACHINE, rows=list(rows))


def row(name: str = "send", value: float = 1.0, yardstick_name: str = "") -> Row:
    return Row(name=name, value=value, unit="msg/s", yardstick_name=yardstick_name)


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    kept = result(
        "broker",
        Row(
            name="send",
            value=571_578.0,
            unit="msg/s",
            yardstick=41_363.0,
            yardstick_name="Redis",
            ratio=13.69,
            target=ratio_at_least(2),
            note="once",
        ),
    )
    save(str(tmp_path), kept)
    assert load_all(str(tmp_path)) == [kept]


def test_a_file_has_its_keys_in_order_and_one_object_for_each_row(tmp_path: Path) -> None:
    save(str(tmp_path), result("broker", row(value=123_456.789), row("read")))
    document = json.loads((tmp_path / "broker.json").read_text())
    assert list(document) == ["benchmark", "date", "quick", "machine", "rows"]
    first, second = document["rows"]
    assert list(first)[:3] == ["name", "value", "unit"]
    assert list(first) == list(second)
    assert (first["value"], first["ok"]) == (123_456.8, None)


def test_a_run_of_one_set_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    save(str(tmp_path), result("broker", row(), date="2026-01-01 00:00"))
    save(str(tmp_path), result("one", row(), date="2026-01-01 00:00"))
    save(str(tmp_path), result("one", row(value=2.0), date="2026-02-02 00:00"))
    broker, one = load_all(str(tmp_path))
    assert (broker.date, broker.rows[0].value) == ("2026-01-01 00:00", 1.0)
    assert (one.date, one.rows[0].value) == ("2026-02-02 00:00", 2.0)


def test_rows_that_a_run_could_not_measure_are_named(tmp_path: Path) -> None:
    first = result("one", row(), row(yardstick_name="Redis"), row("read"))
    assert save(str(tmp_path), first) is None
    second = result("one", row(), row("read"))
    before = save(str(tmp_path), second)
    assert before is not None
    assert before.missing_from(second) == [row(yardstick_name="Redis")]


def test_the_page_has_a_section_for_each_set_with_date_and_machine() -> None:
    missed = Row(name="send", value=1.0, unit="msg/s", target=at_least(2), note="one process")
    page = results_page([result("broker", missed), result("one", row("publish"))])
    assert "## broker\n\n2026-01-02 03:04 UTC. 2 cores, 8.0 GiB, Linux x86_64 6.1.0, Python" in page
    assert "| send | 1.00 msg/s |  |  | ≥ 2.00 msg/s | **miss** |" in page
    assert "- send: one process" in page
    assert page.index("## broker") < page.index("## one")


def test_the_readme_gets_its_table_and_keeps_the_rest() -> None:
    text = f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    sent = Row(name=SENT, value=500_000.0, unit="msg/s", yardstick=40_000.0, yardstick_name=REDIS)
    filled = with_figures(text, [result("broker", sent, row("not for the README"))])
    assert filled.startswith("before\n")
    assert filled.endswith("\nafter\n")
    assert f"| {SENT} | 500,000 msg/s | 40,000 msg/s, {REDIS} |" in filled
    assert "2 cores, 8.0 GiB, Linux x86_64 6.1.0" in filled
    assert "2026-01-02" in filled
    assert "old" not in filled
    assert "not for the README" not in filled
    assert with_figures(filled, [result("broker", sent, row("not for the README"))]) == filled


def test_the_readme_shows_the_newest_of_two_measurements() -> None:
    text = f"{BEGIN}\n{END}\n"
    old = result("broker", row(SENT, 1.0, REDIS), date="2026-03-01 00:00")
    new = result("start", row(SENT, 2.0, REDIS), date="2026-03-02 00:00")
    for order in ([old, new], [new, old]):
        assert f"| {SENT} | 2.00 msg/s |" in with_figures(text, order)


def test_a_readme_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(AssertionError, match="no place for figures"):
        with_figures("text", [result("broker", row())])


def test_the_readme_shows_figures_of_each_kind() -> None:
    shown = README.read_text().partition(BEGIN)[2].partition(END)[0]
    assert len([line for line in shown.splitlines() if line.startswith("| ")]) >= 2 + 8
    assert "cores" in shown


def test_what_is_kept_names_no_path_of_a_machine() -> None:
    for path in RESULTS.iterdir():
        text = path.read_text()
        assert [one for one in (str(REPOSITORY), "/home/", "/tmp/") if one in text] == []
