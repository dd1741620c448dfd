"""The messages that a transaction acknowledges, until they are sent to the nodes.

``add`` is called in the program's thread, ``take`` in the event loop.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.leases import Leases
from quiver.client.consumer.session.session import ConsumerSession
from quiver.errors import InvalidRequest, TransactionTooLarge
from quiver.model.receipt import leases_in

HELD_MAX = 1_000_000
"""How many messages one transaction may acknowledge."""

Source = tuple[ConsumerSession | None, str]
"""The session that messages came with, and the subscription."""


class HeldGroup(msgspec.Struct):
    """Messages of one subscription, from one session or without any."""

    session: ConsumerSession | None
    subscription: str
    leases: Leases


class HeldMessages:
    def __init__(self) -> None:
        self.participants: set[tuple[str, int]] = set()
        """The partitions that they are from."""
        self.sessions: set[ConsumerSession] = set()
        self._seen: Leases = {}
        self._count = 0
        self._added: deque[tuple[Source, bytes, int]] = deque()
        """Messages of sessions, whose heartbeats keep their leases."""
        self._loose: deque[tuple[Source, bytes, int]] = deque()
        """Messages whose leases end by themselves."""
        self._batches: deque[HeldGroup] = deque()

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._added or self._loose or self._batches)

    def add(self, message: ReceivedMessage, session: ConsumerSession | None) -> None:
        lease, offset = message.lease, message.offset
        if not lease:
            raise InvalidRequest(
                "the message is acknowledged already: it was delivered at most once"
            )
        self._check_room(1)
        seen = self._seen.get(lease)
        if seen is None:
            seen = self._seen[lease] = BitMap64()
        elif offset in seen:
            raise _acknowledged_twice(message.id)
        seen.add(offset)
        self._count += 1
        self.participants.add((message.topic, message.partition))
        if session is not None:
            self.sessions.add(session)
        added = self._loose if session is None else self._added
        added.append(((session, message.subscription), lease, offset))

    def add_batch(self, batch: pa.RecordBatch | pa.Table, subscription: str) -> None:
        """The rows of a received batch, which no session has."""
        missing = {"receipt", "topic", "partition"} - set(batch.schema.names)
        if missing:
            raise InvalidRequest(
                f"a received batch has a column {min(missing)!r}, and this one does not"
            )
        if not batch.num_rows:
            return
        self._check_room(batch.num_rows)
        leases = leases_in(batch.column("receipt"))
        for lease, offsets in leases.items():
            if offsets & self._seen.get(lease, BitMap64()):
                raise _acknowledged_twice("of the batch")
        for lease, offsets in leases.items():
            self._seen.setdefault(lease, BitMap64()).update(offsets)
        self._count += batch.num_rows
        table = pa.table({name: batch.column(name) for name in ("topic", "partition")})
        places: list[Any] = table.group_by(["topic", "partition"]).aggregate([]).to_pylist()
        self.participants.update((place["topic"], place["partition"]) for place in places)
        self._batches.append(HeldGroup(None, subscription, leases))

    def take(self, *, is_early: bool = False) -> list[HeldGroup]:
        """What was added since the last time. ``is_early``: only if its lease may end soon."""
        offsets: dict[Source, dict[bytes, list[int]]] = {}
        for added in (self._loose,) if is_early else (self._loose, self._added):
            while added:
                source, lease, offset = added.popleft()
                offsets.setdefault(source, {}).setdefault(lease, []).append(offset)
        groups = [
            HeldGroup(session, name, {lease: BitMap64(these) for lease, these in leases.items()})
            for (session, name), leases in offsets.items()
        ]
        while self._batches:
            groups.append(self._batches.popleft())
        return groups

    def _check_room(self, count: int) -> None:
        if self._count + count > HELD_MAX:
            raise TransactionTooLarge(
                f"a transaction acknowledges {HELD_MAX:,} messages at most: commit more often"
            )


def _acknowledged_twice(which: str) -> InvalidRequest:
    return InvalidRequest(f"message {which} is acknowledged in this transaction already")
