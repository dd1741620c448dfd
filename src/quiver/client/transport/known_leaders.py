"""Which node had the messages of a subscription last, and which had those of a partition.

The first is the one to ask for more, the second the one to settle its messages with.
"""

from __future__ import annotations

_NAMES_MAX = 1000

Name = str | tuple[int, int]
"""A subscription; or a partition, by its topic's number and its index."""


class KnownLeaders:
    """A guess, which costs nothing if it is wrong: any node answers for any of them."""

    def __init__(self, names_max: int = _NAMES_MAX) -> None:
        self._addresses: dict[Name, str] = {}
        self._names_max = names_max

    def get(self, name: Name) -> str | None:
        return self._addresses.get(name)

    def learn(self, name: Name, address: str) -> None:
        self._addresses[name] = address
        if len(self._addresses) > self._names_max:
            del self._addresses[next(iter(self._addresses))]

    def forget(self, name: Name, address: str | None) -> None:
        """That node did not answer; another may be known by now."""
        if address is not None and self._addresses.get(name) == address:
            del self._addresses[name]
