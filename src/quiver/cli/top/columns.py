"""The columns of both tables: what they show of a row, and what they are sorted by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from quiver.cli.support.text import harmless, shown_bytes, shown_count

Row = Any
"""Metrics of a topic or of a subscription."""


class Column(msgspec.Struct, frozen=True):
    title: str
    value: Callable[[Row], Any]
    show: Callable[[Any], str]
    rank: int
    """Those with the highest go first where there is no room for all."""
    is_text: bool = False
    style: str = ""
    """Of values above zero."""


def shown_rate(rate: float) -> str:
    return f"{rate:,.1f}/s" if 0 < rate < 10 else f"{rate:,.0f}/s"


def shown_age(age_s: float | None) -> str:
    """``0.25`` as ``250 ms``, ``93`` as ``1m33s``; not known as a dash."""
    if age_s is None:
        return "-"
    if age_s < 1:
        return f"{age_s * 1000:.0f} ms" if age_s else "0 s"
    if age_s < 60:
        return f"{age_s:.0f} s"
    minutes, second = divmod(round(age_s), 60)
    hours, minute = divmod(minutes, 60)
    if hours < 1:
        return f"{minute}m{second:02d}s"
    days, hour = divmod(hours, 24)
    return f"{days}d{hour:02d}h" if days else f"{hour}h{minute:02d}m"


def shown_ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:.3g} ms"


QUEUES = (
    Column("NAME", lambda row: row.name, harmless, 0, is_text=True),
    Column("LAG", lambda row: row.pending, shown_count, 1),
    Column("OLDEST", lambda row: row.oldest_s, shown_age, 2),
    Column("DONE", lambda row: row.rate, shown_rate, 3),
    Column("READY", lambda row: row.ready, shown_count, 5),
    Column("LEASED", lambda row: row.leased, shown_count, 6),
    Column("DELAYED", lambda row: row.delayed, shown_count, 7),
    Column("DEAD", lambda row: row.dead, shown_count, 4, style="red"),
    Column("CONSUMERS", lambda row: row.consumers, shown_count, 8),
)
TOPICS = (
    Column("NAME", lambda row: row.name, harmless, 0, is_text=True),
    Column("PUBLISHED", lambda row: row.rate, shown_rate, 1),
    Column("WRITTEN", lambda row: row.byte_rate, lambda rate: f"{shown_bytes(rate)}/s", 3),
    Column("MESSAGES", lambda row: row.messages, shown_count, 2),
    Column("SIZE", lambda row: row.bytes, shown_bytes, 4),
    Column("PARTITIONS", lambda row: row.partitions, shown_count, 5),
)
