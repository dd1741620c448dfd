"""A node with something to see: topics, queues at work, dead letters of two kinds, and traffic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import quiver
from tests.serving import eventually

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>window.owned = 1</script>"
"""A payload that must be shown as the text it is."""
DECLINED = "card declined: it's expired"
POISON = 3
"""How many payments were declined; one more failed otherwise."""


def set_up(client: quiver.Client) -> None:
    client.create_topic("orders", partitions=4)
    client.create_subscription("billing", topics=["orders"], start="earliest")
    client.create_subscription("audit", topics=["orders"], ordering="partition", start="earliest")
    client.create_queue("emails")
    for number in range(40):
        order = {
            "id": number,
            "customer": f"customer-{number % 7}",
            "items": [{"sku": "a-1", "n": 2}],
        }
        client.publish("orders", order, key=f"customer-{number % 7}", headers={"region": "eu"})
    client.publish("emails", HOSTILE, key=HOSTILE, headers={"x-html": HOSTILE})
    client.publish("emails", {"to": "later@example.com"}, delay="1h")
    fail(client, "payments", [*[DECLINED] * POISON, HOSTILE])


def fail(client: quiver.Client, queue: str, errors: list[str]) -> None:
    """Make a queue, and let messages fail in it for these reasons."""
    client.create_queue(queue, max_deliveries=1, backoff={"min": 0, "max": 0, "factor": 1})
    for number in range(len(errors)):
        client.publish(queue, {"payment": number, "amount": 10.5 + number})
    left = list(errors)
    while left:
        for message in client.receive(queue, len(left), wait=5):
            client.nack(queue, [message.receipt], error=left.pop())
    wanted = len(errors)
    eventually(lambda: client.describe_subscription(queue).dead == wanted, "all are dead")
    eventually(lambda: len(client.peek(f"{queue}.dlq", 10)) == wanted, "dead letters are stored")


class Traffic:
    """Publishes and consumes until it is stopped."""

    def __init__(self, url: str, pace_s: float = 0.02) -> None:
        self._url = url
        self._pace_s = pace_s
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, daemon=True),
            threading.Thread(target=self._consume, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)

    def _publish(self) -> None:
        number = 0
        with quiver.Client(self._url) as client:
            while not self._stopping.wait(self._pace_s):
                number += 1
                order = {"id": number, "total": number * 1.5}
                client.publish("orders", order, key=f"customer-{number % 7}")

    def _consume(self) -> None:
        with quiver.Client(self._url) as client:
            while not self._stopping.is_set():
                messages = client.receive("billing", 10, wait=0.2)
                if messages:
                    client.ack("billing", [message.receipt for message in messages])


@contextmanager
def traffic(url: str) -> Iterator[None]:
    running = Traffic(url)
    running.start()
    try:
        yield
    finally:
        running.stop()
