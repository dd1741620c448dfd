"""Orders transfers between accounts and kills the worker in the middle of its work, again and again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
ACCOUNTS = [f"account-{number}" for number in range(5)]
TRANSFERS, KILLS = 200, 5
WAIT_S = 60


def start() -> subprocess.Popen[bytes]:
    """A worker. Its name lets it end at once what its predecessor left open."""
    worker = Path(__file__).with_name("worker.py")
    return subprocess.Popen([sys.executable, worker, "bank-worker-1"], stderr=subprocess.DEVNULL)


def order(q: quiver.Client) -> None:
    chance = random.Random(7)
    q.publish_many(
        "bank.transfers",
        [
            {"id": number, "from": one, "to": other, "cents": chance.randrange(1, 10_000)}
            for number in range(TRANSFERS)
            for one, other in [chance.sample(ACCOUNTS, 2)]
        ],
    )


def is_done(q: quiver.Client) -> bool:
    orders = q.describe_subscription("bank.transfers")
    if not orders.partitions:  # nobody leads the queue at the moment, so nobody knows
        return False
    return not (orders.unseen or orders.ready or orders.delayed or orders.leased)


def run(q: quiver.Client) -> None:
    order(q)
    worker = start()
    deadline = time.monotonic() + WAIT_S
    try:
        for _ in range(KILLS):
            time.sleep(random.uniform(0.5, 1.5))
            worker.kill()  # SIGKILL: no word of farewell
            worker.wait()
            worker = start()
        while not is_done(q):
            if time.monotonic() > deadline:
                sys.exit("nothing happens; is the node running? (make run)")
            time.sleep(0.1)
    finally:
        worker.kill()
        worker.wait()
    entries = [message.json() for message in q.read("bank.entries").messages()]
    balances = Counter(dict.fromkeys(ACCOUNTS, 0))
    for entry in entries:
        balances[entry["account"]] += entry["cents"]
    for account, cents in sorted(balances.items()):
        print(f"{account}: {cents / 100:10.2f}")
    booked = Counter(entry["transfer"] for entry in entries)
    print(f"transfers: {len(booked)}, all booked once: {set(booked.values()) == {2}}")
    print(f"sum of all accounts: {sum(balances.values())}")


if __name__ == "__main__":
    with quiver.Client(URL) as q:
        for name in ("bank.transfers", "bank.entries"):  # so that the example can be run again
            if name in {topic.name for topic in q.list_topics()}:
                delete = q.delete_subscription if name == "bank.transfers" else q.delete_topic
                delete(name)
        q.create_queue("bank.transfers")
        q.create_topic("bank.entries", partitions=3)
        run(q)
