"""Every example runs with the one command of its README, against a real node, and does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Served, environment, served

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
_COMMAND = re.compile(r"^```bash\n(.+)\n```$", re.MULTILINE)
_SECONDS_MAX = 250

SAID = {
    "payments": [
        r"web app: 10 answers",
        r"worker: try 1 of \w+-\d: the bank is busy",
        r"worker: try 3 of \w+-yen: no rate for JPY",
        r"ledger: 8 payments booked",
        r"dead letter: .+-yen",
        r"redriven: 1",
        r"ledger: 9 payments booked, 132\.80 euro",
    ],
    "signup-mails": [
        r"cancelled: 1 tip for eve",
        r"sent: Welcome to ada@",
        r"sent: Welcome to bob@",
        r"sent: Welcome to eve@",
        r"sent: A tip to ada@",
        r"sent: A tip to bob@",
        r"given up: Welcome to gone@",
        r"given up: A tip to gone@",
    ],
    "order-events": [
        r"billing: 300 events of 5 customers, in order: True",
        r"warehouse: 100 orders to pack, all paid: True",
        r"analytics: 300 events",
    ],
    "log-aggregation": [
        *(
            rf"{service} +{level} +\d+"
            for service in ("web", "cart")
            for level in ("info", "error")
        ),
        r"total: 10000 lines in \d+ batches",
    ],
    "bank": [r"transfers: 200, all booked once: True", r"sum of all accounts: 0"],
    "task-queue": [r"done: 210 tasks by 8 workers", r"urgent: all 10 among the first [12]\d\b"],
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


def run(name: str, node: Served) -> str:
    """What the example says when it is started as its README has it."""
    (command,) = _COMMAND.findall((EXAMPLES / name / "README.md").read_text())
    program, _, arguments = command.partition(" ")
    assert program == ".venv/bin/python"
    done = subprocess.run(
        [sys.executable, *arguments.split()],
        cwd=ROOT,
        env=environment(QUIVER_URL=node.url, PYTHONUNBUFFERED="", PYTHONWARNINGS="error"),
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example_does_what_it_says(name: str, node: Served) -> None:
    said = run(name, node)
    for line in SAID[name]:
        assert re.search(rf"^{line}", said, re.MULTILINE), f"{line!r} is not in:\n{said}"


def test_the_payments_can_be_run_again(node: Served) -> None:
    for _ in range(2):
        assert "ledger: 9 payments booked, 132.80 euro" in run("payments", node)


def test_the_tip_for_somebody_who_left_is_not_sent(node: Served) -> None:
    assert "A tip to eve" not in run("signup-mails", node)


@pytest.mark.parametrize("name", sorted(SAID))
def test_a_readme_is_short(name: str) -> None:
    assert len((EXAMPLES / name / "README.md").read_text().splitlines()) == 10
    assert f"({name}/README.md)" in (EXAMPLES / "README.md").read_text()
