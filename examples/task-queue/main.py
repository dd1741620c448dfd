"""Eight workers share a queue; urgent tasks overtake the others."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
WORKERS, REPORTS, URGENT = 8, 200, 10


class Board:
    """Which task was done when, and by whom."""

    def __init__(self, tasks: int) -> None:
        self.done: list[tuple[str, str]] = []
        self.finished = Event()
        self._tasks = tasks
        self._lock = Lock()

    def put(self, kind: str, worker: str) -> None:
        with self._lock:
            self.done.append((kind, worker))
            if len(self.done) >= self._tasks:
                self.finished.set()


def worker(q: quiver.Client, queue: str, name: str, board: Board) -> None:
    while not board.finished.is_set():
        for message in q.receive(queue, 1, wait="1s", consumer=name):
            task = message.json()
            time.sleep(task["takes_ms"] / 1000)  # the work
            message.ack()
            board.put(task["kind"], name)


if __name__ == "__main__":
    queue = f"tasks-{secrets.token_hex(3)}"  # of this run, and removed after it
    with quiver.Client(URL) as q:
        q.create_queue(queue, visibility="1m", ageing="1m")
        q.publish_many(queue, [{"kind": "report", "takes_ms": 5} for _ in range(REPORTS)])
        for _ in range(URGENT):
            q.publish(queue, {"kind": "urgent", "takes_ms": 5}, priority=9)

        board, began = Board(REPORTS + URGENT), time.monotonic()
        with ThreadPoolExecutor(WORKERS) as threads:
            for number in range(WORKERS):
                threads.submit(worker, q, queue, f"worker-{number}", board)
        took_s = time.monotonic() - began

        last_urgent = max(n for n, (kind, _) in enumerate(board.done, 1) if kind == "urgent")
        shares = Counter(name for _, name in board.done)
        print(f"done: {len(board.done)} tasks by {len(shares)} workers in {took_s:.1f} s")
        print(f"urgent: all {URGENT} among the first {last_urgent}")
        print(f"busiest worker: {max(shares.values())} tasks, idlest: {min(shares.values())}")
        q.delete_subscription(queue)
