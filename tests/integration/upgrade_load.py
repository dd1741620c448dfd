"""Load on a cluster that is upgraded, by whichever Quiver is on the path: run it as a program.

It publishes to a queue, a topic and a topic that keeps little. It consumes the queue in a session, where some
messages have a priority or a delay and some fail once, and reads the topic as a member of a group. Each
line of its output is a fact: what happened, to which message, and when on the clock that all processes of
the machine share. It uses only what every released client has.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import quiver

PAUSE_S = 0.01
TIMEOUT = "60s"
_output = threading.Lock()


def report(fact: str, payload: str) -> None:
    with _output:
        sys.stdout.write(f"{time.monotonic_ns()} {fact} {payload}\n")
        sys.stdout.flush()


def publish(client: quiver.Client, name: str, stop: Path) -> None:
    number = 0
    while not stop.exists():
        payload = f"{name}-{number}"
        urgent = {"priority": 9, "delay": "50ms"} if number % 7 == 0 else {}
        client.publish("work", payload, key=str(number % 16), **urgent)
        report("stored-work", payload)
        client.publish("events", payload, key=str(number % 16))
        report("stored-events", payload)
        client.publish("short", payload)
        number += 1
        time.sleep(PAUSE_S)
    report("published", str(number))


def consume(client: quiver.Client, name: str) -> None:
    for message in client.consume("work", consumer=name):
        if message.deliveries == 1 and message.text().endswith("1"):
            message.nack(error="once")
            continue
        report("consumed", message.text())
        message.ack()


def read(client: quiver.Client, name: str) -> None:
    while True:
        messages = client.receive("billing", 20, wait="500ms", consumer=name)
        for message in messages:
            report("received", f"{message.partition}/{message.offset} {message.text()}")
        try:
            client.ack("billing", messages)
        except quiver.StaleReceipt:  # the partition went to the other member meanwhile
            continue
        for message in messages:
            report("acked", message.text())


def guarded(work: object, *arguments: object) -> None:
    try:
        work(*arguments)  # type: ignore[operator]
    except BaseException as error:
        report("failed", repr(error))
        raise


def main(url: str, name: str, stop: str) -> None:
    with (
        quiver.Client(url, timeout=TIMEOUT) as client,
        quiver.Client(url, timeout=TIMEOUT) as other,
    ):
        jobs = (
            (publish, client, name, Path(stop)),
            (consume, other, name),
            (read, client, name),
        )
        threads = [threading.Thread(target=guarded, args=job, daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
