"""A consumer in a process of its own that is killed with SIGKILL at a chosen place of its work."""

from __future__ import annotations

import os
import signal

import quiver
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.idempotent.idempotent import Work
from tests.killable import report

QUEUE = "payments"


def consume(url: str, store: str, killed: str, wait_s: float) -> None:
    """Handle payments, dying at ``killed`` of the first; else until none comes for ``wait_s``."""

    def reached(place: str) -> None:
        if place == killed:
            report("died", place)
            os.kill(os.getpid(), signal.SIGKILL)

    with quiver.idempotent(store) as once, quiver.Client(url) as q:

        @once
        def handle(message: ReceivedMessage, work: Work) -> bool:
            reached("before it writes")
            work.begin().execute("INSERT INTO charges VALUES (?)", (message.json()["payment"],))
            reached("before it is remembered")
            return True

        while messages := q.receive(QUEUE, 1, wait=wait_s):
            for message in messages:
                report("handled" if handle(message) else "skipped", message.offset)
                reached("before it is acknowledged")
                message.ack()
                reached("after it is acknowledged")
