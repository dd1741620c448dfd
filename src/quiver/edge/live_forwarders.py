"""The forwarders that are connected with this node and live. No clock: time comes in.

A forwarder announces itself every few seconds, on a connection that it keeps. It is forgotten when that
connection ends, or when it has been silent for too long. So every node knows the forwarders by itself,
and nothing about them is stored.
"""

from __future__ import annotations

import msgspec

from quiver.errors import Overloaded
from quiver.protocol import Announce, NodeInfo

SILENT_S = 10.0
"""A forwarder that has said nothing for so long counts as ended."""
FORWARDERS_MAX = 1000
_TEXT_MAX = 300


class _Live(msgspec.Struct):
    announced: Announce
    owner: object
    """The connection that it came over last."""
    heard: float


class LiveForwarders:
    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}

    def announce(self, announced: Announce, owner: object, now: float) -> None:
        """A forwarder lives, and ``owner`` is its connection."""
        self._forget_silent(now)
        if announced.instance not in self._live and len(self._live) >= FORWARDERS_MAX:
            raise Overloaded(f"there are {FORWARDERS_MAX:,} forwarders, the most allowed")
        self._live[announced.instance] = _Live(announced, owner, now)

    def leave(self, owner: object) -> None:
        """The connection ended. A forwarder that has come over another one meanwhile stays."""
        self._live = {key: one for key, one in self._live.items() if one.owner is not owner}

    def count(self, now: float) -> int:
        self._forget_silent(now)
        return len(self._live)

    def webhook_callers(self, now: float) -> list[str]:
        """The instances of those that can call webhooks."""
        self._forget_silent(now)
        return sorted(key for key, one in self._live.items() if one.announced.calls_webhooks)

    def described(self, nodes: list[NodeInfo], now: float) -> list[NodeInfo]:
        """The nodes, and after them the forwarders, each under a name of its own."""
        self._forget_silent(now)
        names = {node.id for node in nodes}
        forwarders = []
        for one in sorted(self._live.values(), key=lambda one: _identity(one.announced)):
            announced = one.announced
            name = announced.name[:_TEXT_MAX]
            if name in names:
                name = f"{name}@{announced.address[:_TEXT_MAX]}"
            names.add(name)
            forwarders.append(
                NodeInfo(
                    id=name,
                    address=announced.address[:_TEXT_MAX],
                    http=announced.http[:_TEXT_MAX],
                    zone=announced.zone[:_TEXT_MAX],
                    version=announced.version[:_TEXT_MAX],
                    role="forwarder",
                )
            )
        return [*nodes, *forwarders]

    def _forget_silent(self, now: float) -> None:
        silent = [key for key, one in self._live.items() if now - one.heard > SILENT_S]
        for key in silent:
            del self._live[key]


def _identity(announced: Announce) -> tuple[str, str, str]:
    return announced.name, announced.address, announced.instance
