"""What ``quiver top`` shows of mirrors: their state, lag and throughput."""

from __future__ import annotations

import msgspec

from quiver.protocol import MirrorInfo


class MirrorRow(msgspec.Struct, kw_only=True):
    name: str
    state: str
    lag_messages: int | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    byte_rate: float = 0.0
    """Bytes of entries copied each second."""
    error: str = ""
    """Why the source cannot be reached."""


class MirrorRates:
    """Rates are between two looks."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}

    def rows(self, mirrors: list[MirrorInfo], now: float) -> list[MirrorRow]:
        """``now`` is in seconds. What is copied less than before was begun again."""
        found = [self._row(one, now) for one in mirrors]
        self._before = {one.name: (now, one.copied_bytes) for one in mirrors}
        return found

    def _row(self, info: MirrorInfo, now: float) -> MirrorRow:
        at, size = self._before.get(info.name, (now, info.copied_bytes))
        added = max(0, info.copied_bytes - size)
        return MirrorRow(
            name=info.name,
            state=info.state,
            lag_messages=info.lag_messages,
            lag_bytes=info.lag_bytes,
            lag_s=info.lag_s,
            byte_rate=added / (now - at) if now > at else 0.0,
            error=info.error,
        )
