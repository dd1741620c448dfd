"""Everything at once: a node, a shop that keeps it busy, and a Spark pipeline over the shop's orders.

It says where to look, and goes on until Ctrl-C or for ``--seconds``. The processes it starts have
logs in the demo's folder, which is removed afterwards unless ``--data`` names one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event

from shop import FIGURES, ORDERS, PIPELINE, set_up

import quiver

HERE = Path(__file__).parent
QUIVER = [sys.executable, "-c", "from quiver.cli.main import main; main()"]
HTTP, NATIVE = "127.0.0.1:7400", "127.0.0.1:7401"
START_S, STOP_S = 60.0, 30.0
WINDOW = "5 seconds"


class Part:
    """One process of the demo. It gets no Ctrl-C of its own: parts end one after the other."""

    def __init__(self, name: str, command: list[str], folder: Path, url: str = "") -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **({"QUIVER_URL": url} if url else {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ask it to end; whatever is left of it after a while is killed."""
        if not self.has_ended:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            print(f"{self.name} does not stop; it is killed", flush=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def explain(self) -> str:
        last = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"{self.name} has ended with {self._process.returncode}:", *last])


def main() -> int:
    given = arguments()
    ending = Event()
    for wish in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(wish, lambda *_: ending.set())
    with ExitStack() as stack:
        folder = Path(given.data or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        parts: list[Part] = []
        stack.callback(stop, parts)
        print("Starting a node …", flush=True)
        node, ready = start_node(given, folder)
        parts.append(node)
        url = "quiver://" + wait_ready(node, ready, ending).get("native", "")
        if node.has_ended or ending.is_set():
            return told(node)
        with quiver.Client(url) as q:
            set_up(q)
            parts.append(Part("shop", [sys.executable, str(HERE / "shop.py")], folder, url))
            if not given.without_spark:
                parts.append(Part("pipeline", pipeline(folder), folder, url))
            welcome(json.loads(ready.read_text()), folder, with_spark=not given.without_spark)
            watch(q, parts, ending, given.seconds)
        failed = next((part for part in parts if part.has_ended), None)
        return 0 if failed is None else told(failed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="keep everything in this folder")
    parser.add_argument("--seconds", type=float, help="end after so long")
    parser.add_argument("--without-spark", action="store_true", help="leave the pipeline out")
    parser.add_argument("--http", default=HTTP, help="where HTTP is spoken, if that is free")
    parser.add_argument("--native", default=NATIVE, help="where clients connect, if that is free")
    return parser.parse_args()


# ------------------------------------------------------------------ the parts


def start_node(given: argparse.Namespace, folder: Path) -> tuple[Part, Path]:
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    where = ("--http", free(given.http), "--native", free(given.native))
    flags = ("--data", str(folder / "data"), *where, "--ready-file", str(ready))
    return Part("node", [*QUIVER, "serve", *flags], folder), ready


def free(address: str) -> str:
    """The address, or any port of the same host if somebody listens there already."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError:
        return f"{host}:0"
    return address


def wait_ready(node: Part, ready: Path, ending: Event) -> dict[str, str]:
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if node.has_ended or time.monotonic() > deadline or ending.wait(0.05):
            return {}
    return json.loads(ready.read_text())


def pipeline(folder: Path) -> list[str]:
    """Key figures of the orders by window, into a topic as they come, and into a table at the end."""
    return [
        *(*QUIVER, "pipeline", "run", "metrics", ORDERS, "--into", FIGURES, "--window", WINDOW),
        *("--watermark", "2 seconds", "--every", "2 seconds", "--subscription", PIPELINE),
        *("--to", str(folder / "table"), "--checkpoint", str(folder / "checkpoint")),
        *("--master", "local[1]"),
    ]


def stop(parts: list[Part]) -> None:
    """The newest first: the node outlives whoever works with it."""
    for part in reversed(parts):
        print(f"stopping the {part.name}", flush=True)
        part.stop()


def told(part: Part) -> int:
    print(part.explain(), file=sys.stderr)
    return 1


# ------------------------------------------------------------------ what it says


def welcome(ready: dict[str, str], folder: Path, *, with_spark: bool) -> None:
    command = shlex.quote(os.path.relpath(Path(sys.executable).with_name("quiver")))
    if ready["native"] != NATIVE:
        command += f" --url quiver://{ready['native']}"
    http = f"http://{ready['http']}"
    places = [
        ("console", f"{http}/console", "charts, queues, messages, dead letters, alerts"),
        ("terminal", f"{command} top", "the same as text"),
        ("metrics", f"{http}/metrics", "for Prometheus"),
        ("HTTP", f"{http}/docs", "every call, to try"),
        ("orders", f"{command} tail {ORDERS} --follow", "as they are placed"),
    ]
    if with_spark:
        tail = f"{command} tail {FIGURES} --follow"
        places.append(("pipeline", tail, f"orders by windows of {WINDOW}, from Spark"))
    width = max(len(where) for _, where, _ in places)
    print("A shop is at work. Look here:")
    for name, where, what in places:
        print(f"  {name:<9} {where:<{width}}  {what}")
    print(f"Logs are in {folder}. Stop with Ctrl-C.", flush=True)


def watch(q: quiver.Client, parts: list[Part], ending: Event, seconds: float | None) -> None:
    """Until somebody wants an end, or a part has ended by itself. The first result is told."""
    end = time.monotonic() + (float("inf") if seconds is None else seconds)
    is_told = all(part.name != "pipeline" for part in parts)
    if not is_told:
        print("Waiting for Spark's first result: about half a minute …", flush=True)
    while not ending.wait(0.5) and time.monotonic() < end:
        if any(part.has_ended for part in parts):
            return
        if not is_told and (window := first_window(q)) is not None:
            is_told = True
            print(f"Spark: {window['messages']} orders from {window['start']} on", flush=True)


def first_window(q: quiver.Client) -> dict[str, object] | None:
    """What Spark has written first, if it has written anything."""
    try:
        found = next(iter(q.read(FIGURES).messages()), None)
    except quiver.errors.TopicNotFound:
        return None
    return None if found is None else found.json()


if __name__ == "__main__":
    sys.exit(main())
