"""A web shop that never closes: orders in waves, services that follow them, mails of which some fail."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable
from threading import Event, Thread

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
ORDERS, MAILS = "orders", "mails"
FIGURES, PIPELINE = "order-figures", "pipeline"
"""The topic that Spark writes to, and the subscription that shows how far it has come."""
STEPS = ("placed", "paid", "shipped")
TICK_S = 0.1
BUSY, CALM = 30, 5
"""Orders in a tick, at most and at least."""
WAVE_S = 30.0
MAIL_EVERY = 10


def set_up(q: quiver.Client) -> None:
    q.create_topic(ORDERS, partitions=4, exist_ok=True)
    q.create_subscription("billing", topics=[ORDERS], ordering="key", exist_ok=True)
    paid = "headers.step = 'paid'"
    q.create_subscription("warehouse", topics=[ORDERS], filter=paid, exist_ok=True)
    q.create_subscription(PIPELINE, topics=[ORDERS], start="earliest", exist_ok=True)
    q.create_queue(MAILS, max_deliveries=3, backoff={"min": "1s", "max": "5s"}, exist_ok=True)


def sell(q: quiver.Client, closing: Event) -> None:
    """Orders come in waves; with every tenth goes a mail, urgent or for later."""
    sold = 0
    with q.producer(ORDERS) as orders, q.producer(MAILS) as mails:
        while not closing.wait(TICK_S):
            wave = (1 + math.sin(time.monotonic() * 2 * math.pi / WAVE_S)) / 2
            for _ in range(round(CALM + (BUSY - CALM) * wave)):
                sold += 1
                customer, step = f"customer-{random.randrange(50)}", random.choice(STEPS)
                order = {"id": sold, "step": step, "total": round(random.lognormvariate(3, 1), 2)}
                orders.send(order, key=customer, headers={"step": step})
                if sold % MAIL_EVERY == 0:
                    later = random.random() < 0.3
                    mails.send(
                        {"to": f"{customer}@example.org", "about": sold},
                        priority=4 if later else 9,
                        delay="15s" if later else 0,
                    )


def bill(q: quiver.Client, closing: Event) -> None:
    while not closing.is_set():
        q.ack("billing", q.receive("billing", 100, wait="500ms"))


def pack(q: quiver.Client, closing: Event) -> None:
    """Takes its time: when the shop is busy, parcels wait."""
    while not closing.is_set():
        q.ack("warehouse", q.receive("warehouse", 12, wait="500ms"))
        closing.wait(0.2)


def mail(q: quiver.Client, closing: Event) -> None:
    """Customer 13 has moved: what is sent there comes back, and ends in the dead letters."""
    while not closing.is_set():
        for message in q.receive(MAILS, 10, wait="500ms"):
            if message.json()["to"].startswith("customer-13@"):
                message.nack(error="550 no such mailbox")
            else:
                message.ack()


def main() -> None:
    closing = Event()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: closing.set())
    failed: list[str] = []

    def at_work(work: Callable[[quiver.Client, Event], None]) -> None:
        try:
            work(q, closing)
        except quiver.errors.QuiverError as error:
            failed.append(f"{work.__name__}: {error}")
            closing.set()

    with quiver.Client(URL) as q:
        set_up(q)
        staff = [Thread(target=at_work, args=(work,)) for work in (sell, bill, pack, mail)]
        for each in staff:
            each.start()
        closing.wait()
        for each in staff:
            each.join()
    if failed:
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
