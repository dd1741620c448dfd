"""Which node had the messages of a subscription last: the one to ask first for more."""

from __future__ import annotations

_SUBSCRIPTIONS_MAX = 1000


class KnownLeaders:
    """A guess, which costs nothing if it is wrong: any node answers for any subscription."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}

    def get(self, subscription: str) -> str | None:
        return self._addresses.get(subscription)

    def learn(self, subscription: str, address: str) -> None:
        self._addresses[subscription] = address
        if len(self._addresses) > _SUBSCRIPTIONS_MAX:
            del self._addresses[next(iter(self._addresses))]

    def forget(self, subscription: str, address: str | None) -> None:
        """That node did not answer; another may be known by now."""
        if address is not None and self._addresses.get(subscription) == address:
            del self._addresses[subscription]
