"""The mark of an entry: enough to tell whether two logs have the same one at its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from quiver.model.ids import Microseconds, Offset

if TYPE_CHECKING:
    from quiver.model.batch import StoredBatch


class EntryMark(msgspec.Struct, frozen=True, array_like=True):
    """Enough of an entry to tell whether two logs have the same one at its place."""

    base_offset: Offset
    count: int
    append_time: Microseconds
    checksum: int
    """CRC-32C of what the producer sealed."""


def mark_of(entry: StoredBatch) -> EntryMark:
    """The mark of an entry. What a leader stamps, such as its epoch, is not in it."""
    from quiver.model.envelope import PRODUCER_SIZE  # noqa: PLC0415 - the command line needs no Arrow

    sealed = memoryview(entry.head)[-PRODUCER_SIZE:]
    return EntryMark(entry.base_offset, entry.count, entry.append_time, crc32c(sealed))
