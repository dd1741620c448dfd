"""Names of transactions' producers: whoever begins under one fences its predecessor.

A name belongs to an owner, as names of producers do. An owner has a bounded number of them. Where there is
no room for another, names that were not used for a month are forgotten.
"""

from __future__ import annotations

from quiver.broker.transactions.records import SavedName
from quiver.errors import QuotaExceeded
from quiver.model.ids import Microseconds, ProducerId

UNUSED_US = 30 * 86_400 * 1_000_000
_FORGOTTEN_MAX = 100


class TransactionNames:
    """By the name as it is stored, which tells owners apart."""

    def __init__(self) -> None:
        self._names: dict[str, SavedName] = {}
        self._by_producer: dict[ProducerId, str] = {}
        self._by_owner: dict[str, set[str]] = {}

    def holder(self, name: str) -> ProducerId | None:
        """Who began under a name last, if that is known."""
        known = self._names.get(name)
        return None if known is None else known.producer

    def to_forget(self, name: str, owner: str, names_max: int, now_us: Microseconds) -> list[str]:
        """What has to go before the owner begins under a name; ``QuotaExceeded`` if nothing can."""
        own = self._by_owner.get(owner, set())
        if not names_max or name in self._names or len(own) < names_max:
            return []
        unused = [one for one in own if self._names[one].used_us + UNUSED_US < now_us]
        if len(own) - min(len(unused), _FORGOTTEN_MAX) >= names_max:
            raise QuotaExceeded(
                f"you have {len(own):,} names of transactions, the most allowed: use one of them "
                "again, or transactions without a name",
                quota="producers",
            )
        return sorted(unused, key=lambda one: self._names[one].used_us)[:_FORGOTTEN_MAX]

    def keep(self, name: str, saved: SavedName) -> None:
        self.forget(name)
        self._names[name] = saved
        self._by_producer[saved.producer] = name
        self._by_owner.setdefault(saved.owner, set()).add(name)

    def forget(self, name: str) -> None:
        known = self._names.pop(name, None)
        if known is not None:
            del self._by_producer[known.producer]
            own = self._by_owner[known.owner]
            own.discard(name)
            if not own:
                del self._by_owner[known.owner]

    def used(self, producer: ProducerId, time_us: Microseconds) -> None:
        """A transaction of this producer has ended."""
        name = self._by_producer.get(producer)
        if name is not None:
            self.touch(name, time_us)

    def touch(self, name: str, time_us: Microseconds) -> None:
        """The name is in use."""
        known = self._names.get(name)
        if known is not None:
            self._names[name] = SavedName(known.owner, known.producer, time_us)

    def saved(self) -> dict[str, SavedName]:
        return dict(self._names)

    @classmethod
    def restored(cls, saved: dict[str, SavedName]) -> TransactionNames:
        names = cls()
        for name, one in saved.items():
            names.keep(name, one)
        return names
