"""The versions of everything that Quiver stores or speaks, in one place.

A version goes up when an older Quiver could not read what is written, or would lose a part of it. A
field that an older one may ignore is no new version. Tests compare this list with what the code reads
and writes.
"""

from __future__ import annotations

import re

import msgspec

FIRST_RELEASE = "0.1.0"


class Format(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Its name in ``version.json`` and wherever programs read it."""
    meaning: str
    since: tuple[str, ...]
    """For each version from 1 on, the first Quiver that reads it."""
    written: int = 0
    """The version that a node writes from its start; 0: the newest. Later ones are written when needed."""

    @property
    def newest(self) -> int:
        """The newest version that this Quiver reads. It reads all older ones too."""
        return len(self.since)

    @property
    def at_start(self) -> int:
        return self.written or self.newest


ENTRIES = Format(
    name="entries",
    meaning="batches in logs, and their envelope; the second is of transactions",
    since=("0.1.0", "0.1.0"),
    written=1,
)
CHECKPOINTS = Format(name="checkpoints", meaning="where recovery of a log starts", since=("0.1.0",))
STATE_RECORDS = Format(
    name="state_records",
    meaning="changes of subscriptions, in state logs; the second is of transactions",
    since=("0.1.0", "0.1.0"),
    written=1,
)
SNAPSHOTS = Format(
    name="snapshots",
    meaning="snapshots of subscriptions and producers; the second is of transactions",
    since=("0.1.0", "0.1.0"),
    written=1,
)
METADATA_TABLES = Format(
    name="metadata_tables",
    meaning="tables of metadata.db; the second is shared by several processes",
    since=("0.1.0", "0.1.0"),
    written=1,
)
METADATA_VALUES = Format(
    name="metadata_values",
    meaning="topics, subscriptions, tokens and placement, in metadata.db or etcd; the second is of mirrors",
    since=("0.1.0", "0.1.0"),
    written=1,
)
STORED = (ENTRIES, CHECKPOINTS, STATE_RECORDS, SNAPSHOTS, METADATA_TABLES, METADATA_VALUES)
"""What a data folder cannot be opened without."""

OFFSET_INDEXES = Format(
    name="offset_indexes", meaning="sparse indexes of segments", since=("0.1.0", "0.1.0")
)
DELIVERY_INDEXES = Format(
    name="delivery_indexes", meaning="priorities and times in segments", since=("0.1.0",)
)
REBUILT = (OFFSET_INDEXES, DELIVERY_INDEXES)
"""Also in a data folder. One of an unknown version is built again from the log."""

PROTOCOL = Format(name="protocol", meaning="the native protocol", since=("0.1.0",))
BACKUPS = Format(name="backups", meaning="manifests of backups", since=("0.1.0",))
EXCHANGED = (PROTOCOL, BACKUPS)
"""What passes between programs."""


def stored_versions() -> dict[str, int]:
    """The newest version of each stored format that this Quiver reads, by name."""
    return {one.name: one.newest for one in STORED}


def release(version: str) -> tuple[int, ...]:
    """A version of Quiver as numbers, to be compared: ``0.10.0`` is after ``0.9.1``."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
