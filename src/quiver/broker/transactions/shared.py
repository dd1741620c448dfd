"""Shared transactions: several clients write parts of one, and whoever commits names the parts that count.

A shared transaction has a name and a number. Each part is a transaction of its own, which a client joins to
it before it writes. Under a name one number is open at a time, numbers only grow, and each is committed at
most once. A client that died leaves a part that nobody names: it is aborted when the others are committed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quiver.broker.transactions.machine import Open
from quiver.broker.transactions.records import Checkpoint, PartJoined, SavedShared, SharedEnded
from quiver.model.ids import Microseconds
from quiver.model.transaction import TransactionId
from quiver.protocol import Participant

ENDED_US = 900 * 1_000_000
"""How long a name is refused that nobody uses any more: a client that was slow may come with it."""
_ENDED_MAX = 10_000


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says when it joins its transaction to a shared one, and from time to time after."""

    transaction: TransactionId
    name: str
    number: int
    timeout_us: int
    participants: list[Participant] = []


class SharedEnding(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says when it commits or aborts a shared transaction."""

    name: str
    number: int
    is_commit: bool
    parts: list[TransactionId] = []
    """Those that count."""
    participants: list[Participant] = []
    is_last: bool = False


class Shared(msgspec.Struct):
    """The shared transactions of one name."""

    committed: int = -1
    """The number of the last that was committed."""
    number: int = -1
    timeout_us: int = 0
    parts: set[TransactionId] = set()
    """Of this number, those that are not decided."""
    open: Open | None = None
    """What the parts have in common while they are open. In memory alone: clients say it again."""

    def heard(self, now_us: Microseconds, participants: Iterable[Participant] = ()) -> Open:
        """A client was heard of: all parts stay open for another time limit."""
        if self.open is None or self.open.deadline_us <= now_us:
            self.open = Open(now_us, self.timeout_us, set())
        self.open.begun_us, self.open.timeout_us = now_us, self.timeout_us
        self.open.participants.update(participants)
        return self.open


class SharedTransactions:
    """By the name as it is stored. The changes are those of the records alone, but for ``open``."""

    def __init__(self) -> None:
        self._by_name: dict[str, Shared] = {}
        self._names: dict[TransactionId, str] = {}
        """By part."""
        self.ended_names: dict[str, Microseconds] = {}
        """Names that nobody uses any more, and since when: the oldest first."""

    def __contains__(self, transaction: TransactionId) -> bool:
        return transaction in self._names

    def get(self, name: str) -> Shared:
        """Those of a name; unchanged ones if there were none."""
        return self._by_name.get(name) or Shared(parts=set())

    def of(self, transaction: TransactionId) -> Shared | None:
        """What a part belongs to, while it is not decided."""
        name = self._names.get(transaction)
        return None if name is None else self._by_name[name]

    # ------------------------------------------------------------------ the fold

    def joined(self, record: PartJoined) -> None:
        shared = self._by_name.setdefault(record.name, Shared(parts=set()))
        if record.number != shared.number:
            shared.number, shared.open, shared.timeout_us = record.number, None, 0
        shared.timeout_us = max(shared.timeout_us, record.timeout_us)
        shared.parts.add(record.transaction)
        self._names[record.transaction] = record.name

    def decided(self, transaction: TransactionId) -> None:
        """A transaction has ended, which may be a part."""
        name = self._names.pop(transaction, None)
        if name is not None:
            self._by_name[name].parts.discard(transaction)

    def ended(self, record: SharedEnded) -> None:
        """After ``decided`` of its parts."""
        shared = self._by_name.get(record.name)
        if shared is not None and record.committed:
            shared.committed, shared.open = record.number, None
        if record.is_last:
            self.forget(record.name)
            self.ended_names[record.name] = record.time_us
            if len(self.ended_names) > _ENDED_MAX:
                del self.ended_names[next(iter(self.ended_names))]

    def expire(self, now_us: Microseconds) -> None:
        while self.ended_names:
            oldest = next(iter(self.ended_names))
            if self.ended_names[oldest] + ENDED_US > now_us:
                break
            del self.ended_names[oldest]

    def forget(self, name: str) -> None:
        shared = self._by_name.pop(name, None)
        for part in () if shared is None else shared.parts:
            del self._names[part]

    def saved(self) -> dict[str, SavedShared]:
        return {
            name: SavedShared(one.committed, one.number, one.timeout_us, sorted(one.parts))
            for name, one in self._by_name.items()
        }

    @classmethod
    def restored(cls, saved: Checkpoint) -> SharedTransactions:
        shared = cls()
        shared.ended_names = dict(saved.ended_names)
        for name, one in saved.shared.items():
            shared._by_name[name] = Shared(
                one.committed, one.number, one.timeout_us, set(one.parts)
            )
            shared._names.update(dict.fromkeys(one.parts, name))
        return shared
