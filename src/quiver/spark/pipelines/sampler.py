"""Looks at nodes now and then, and stores what it sees in a topic, from where it counts on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from quiver.client import Client, OutgoingMessage
from quiver.client.transport.addresses import addresses_in
from quiver.errors import QuiverError
from quiver.model.topic import Retention
from quiver.spark.pipelines.samples import Look, Sample, added_up, look_in

EVERY_S = 5.0
_TAIL = 20_000
"""Messages in which the last sample of each subscription is; a look makes about 1,000."""


class Sampler:
    def __init__(self, nodes: Sequence[Client], topic: str) -> None:
        self._nodes = nodes
        self._topic = topic
        self._ended = threading.Event()
        nodes[0].create_topic(
            topic, retention=Retention(age=None, messages=10 * _TAIL), exist_ok=True
        )
        self._last = {one.subscription: one for one in self._stored()}

    def take(self) -> None:
        """Look at every node once."""
        looks: dict[str, Look] = {}
        for client in self._nodes:
            look = look_in(client.metrics(), time.time())
            looks[look.node] = look  # two addresses may be of the same node
        samples = added_up(list(looks.values()), self._last)
        if samples:
            self._nodes[0].publish_many(
                self._topic, [OutgoingMessage(payload=msgspec.json.encode(one)) for one in samples]
            )
        self._last.update({one.subscription: one for one in samples})

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Look at the beginning, at the end, and every few seconds in between."""
        self.take()
        thread = threading.Thread(target=self._go_on, name="sampler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._take_if_there()

    def _go_on(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._take_if_there()

    def _take_if_there(self) -> None:
        """A node that is away misses a look, and the next one counts for both."""
        with suppress(QuiverError):
            self.take()

    def _stored(self) -> Iterator[Sample]:
        """The newest samples of the runs before, in their order."""
        (partition,) = self._nodes[0].describe_topic(self._topic).partitions
        start, end = partition.start_offset or 0, partition.next_offset or 0
        begin = max(start, end - _TAIL)
        if begin < end:
            with self._nodes[0].read(self._topic, start=begin, end=end) as reader:
                for message in reader.messages():
                    yield msgspec.json.decode(message.payload, type=Sample)


@contextmanager
def open_sampler(url: str, topic: str) -> Iterator[Sampler]:
    """A sampler of all nodes that the URL names."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(Client(f"{url.split('://', maxsplit=1)[0]}://{address}"))
            for address in addresses_in(url)
        ]
        yield Sampler(nodes, topic)
