"""The nodes behind a forwarder: those in its settings, and those that they name.

A client can be connected with these alone, so a forwarder is no way into the rest of its network.
"""

from __future__ import annotations

from collections.abc import Sequence

NODES_MAX = 10_000


class UpstreamNodes:
    """``seeds`` are the addresses in the settings; they always count as nodes."""

    def __init__(self, seeds: Sequence[str]) -> None:
        self._seeds = list(seeds)
        self._live: list[str] = []
        self._turn = 0

    def __contains__(self, address: str) -> bool:
        return address in self._live or address in self._seeds

    @property
    def addresses(self) -> list[str]:
        """The live nodes, as one of them named them last; those in the settings if none did."""
        return list(self._live or self._seeds)

    def learn(self, addresses: Sequence[str]) -> None:
        """A node has named the live ones. A node that is on its own names none."""
        if addresses:
            self._live = list(dict.fromkeys(addresses[:NODES_MAX]))

    def in_turn(self) -> list[str]:
        """All of them, in the order in which to try them; each time another one is the first."""
        live = self.addresses
        self._turn = (self._turn + 1) % len(live)
        rest = [seed for seed in self._seeds if seed not in live]
        return [*live[self._turn :], *live[: self._turn], *rest]
