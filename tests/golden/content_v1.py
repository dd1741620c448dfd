"""What is in ``format-v1``: every column, both compressions, three segments, two epochs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

DAY = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
DAY_US = 1_709_208_000_000_000
HOUR_US = 3_600_000_000


class Written(NamedTuple):
    """One batch: its columns as they were written, and what its envelope says."""

    columns: dict[str, list[Any]]
    append_time: int
    epoch: int
    producer: tuple[int, int, int]
    compression: str | None = None

    @property
    def messages(self) -> int:
        return len(self.columns["payload"])


BATCHES: list[Written] = [
    Written(
        columns={
            "key": [b"customer-7", None, b""],
            "payload": [b'{"id": 1}', b"\x00\xff", b""],
            "headers": [[("trace", "a1"), ("empty", "")], [], None],
            "event_time": [DAY, None, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
            "priority": [9, 0, None],
            "deliver_at": [None, DAY.replace(hour=13), None],
            "expires_at": [DAY.replace(year=2028), None, None],
            "dedup_id": ["order-1", None, "ünïcode ✓"],
            "sequence": [0, None, (1 << 63) - 1],
        },
        append_time=DAY_US,
        epoch=1,
        producer=(7_000_000_001, 3, 0),
    ),
    Written({"payload": [b"alone"]}, DAY_US + 1, 1, (0, 0, 0)),
    Written(
        {"key": [b"k%d" % (n % 3) for n in range(40)], "payload": [b"z" * n for n in range(40)]},
        DAY_US + 1,
        1,
        (7_000_000_001, 3, 3),
        "zstd",
    ),
    Written(
        {"payload": [b"l" * 99, b"4"], "dedup_id": [None, "last of its segment"]},
        DAY_US + 2 * HOUR_US,
        1,
        (-1, 4_294_967_295, -(1 << 63)),
        "lz4",
    ),
    Written({"payload": [b"after a new leader"]}, DAY_US + 2 * HOUR_US, 2, (0, 0, 0)),
    Written({"payload": [b"the end"], "priority": [-128]}, DAY_US + 4 * HOUR_US, 2, (1, 0, 9)),
]
SEGMENTS = [0, 44, 47]
"""First offsets: a segment is followed by another after an hour."""
