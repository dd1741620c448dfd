"""Messages from lines of text: one line, one message.

A line's number, counted from 1, is the message's sequence when the producer has a name, so a blank
line is skipped but still counted: the same input gives the same numbers however often it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from quiver.errors import InvalidRequest

LINE_BYTES_MAX = 32 << 20
"""The largest message that any topic allows."""


class Line(msgspec.Struct, frozen=True):
    number: int
    payload: bytes


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The file, or standard input for ``-``."""
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        yield file


def lines_of(file: IO[bytes]) -> Iterator[Line]:
    """The messages, without their line ends."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 2):
        number += 1
        payload = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(payload) > LINE_BYTES_MAX:
            raise InvalidRequest(
                f"line {number:,} has more than the {LINE_BYTES_MAX:,} bytes of the largest message"
            )
        if payload.strip():
            yield Line(number, payload)


def key_of(line: Line, field: str) -> str | None:
    """The key that a JSON object holds in ``field``; ``None`` where it is missing or null."""
    try:
        value: Any = msgspec.json.decode(line.payload)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"line {line.number:,} has no key: it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"line {line.number:,} has no key: it is not a JSON object")
    key = value.get(field)
    if key is None or isinstance(key, str):
        return key
    return msgspec.json.encode(key).decode()
