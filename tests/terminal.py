"""A child process on a terminal of its own, of any size: what it has drawn, and keys to press.

What is drawn is kept as it comes; ``frame`` is the text since the cursor last went home, which is one
picture of a program that draws the whole screen each time.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from tests.serving import environment, eventually

HOME = "\x1b[H"
WHOLE_SCREEN, GIVEN_BACK = "\x1b[?1049h", "\x1b[?1049l"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SECONDS_MAX = 60.0


class Terminal:
    def __init__(
        self, command: list[str], width: int, height: int, variables: dict[str, str]
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(width, height)
        self._before = termios.tcgetattr(self._theirs)
        self._drawn = b""
        self._process = subprocess.Popen(
            command,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment(TERM="xterm-256color", NO_COLOR="1", **variables),
            start_new_session=True,
        )

    def resize(self, width: int, height: int) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, size)

    def tell_size(self) -> None:
        """As a terminal's kernel does for the program in its foreground."""
        self._process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    @property
    def drawn(self) -> str:
        """All that came, control sequences included."""
        while select.select([self._ours], [], [], 0)[0]:
            self._drawn += os.read(self._ours, 65536)
        return self._drawn.decode(errors="replace")

    @property
    def frame(self) -> str:
        """The last picture that is whole, as text: the one before is taken while one is drawn."""
        *_, before, last = ["", *self.drawn.split(HOME)]
        return _CONTROL.sub("", last or before).replace("\r", "")

    def wait_for(self, *words: str) -> str:
        """Until a picture has all of these words."""
        seen = ""

        def has_all() -> bool:
            nonlocal seen
            seen = self.frame
            return all(word in seen for word in words)

        try:
            eventually(has_all, f"{words} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from None
        return seen

    def wait(self) -> int:
        """Its exit code. What it draws meanwhile is taken, so that it never has to wait."""
        eventually(lambda: bool(self.drawn) and self._process.poll() is not None, "its end")
        return self._process.wait()

    @property
    def is_given_back(self) -> bool:
        """Whether it left the screen; what it wrote last may still be on its way after its end."""
        eventually(lambda: GIVEN_BACK in self.drawn, "the screen is given back")
        return True

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal behaves as it did before the program ran."""
        return termios.tcgetattr(self._theirs) == self._before

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_SECONDS_MAX)
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(
    command: list[str], width: int = 100, height: int = 30, **variables: str
) -> Iterator[Terminal]:
    opened = Terminal(command, width, height, variables)
    try:
        yield opened
    finally:
        opened.close()
