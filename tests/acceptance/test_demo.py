"""``make demo`` as a person runs it, with its real processes. Spark's part has tests of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import quiver
from tests.serving import environment, eventually

ROOT = Path(__file__).parents[2]
FREE = ("--http", "127.0.0.1:0", "--native", "127.0.0.1:0")


class Demo:
    def __init__(self, folder: Path) -> None:
        self._said = folder / "said.txt"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, str(ROOT / "examples" / "demo" / "main.py")),
                    *(*FREE, "--without-spark", "--data", str(folder / "demo")),
                ],
                cwd=ROOT,
                env=environment(),
                stdout=said,
                stderr=said,
            )

    def wait_ready(self) -> None:
        eventually(lambda: "Ctrl-C" in self.said or self.has_ended, "it says where to look")
        assert not self.has_ended, self.said

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def address(self, pattern: str) -> str:
        found = re.search(pattern, self.said)
        assert found, self.said
        return found[0]

    @property
    def url(self) -> str:
        return self.address(r"quiver://[\d.:]+")

    @property
    def parts(self) -> list[int]:
        """The processes it has started, the node first."""
        pid = self.process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(60)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    started = Demo(tmp_path)
    try:
        started.wait_ready()
        yield started
    finally:
        if not started.has_ended:
            started.end(signal.SIGTERM)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_make_target_sets_everything_up_first() -> None:
    would = subprocess.run(
        ["make", "-n", "-W", "pyproject.toml", "demo"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    setup, java, start = (
        would.index(part) for part in ("-m venv", "openjdk-17", "examples/demo/main.py")
    )
    assert setup < start
    assert java < start


def test_everything_it_names_is_there_and_at_work(demo: Demo) -> None:
    for page in ("console", "metrics", "docs"):
        with urlopen(demo.address(rf"http://[\d.:]+/{page}"), timeout=30) as answer:
            assert answer.status == 200
    with quiver.Client(demo.url) as q:

        def orders() -> int:
            return sum(one.next_offset or 0 for one in q.describe_topic("orders").partitions)

        eventually(lambda: orders() > 0, "orders are placed")
        seen = orders()
        eventually(lambda: orders() > seen, "more orders are placed")
        names = {one.name for one in q.list_subscriptions()}
        assert names >= {"billing", "warehouse", "pipeline", "mails"}
        eventually(
            lambda: bool(q.describe_subscription("billing").consumers or []),
            "somebody consumes",
        )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_it_stops_cleanly(demo: Demo, how: signal.Signals) -> None:
    parts = demo.parts
    assert len(parts) == 2
    assert demo.end(how) == 0
    assert demo.said.splitlines()[-2:] == ["stopping the shop", "stopping the node"]
    assert not any(map(is_running, parts))


def test_a_part_that_ends_by_itself_ends_the_demo_which_says_why(demo: Demo) -> None:
    _, shop = demo.parts
    subprocess.run(["kill", "-KILL", str(shop)], check=True)
    assert demo.process.wait(60) == 1
    assert "shop has ended with -9" in demo.said
