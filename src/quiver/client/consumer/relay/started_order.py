"""Which of the messages that a program has it got first.

When a program ends without a word, that one was most likely in its hands.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver.client.consumer.session.leases import Leases

_SPARE = 100
"""About so many runs that are settled may stay before they are cleared out."""


class StartedOrder:
    """Runs of messages in the order in which they were started."""

    def __init__(self) -> None:
        self._runs: list[tuple[bytes, Iterable[int]]] = []
        self._runs_max = _SPARE

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, runs: Iterable[tuple[bytes, Iterable[int]]], held: Leases) -> None:
        """These were started after all others. ``held`` is what the program has now."""
        self._runs += runs
        if len(self._runs) > self._runs_max:
            self._runs = [(lease, offsets) for lease, offsets in self._runs if lease in held]
            self._runs_max = 2 * len(self._runs) + _SPARE

    def oldest(self, held: Leases) -> tuple[bytes, int] | None:
        """The lease and the offset of the first one that the program has."""
        for lease, offsets in self._runs:
            among = held.get(lease, ())
            for offset in offsets if among else ():
                if offset in among:
                    return lease, offset
        return None
