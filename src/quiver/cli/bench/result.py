"""The result of a benchmark: count, rate and latencies.

Latencies are collected raw and sorted at the end, so that measuring costs little.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from quiver.cli.support.output import print_json, print_table
from quiver.cli.support.text import shown_bytes

QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999, "max": 1.0}


class BenchResult(msgspec.Struct, kw_only=True):
    """The outcome of one run. ``messages`` is what was done, ``asked`` what was wanted."""

    what: str
    topic: str
    partitions: int
    asked: int
    messages: int
    size_bytes: int
    seconds: float
    latencies_ms: dict[str, float] = {}
    """By quantile; empty where nothing was timed one by one."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    def print(self, *, json: bool) -> None:
        if json:
            print_json(self._document())
        else:
            print_table(("BENCH", self.what), self._rows())

    def _document(self) -> dict[str, Any]:
        return {
            **msgspec.to_builtins(self),
            "messages_per_s": self.rate,
            "bytes_per_s": self.rate * self.size_bytes,
            "complete": self.messages == self.asked,
        }

    def _rows(self) -> list[tuple[str, str]]:
        messages = f"{self.messages:,}"
        if self.messages < self.asked:
            messages += f" of {self.asked:,} (time limit reached)"
        rows = [
            ("topic", self.topic),
            ("partitions", f"{self.partitions:,}"),
            ("messages", f"{messages}, {shown_bytes(self.size_bytes)} each"),
            ("time", f"{self.seconds:,.2f} s"),
            ("rate", f"{self.rate:,.0f} messages/s"),
            ("throughput", f"{shown_bytes(self.rate * self.size_bytes)}/s"),
        ]
        rows += [(name, f"{value:,.3f} ms") for name, value in self.latencies_ms.items()]
        return rows


def quantiles_ms(latencies_s: Iterable[float]) -> dict[str, float]:
    """The quantiles of times in seconds, as milliseconds; nothing of nothing."""
    ordered = array("d", sorted(latencies_s))
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {name: ordered[round(last * share)] * 1000 for name, share in QUANTILES.items()}
