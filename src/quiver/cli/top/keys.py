"""A terminal that gives its keys one by one, and is afterwards as it was."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Iterator

_NAMED = {
    b"\x1b": "escape",
    b"\t": "tab",
    **dict.fromkeys((b"\x1b[A", b"\x1bOA"), "up"),
    **dict.fromkeys((b"\x1b[B", b"\x1bOB"), "down"),
    **dict.fromkeys((b"\x1b[C", b"\x1bOC"), "right"),
    **dict.fromkeys((b"\x1b[D", b"\x1bOD"), "left"),
}
_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_READ_MAX = 1024


def keys_in(data: bytes) -> list[str]:
    """What was pressed; keys without a meaning here have a name that nobody asks for."""
    return [_NAMED.get(key) or key.decode("latin-1") for key in _KEY.findall(data)]


@contextlib.contextmanager
def keyboard() -> Iterator[int | None]:
    """Where keys are read from, each as it is pressed and not shown; ``None`` without a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pressed(descriptor: int) -> list[str]:
    """The keys that wait to be read. A terminal that has gone counts as escape."""
    try:
        data = os.read(descriptor, _READ_MAX)
    except OSError:
        data = b""
    return keys_in(data) if data else ["escape"]
