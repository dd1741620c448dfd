"""Ports that stay free until somebody listens there.

They are below the range from which the system takes ports for connections and for whoever asks for
any: nobody gets one by chance between the moment when it is chosen and the moment when it is used,
nor while a node that had it is down.
"""

from __future__ import annotations

import random
import socket

_FIRST, _END = 15_000, 32_000
_TRIES_MAX = 100
_rng = random.SystemRandom()  # tests at work at the same time have the same seed


def free_port() -> int:
    for _ in range(_TRIES_MAX):
        port = _rng.randrange(_FIRST, _END)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")
