"""Parts of entries as entries of their own."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from quiver.broker.delivery.slice_cache import SliceCache
from quiver.model.batch import StoredBatch
from quiver.model.envelope import entries_in, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from tests.aio import async_test
from tests.unit.broker.broker_doubles import batch_of, until

ENTRY = store_batch(
    batch_of(*(b"%d" % n for n in range(10))),
    base_offset=Offset(100),
    epoch=LeaderEpoch(3),
    append_time=Microseconds(7),
    durable_offset=Offset(90),
)


def payloads(entry: StoredBatch) -> list[bytes]:
    found: list[bytes] = entry.record_batch().column("payload").to_pylist()
    return found


@pytest.mark.parametrize("offsets", [[100], [103, 104, 105], [109], [101, 103, 108]])
@async_test
async def test_an_excerpt_is_an_intact_entry_of_the_rows_chosen(offsets: list[int]) -> None:
    excerpt = SliceCache().of(ENTRY, BitMap64(offsets), keep=False)
    (received,) = entries_in(b"".join(excerpt.buffers()))
    assert payloads(received) == [b"%d" % (offset - 100) for offset in offsets]
    assert (received.base_offset, received.append_time) == (offsets[0], 7)


@async_test
async def test_a_slice_is_cut_once_for_all_who_want_it() -> None:
    slices = SliceCache()
    kept = slices.of(ENTRY, BitMap64([101, 102]), keep=True)
    assert slices.of(ENTRY, BitMap64([101, 102]), keep=True) is kept
    assert payloads(slices.of(ENTRY, BitMap64([102, 103]), keep=True)) == [b"2", b"3"]
    assert payloads(slices.of(ENTRY, BitMap64([101, 103]), keep=True)) == [b"1", b"3"]


@async_test
async def test_a_slice_that_nobody_else_will_want_is_not_kept() -> None:
    slices = SliceCache()
    kept = slices.of(ENTRY, BitMap64([101]), keep=False)
    assert slices.of(ENTRY, BitMap64([101]), keep=False) is not kept


@async_test
async def test_what_is_kept_is_forgotten_after_a_moment() -> None:
    slices = SliceCache()
    kept = slices.of(ENTRY, BitMap64([101, 102]), keep=True)
    await until(lambda: slices.of(ENTRY, BitMap64([101, 102]), keep=True) is not kept)
    assert payloads(slices.of(ENTRY, BitMap64([101, 102]), keep=True)) == [b"1", b"2"]
