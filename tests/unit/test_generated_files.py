"""Files that are made from the definitions of figures and alerts: that they are up to date, and right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deploy.__main__ import FILES
from pages.__main__ import PAGES

from quiver.config.alert_rule import DEFAULT_RULES
from quiver.metrics.definitions import DEFINITIONS

RULES, DASHBOARD = FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_deployed_is_up_to_date(path: Path) -> None:
    assert path.read_text() == FILES[path](), "write it anew: make deploy"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_reference_page_is_up_to_date(path: Path) -> None:
    assert path.read_text() == PAGES[path](), "write it anew: make pages"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_is_the_same_whenever_it_is_made(path: Path) -> None:
    """Nothing that is different in another process: no address of an object, no order of a set."""
    assert " at 0x" not in path.read_text()


def test_the_prometheus_rules_name_only_figures_that_there_are() -> None:
    named = set(re.findall(r"quiver_\w+", RULES.read_text()))
    assert named <= {one.name for one in DEFINITIONS}
    assert RULES.read_text().count("- alert:") == len(DEFAULT_RULES) + 1


@pytest.mark.process
def test_promtool_reads_the_prometheus_rules() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip(
            "promtool is of Debian's prometheus: without it, the other tests here hold the rules"
        )
    checked = subprocess.run(
        [tool, "check", "rules", str(RULES)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboard_draws_every_figure_once_and_none_over_another() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = [panel["title"] for panel in panels if panel["type"] == "timeseries"]
    assert sorted(drawn) == sorted(one.name for one in DEFINITIONS)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels}) == len(panels)
