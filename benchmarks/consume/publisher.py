"""A process that publishes at a steady rate. Each message says when it was due."""

from __future__ import annotations

import multiprocessing
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.consume.queue import MESSAGE_BYTES, Stream

_HEAD = struct.Struct(">qq")
_FILLING = bytes(MESSAGE_BYTES - _HEAD.size)
_WARM_UP = -1
_REST_S = 0.3
"""Between the first message, which connects, and those that count."""
_SECONDS_MAX = 60.0


def place_and_due(payload: bytes) -> tuple[int, float] | None:
    """Which message it is, and when it was due, by the monotonic clock; ``None`` for the first."""
    place, due_ns = _HEAD.unpack_from(payload)
    return None if place == _WARM_UP else (place, due_ns / 1e9)


@contextmanager
def publishing(stream: Stream, rate: int, count: int) -> Iterator[None]:
    """A publisher at work; at the end of the block it must be done, or soon."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_publish, args=(stream, rate, count), daemon=True)
    process.start()
    try:
        yield
        process.join(_SECONDS_MAX)
        assert process.exitcode == 0, f"the publisher ended with {process.exitcode}"
    finally:
        process.kill()
        process.join(_SECONDS_MAX)


def _publish(stream: Stream, rate: int, count: int) -> None:
    """Everything that is due is sent together: whoever waits for an answer does not fall behind."""
    with stream.sender() as send:
        send([_payload(_WARM_UP, 0.0)])
        time.sleep(_REST_S)
        began, sent = time.monotonic(), 0
        while sent < count:
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            due = min(count, 1 + int((time.monotonic() - began) * rate))
            send([_payload(place, began + place / rate) for place in range(sent, due)])
            sent = max(sent, due)


def _payload(place: int, due: float) -> bytes:
    return _HEAD.pack(place, round(due * 1e9)) + _FILLING
