"""One of several services that write their log to a topic."""

from __future__ import annotations

import os
import random
import sys

import quiver

LEVELS = ("debug", "info", "info", "info", "warning", "error")


def main(url: str, topic: str, service: str, lines: int) -> None:
    rng = random.Random(service)
    with quiver.Client(url) as q, q.producer(topic, compression="zstd") as producer:
        for number in range(lines):
            level = rng.choice(LEVELS)
            producer.send(
                {"line": number, "text": f"request {number} took {rng.randrange(500)} ms"},
                key=service,  # lines of one service stay in order
                headers={"level": level},
            )


if __name__ == "__main__":
    topic, service, lines = sys.argv[1:]
    main(os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401"), topic, service, int(lines))
