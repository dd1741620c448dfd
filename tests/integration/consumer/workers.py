"""Workers in processes of their own: they consume, and say what they got and what became of it.

A worker can be killed, stopped for a while and asked to end. What it said before is never lost.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import quiver
from quiver.client.consumer.received import ReceivedMessage
from tests.forked import processes, write_output_to
from tests.integration.consumer.waiting import SECONDS_MAX

POISON = "poison"
ENDS_PROCESS = 17
"""The exit code of a worker that a poisonous message has ended."""


class Told(NamedTuple):
    """What a worker said, and when, on the clock that all processes share."""

    word: str
    payload: str
    deliveries: int
    at: float


class Tell:
    """A worker's side of the pipe. Its threads may use it together."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def __call__(self, word: str, message: ReceivedMessage | None = None) -> None:
        text, deliveries = ("", 0) if message is None else (message.text(), message.deliveries)
        with self._lock:
            self._pipe.send(Told(word, text, deliveries, time.monotonic()))


Work = Callable[..., None]
"""Called in the worker with the client, the queue's name, what to tell with, and the options."""


class Worker:
    """Starts at once; ``close`` it whatever happens."""

    def __init__(self, work: Work, url: str, queue: str, log: str, **options: Any) -> None:
        self._pipe, tell = processes.Pipe(duplex=False)
        arguments = work, url, queue, log, tell, options
        self._process = processes.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        tell.close()
        self.told: list[Told] = []

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def said(self, word: str, count: int = 1) -> list[Told]:
        """Wait until it has said the word so many times; all that it has said with this word."""
        deadline = time.monotonic() + SECONDS_MAX
        while len(found := [one for one in self.told if one.word == word]) < count:
            left = deadline - time.monotonic()
            assert self._read(left), f"{word!r} {len(found)} times, not {count}: {self.told}"
        return found

    def listen(self, seconds: float = 0.0) -> list[Told]:
        """All it has said so far, and what it says within this time."""
        deadline = time.monotonic() + seconds
        while self._read(max(0.0, deadline - time.monotonic())):
            pass
        return self.told

    def _read(self, seconds: float) -> bool:
        try:
            if not self._pipe.poll(seconds):
                return False
            self.told.append(self._pipe.recv())
        except (EOFError, OSError):
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait until it has ended; how."""
        self._process.join(SECONDS_MAX)
        assert self._process.exitcode is not None, f"it does not end: {self.told}"
        return self._process.exitcode

    @property
    def has_ended(self) -> bool:
        return self._process.exitcode is not None

    def kill(self) -> float:
        """SIGKILL; the moment."""
        at = time.monotonic()
        self.signal(signal.SIGKILL)
        self.wait()
        return at

    def close(self) -> None:
        if not self.has_ended:
            self._process.kill()
            self._process.join(SECONDS_MAX)
        self._pipe.close()


def _run(
    work: Work, url: str, queue: str, log: str, pipe: Connection, options: dict[str, Any]
) -> None:
    write_output_to(log)
    with quiver.Client(url) as q:
        work(q, queue, Tell(pipe), **options)


# ------------------------------------------------------------------ what workers do


def handle_each(q: quiver.Client, queue: str, tell: Tell, work_s: float = 0, **terms: Any) -> None:
    """The loop of the README, with so much work for each message. A poisonous one ends the process."""
    for message in q.consume(queue, **terms):
        tell("got", message)
        _handle(message, work_s)
        message.ack()
        tell("done", message)


def handle_in_threads(
    q: quiver.Client,
    queue: str,
    tell: Tell,
    work_s: float = 0,
    threads: int = 4,
    poison_s: float = 0,
    **terms: Any,
) -> None:
    """As many messages at a time as there are threads. A poisonous one takes its time."""
    room = threading.Semaphore(threads)

    def handle(message: ReceivedMessage) -> None:
        try:
            _handle(message, work_s, poison_s)
            message.ack()
            tell("done", message)
        finally:
            room.release()

    with ThreadPoolExecutor(threads) as pool:
        messages = q.consume(queue, **terms)
        while room.acquire():
            message = next(messages)
            tell("got", message)
            pool.submit(handle, message)


def hold_first(q: quiver.Client, queue: str, tell: Tell, **terms: Any) -> None:
    """Take one message and keep it."""
    for message in q.consume(queue, **terms):
        tell("got", message)
        threading.Event().wait()


def hold_until(
    q: quiver.Client, queue: str, tell: Tell, path: str, work_s: float = 0, **terms: Any
) -> None:
    """Keep the first message until a file is there, and then go on."""
    is_first = True
    for message in q.consume(queue, **terms):
        tell("got", message)
        while is_first and not os.path.exists(path):
            time.sleep(0.01)
        is_first = False
        time.sleep(work_s)
        message.ack(wait=True)
        tell("done", message)


def _handle(message: ReceivedMessage, work_s: float, poison_s: float = 0) -> None:
    if message.text() == POISON:
        time.sleep(poison_s)
        os._exit(ENDS_PROCESS)
    time.sleep(work_s)


# ------------------------------------------------------------------ what came of it


def overlaps(told: Iterable[Told]) -> list[str]:
    """The messages that were with two workers at the same moment."""
    spans: dict[str, list[tuple[float, float]]] = {}
    begun: dict[str, list[float]] = {}
    for one in sorted(told, key=lambda one: one.at):
        if one.word == "got":
            begun.setdefault(one.payload, []).append(one.at)
        elif one.word == "done":
            spans.setdefault(one.payload, []).append((begun[one.payload].pop(0), one.at))
    return [
        payload
        for payload, these in spans.items()
        for first, second in zip(sorted(these), sorted(these)[1:], strict=False)
        if second[0] < first[1]
    ]
