"""How often each message was delivered, kept as one set of offsets for each count."""

from __future__ import annotations

from pyroaring import BitMap64

from quiver.broker.delivery.machine.offset_sets import discard_from_all

_NONE = BitMap64()


class Attempts:
    """Counts of messages that were delivered and are not yet done with."""

    def __init__(self) -> None:
        self.levels: dict[int, BitMap64] = {}

    def of(self, offset: int) -> int:
        return next((count for count, offsets in self.levels.items() if offset in offsets), 0)

    @property
    def once(self) -> BitMap64:
        """What was delivered once."""
        return self.levels.get(1, _NONE)

    def among(self, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that were delivered at least once."""
        if not offsets:
            return offsets
        return BitMap64.union(_NONE, *(level & offsets for level in self.levels.values()))

    def split(self, offsets: BitMap64) -> dict[int, BitMap64]:
        """The offsets by how often they were delivered."""
        parts = {count: level & offsets for count, level in self.levels.items()}
        return {count: part for count, part in parts.items() if part}

    def add_delivery(self, offsets: BitMap64) -> None:
        again = self.split(offsets)
        self.forget(offsets)
        for count, part in again.items():
            self._add(count + 1, part)
            offsets = offsets - part
        self._add(1, offsets)

    def take_back(self, offsets: BitMap64) -> None:
        """The last delivery does not count after all."""
        counted = self.split(offsets)
        self.forget(offsets)
        for count, part in counted.items():
            self._add(count - 1, part)

    def forget(self, offsets: BitMap64) -> None:
        discard_from_all(self.levels, offsets)

    def _add(self, count: int, offsets: BitMap64) -> None:
        if count and offsets:
            self.levels.setdefault(count, BitMap64()).update(offsets)
