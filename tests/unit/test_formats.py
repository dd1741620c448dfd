"""The list of versions states what the code reads and writes."""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import pytest
from crc32c import crc32c

from quiver import protocol
from quiver.backup import manifest
from quiver.cluster.metadata import sqlite_database
from quiver.errors import UnsupportedFormat
from quiver.formats import (
    BACKUPS,
    DELIVERY_INDEXES,
    ENTRIES,
    EXCHANGED,
    METADATA_TABLES,
    OFFSET_INDEXES,
    PROTOCOL,
    REBUILT,
    STORED,
    Format,
    release,
)
from quiver.log import delivery_index
from quiver.log.index import SparseIndex
from quiver.model.envelope import entry_at, seal_batch, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.schema import PAYLOAD
from quiver.version import __version__
from tests.paths import REPOSITORY

ALL = (*STORED, *REBUILT, *EXCHANGED)
PAGE = (REPOSITORY / "docs" / "reference" / "versions.md").read_text()


def entry_of_version(version: int) -> bytes:
    """An intact entry that says it has this version."""
    batch = store_batch(
        seal_batch(b"body", 1, PAYLOAD),
        base_offset=Offset(0),
        append_time=Microseconds(0),
        durable_offset=Offset(0),
        epoch=LeaderEpoch(0),
    )
    data = bytearray(b"".join(bytes(one) for one in batch.buffers()))
    struct.pack_into("<H", data, 4, version)
    checksum = crc32c(bytes(data[16:88]), crc32c(bytes(data[:12])))
    struct.pack_into("<I", data, 12, checksum)
    return bytes(data)


def test_entries_are_read_up_to_the_stated_version_and_no_further() -> None:
    for version in range(1, ENTRIES.newest + 1):
        assert entry_at(memoryview(entry_of_version(version)), 0).count == 1
    with pytest.raises(UnsupportedFormat):
        entry_at(memoryview(entry_of_version(ENTRIES.newest + 1)), 0)


def test_other_formats_have_the_version_that_is_stated() -> None:
    assert PROTOCOL.newest == protocol.PROTOCOL_VERSION
    assert BACKUPS.newest == manifest.VERSION
    assert METADATA_TABLES.newest == sqlite_database.SHARED_SCHEMA_VERSION
    assert delivery_index._MAGIC[4] == DELIVERY_INDEXES.newest
    index = SparseIndex()
    index.delivery = 0
    assert struct.unpack_from("<I", index.encode("x"), 4) == (OFFSET_INDEXES.newest,)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_format_began_with_a_version_of_quiver_that_is_out(one: Format) -> None:
    assert all(release(old) <= release(new) for old, new in pairwise(one.since))
    assert release(one.since[-1]) <= release(__version__), "state the version that will have it"
    assert 1 <= one.at_start <= one.newest


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_the_page_states_each_version(one: Format) -> None:
    row = re.search(rf"^\| `{one.name}` \| (\d+) \| ([\d., ]+) \|", PAGE, re.MULTILINE)
    assert row is not None
    assert int(row[1]) == one.newest
    assert row[2].split(", ") == list(one.since)


def test_names_differ() -> None:
    assert len({one.name for one in ALL}) == len(ALL)


def test_versions_of_quiver_are_compared_by_their_numbers() -> None:
    assert release("0.9.1") < release("0.10.0") < release("1.0.0.dev1")
    assert release("0.1") == release("0.1.0")
    assert release("nonsense") == ()
