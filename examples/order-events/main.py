"""One topic of order events, and three services that each get every event."""

from __future__ import annotations

import os
import secrets
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
TOPIC = "orders"
STEPS = ("placed", "paid", "shipped")
CUSTOMERS, ORDERS = 5, 20
EVENTS = CUSTOMERS * ORDERS * len(STEPS)
WAIT_S = 60


def shop(q: quiver.Client) -> None:
    with q.producer(TOPIC) as producer:
        for order in range(ORDERS):
            for step in STEPS:
                for customer in range(CUSTOMERS):
                    producer.send(
                        {"order": order, "step": step},
                        key=f"customer-{customer}",
                        headers={"step": step},
                    )


def billing(q: quiver.Client, subscription: str) -> str:
    """Sees each customer's events in the order in which they happened."""
    seen = defaultdict(list)
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, seen.values())) < EVENTS and time.monotonic() < deadline:
        messages = q.receive(subscription, 100, wait="1s")
        for message in messages:
            event = message.json()
            seen[message.key].append((event["order"], STEPS.index(event["step"])))
        q.ack(subscription, messages)
    in_order = all(events == sorted(events) for events in seen.values())
    count = sum(map(len, seen.values()))
    return f"billing: {count} events of {len(seen)} customers, in order: {in_order}"


def warehouse(q: quiver.Client, subscription: str) -> str:
    """Gets what is paid, and nothing else."""
    steps, deadline = [], time.monotonic() + WAIT_S
    while len(steps) < CUSTOMERS * ORDERS and time.monotonic() < deadline:
        messages = q.receive(subscription, 100, wait="1s")
        steps += [message.headers["step"] for message in messages]
        q.ack(subscription, messages)
    return f"warehouse: {len(steps)} orders to pack, all paid: {set(steps) == {'paid'}}"


def analytics(q: quiver.Client, subscription: str) -> str:
    """Counts with Arrow; no message becomes a Python object."""
    events = size = 0
    deadline = time.monotonic() + WAIT_S
    while events < EVENTS and time.monotonic() < deadline:
        batch = q.receive_batch(subscription, wait="1s")
        events += batch.num_rows
        size += batch.column("payload").nbytes
        q.ack(subscription, batch)
    return f"analytics: {events} events, {size} bytes"


if __name__ == "__main__":
    run = secrets.token_hex(3)  # subscriptions of this run; a real service keeps its own
    with quiver.Client(URL) as q:
        q.create_topic(TOPIC, partitions=4, exist_ok=True)
        services = {
            billing: {"ordering": "key"},
            warehouse: {"filter": "headers.step = 'paid'"},
            analytics: {},
        }
        for service, settings in services.items():
            q.create_subscription(f"{service.__name__}-{run}", topics=[TOPIC], **settings)
        with ThreadPoolExecutor() as threads:
            working = [
                threads.submit(service, q, f"{service.__name__}-{run}") for service in services
            ]
            shop(q)
            for work in working:
                print(work.result())
        for service in services:
            q.delete_subscription(f"{service.__name__}-{run}")
