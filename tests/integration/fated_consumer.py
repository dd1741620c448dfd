"""A consumer in a process of its own that does with each message what its ``fate`` header says.

It reports every message that it gets: the number in its payload, and whether it came by a redrive.
"""

from __future__ import annotations

import quiver
from quiver.client.consumer.received import ReceivedMessage
from tests.killable import report


def consume(url: str) -> None:
    """Handle what comes until killed."""
    with quiver.Client(url, timeout=60) as q:
        for message in q.consume("jobs"):
            is_redriven = message.identity != message.id
            report(message.payload.decode(), int(is_redriven))
            if is_redriven:
                message.ack()
            else:
                settle(message)


def settle(message: ReceivedMessage) -> None:
    match message.headers["fate"]:
        case "reject":
            message.reject(error="rejected")
        case "fail":
            message.nack(delay=0, error="failed")
        case "retry" if message.deliveries == 1:
            message.nack(delay=0.05, error="not yet")
        case _:
            message.ack()
