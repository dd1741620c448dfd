"""Starts Spark's Python processes, as PySpark's own daemon does, with fewer words.

Spark may be done with a process that has not said its last: the pipe is closed, and PySpark prints a
traceback on the user's terminal although nothing is wrong. Such a process only ends.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_ENDED = 1
_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _work(sock, authenticated)
    except BrokenPipeError:
        return _ENDED


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
