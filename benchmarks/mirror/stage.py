"""Two nodes, one of which copies from the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.log.subject import ready_batch
from quiver import Client, TopicNotFound
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import seal_batch
from quiver.model.schema import PAYLOAD, schema_of

MESSAGES = 100
"""In each batch, of 1 KB."""
TOPIC = "orders"
_SECONDS_MAX = 120.0
_POLL_S = 0.01


class Stage(msgspec.Struct, frozen=True):
    source: Child
    target: Child
    there: Client
    here: Client

    def publish(self, batches: int, topic: str = TOPIC, *, is_text: bool = False) -> int:
        """Publish so many batches to a new topic at the source; how many messages that are."""
        self.there.create_topic(topic, durability="fsync")
        make = _text_batch if is_text else _random_batch
        publish_pipelined(self.source.address, topic, [make(seed) for seed in range(16)], batches)
        return batches * MESSAGES

    def copied(self, topic: str) -> int:
        """Where the copy ends; 0 if it is not there yet."""
        try:
            return self.here.describe_topic(topic).partitions[0].next_offset or 0
        except TopicNotFound:
            return 0


def _random_batch(seed: int) -> UnstoredBatch:
    return ready_batch(MESSAGES, 1_000, seed)


def _text_batch(seed: int) -> UnstoredBatch:
    """Messages that compress as JSON does: to about a third."""
    chance = random.Random(seed)
    lines = b'{"order":%012d,"customer":%09d,"total":%07d,"state":"paid"},'
    payloads = [
        b"".join(lines % tuple(chance.randrange(10**7) for _ in range(3)) for _ in range(15))[
            :1_000
        ]
        for _ in range(MESSAGES)
    ]
    rows = pa.record_batch([pa.array(payloads, pa.binary())], schema=schema_of(PAYLOAD))
    return seal_batch(rows.serialize().to_pybytes(), MESSAGES, PAYLOAD)


@contextmanager
def two_nodes(bench: Bench) -> Iterator[Stage]:
    with (
        bench.folder() as one,
        bench.folder() as other,
        served(one) as source,
        served(other) as target,
        Client(source.url) as there,
        Client(target.url) as here,
    ):
        yield Stage(source, target, there, here)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"not within {_SECONDS_MAX:g} s"
        time.sleep(_POLL_S)
