"""The file that says where a node listens, there for as long as the node is ready.

Whoever finds it may connect. A shell waits for the end of the process and removes the file, so that it
is gone even after SIGKILL. What is left if both were killed is removed by the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from quiver.config import Address

_GUARD = """read -r _; case "$(cat "$0" 2>/dev/null)" in *"\\"pid\\": $1"[,}]*) rm -f "$0";; esac"""
"""Standard input ends with the process. By then the file may be that of another."""


class ReadyFile:
    """Use it with ``with``, before the node starts."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ReadyFile:
        self._path.unlink(missing_ok=True)
        return self

    def write(self, native: Address | None, http: Address | None) -> None:
        """Write the file atomically: a program that waits for it may read it as soon as it exists."""
        self._watch()
        listening = {"native": native, "http": http}
        addresses = {name: str(address) for name, address in listening.items() if address}
        content = json.dumps({"pid": os.getpid(), **addresses}) + "\n"
        folder = self._path.parent
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".ready-", delete=False) as file:
            file.write(content)
        os.replace(file.name, self._path)

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # without a shell the file may outlive the process
            self._guard = subprocess.Popen(  # noqa: S603 - the words are this module's own
                ["/bin/sh", "-c", _GUARD, str(self._path.absolute()), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the node
            )

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()
