"""Messages that were pushed to a session and that no program has yet, of one push.

They are message objects or one Arrow batch. Both can be taken from the front, as the program gets
them, and given back from the end, if it will not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby, islice
from operator import attrgetter

import pyarrow as pa
from pyroaring import BitMap64

from quiver import arrow_compute as pc
from quiver.client.consumer.received import ReceivedMessage, leases_of
from quiver.client.consumer.session.leases import Leases
from quiver.client.consumer.session.node_stream import NodeStream
from quiver.model.receipt import leases_in, receipt

Run = tuple[bytes, Iterable[int]]
"""Messages of one lease, one after the other."""


class PushedMessages:
    def __init__(
        self, stream: NodeStream, messages: Iterable[ReceivedMessage], size: int = 0
    ) -> None:
        self.stream = stream
        self.messages = deque(messages)
        self.size = size
        """How many bytes the push had."""

    def __len__(self) -> int:
        return len(self.messages)

    def leases(self) -> Leases:
        return leases_of(self.messages)

    def runs(self) -> list[Run]:
        """The messages in their order, by lease."""
        return [
            (lease, [message.offset for message in run])
            for lease, run in groupby(self.messages, attrgetter("lease"))
        ]

    def take(self, count: int) -> PushedMessages:
        """The first so many."""
        if count >= len(self.messages):
            taken, self.messages = self.messages, deque()
            return PushedMessages(self.stream, taken, self.size)
        return PushedMessages(self.stream, [self.messages.popleft() for _ in range(count)])

    def give_back(self, count: int) -> Leases:
        """The last so many, which no program will get."""
        kept = max(0, len(self.messages) - count)
        back = leases_of(islice(self.messages, kept, None))
        self.messages = deque(islice(self.messages, kept))
        return back

    def without(self, lost: Leases) -> PushedMessages:
        """Those that are none of these."""
        none = BitMap64()
        messages = [one for one in self.messages if one.offset not in lost.get(one.lease, none)]
        return PushedMessages(self.stream, messages, self.size)


class PushedBatch:
    """The same as an Arrow batch with a column of receipts. Nothing is done for each message."""

    def __init__(self, stream: NodeStream, batch: pa.RecordBatch, size: int = 0) -> None:
        self.stream = stream
        self.batch = batch
        self.size = size

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def leases(self) -> Leases:
        return leases_in(self.batch.column("receipt")) if len(self) else {}

    def runs(self) -> list[Run]:
        return list(self.leases().items())

    def take(self, count: int) -> PushedBatch:
        taken = PushedBatch(self.stream, self.batch.slice(0, count), self.size)
        self.batch = self.batch.slice(count)
        return taken

    def give_back(self, count: int) -> Leases:
        kept = max(0, len(self) - count)
        back = PushedBatch(self.stream, self.batch.slice(kept)).leases()
        self.batch = self.batch.slice(0, kept)
        return back

    def without(self, lost: Leases) -> PushedBatch:
        named = [receipt(lease, offset) for lease, offsets in lost.items() for offset in offsets]
        is_lost = pc.is_in(self.batch.column("receipt"), pa.array(named, pa.string()))
        return PushedBatch(self.stream, self.batch.filter(pc.invert(is_lost)), self.size)


Pushed = PushedMessages | PushedBatch
