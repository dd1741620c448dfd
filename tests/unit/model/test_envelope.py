"""The envelope: what goes in comes out, and no changed byte goes unnoticed."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import CorruptLog, InvalidBatch, UnsupportedFormat
from quiver.model import envelope
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.envelope import (
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    ENVELOPE_SIZE,
    HOPS_MAX,
    MARKER,
    PRODUCER_SIZE,
    TRANSACTIONAL,
    BadEntry,
    ProducerStamp,
    copy_batch,
    durable_offset_at,
    ended_by,
    ends_by,
    entries_in,
    entry_at,
    entry_size_at,
    is_hidden,
    open_batch,
    remark,
    seal_batch,
    seal_marker,
    store_batch,
)
from quiver.model.ids import (
    LeaderEpoch,
    Microseconds,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
)
from quiver.model.schema import ALL_COLUMNS, PAYLOAD
from quiver.model.transaction import TransactionId, producer_of, transaction_id
from tests.unit.log.small_logs import batch

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_UINT32 = st.integers(0, (1 << 32) - 1)
_OFFSETS = st.integers(0, 1 << 62)

stamps = st.builds(
    ProducerStamp,
    producer_id=_INT64.map(ProducerId),
    producer_epoch=_UINT32.map(ProducerEpoch),
    sequence=_INT64.map(Sequence),
)
batches = st.builds(
    seal_batch,
    body=st.binary(max_size=100),
    count=st.integers(1, BATCH_COUNT_MAX),
    columns=st.integers(0, ALL_COLUMNS).map(lambda mask: mask | PAYLOAD),
    stamp=stamps,
)


@st.composite
def stored_batches(draw: st.DrawFn) -> StoredBatch:
    return store_batch(
        draw(batches),
        base_offset=Offset(draw(_OFFSETS)),
        epoch=LeaderEpoch(draw(_UINT32)),
        append_time=Microseconds(draw(_INT64)),
        durable_offset=Offset(draw(_OFFSETS)),
    )


def stored(unstored: UnstoredBatch, base_offset: int = 0, durable_offset: int = 0) -> StoredBatch:
    return store_batch(
        unstored,
        base_offset=Offset(base_offset),
        epoch=LeaderEpoch(1),
        append_time=Microseconds(5),
        durable_offset=Offset(durable_offset),
    )


def as_bytes(*entries: StoredBatch) -> bytes:
    return b"".join(bytes(buffer) for entry in entries for buffer in entry.buffers())


def resealed(entry: bytes, **fields: int) -> bytes:
    """An entry with some fields of its prefix changed and its leader sum made right again."""
    magic, version, envelope_size, entry_size, _ = struct.unpack_from("<4sHHII", entry)
    prefix = struct.pack(
        "<4sHHI",
        magic,
        fields.get("version", version),
        fields.get("envelope_size", envelope_size),
        fields.get("entry_size", entry_size),
    )
    envelope_end = fields.get("envelope_size", envelope_size)
    leader_sum = crc32c(entry[16:envelope_end], crc32c(prefix))
    return prefix + struct.pack("<I", leader_sum) + entry[16:]


# ---------------------------------------------------------------------- round trips


@given(batches)
def test_what_a_producer_sealed_is_opened_unchanged(unstored: UnstoredBatch) -> None:
    assert open_batch(unstored.head + bytes(unstored.body)) == unstored


@given(stored_batches())
def test_a_stored_entry_is_read_back_from_its_bytes(entry: StoredBatch) -> None:
    assert entry_at(memoryview(as_bytes(entry)), 0) == entry


@given(stored_batches())
def test_storing_leaves_the_producers_bytes_as_they_were(entry: StoredBatch) -> None:
    opened = open_batch(as_bytes(entry)[48 : ENVELOPE_SIZE + len(entry.body)])
    assert (opened.count, opened.columns, opened.body) == (entry.count, entry.columns, entry.body)


@given(stored_batches(), st.integers(0, 20).map(lambda words: 8 * words))
def test_an_entry_is_read_at_any_aligned_place_of_a_larger_view(
    entry: StoredBatch, before: int
) -> None:
    view = memoryview(b"x" * before + as_bytes(entry) + b"after")
    assert entry_at(view, before) == entry


@given(st.lists(stored_batches(), max_size=4))
def test_entries_received_together_are_read_back_in_order(entries: list[StoredBatch]) -> None:
    assert entries_in(as_bytes(*entries)) == entries


@given(stored_batches())
def test_an_entry_keeps_the_next_one_aligned(entry: StoredBatch) -> None:
    data = as_bytes(entry)
    assert len(data) == entry.size() == entry_size_at(memoryview(data), 0)
    assert len(data) % 8 == 0


@given(stored_batches())
def test_the_durable_mark_is_read_without_the_body(entry: StoredBatch) -> None:
    view = memoryview(as_bytes(entry)[:ENVELOPE_SIZE])
    assert durable_offset_at(view, 0) == (entry.base_offset, entry.durable_offset)


@given(stored_batches(), _OFFSETS)
def test_an_entry_is_hopped_over_exactly_if_it_ends_by_the_offset(
    entry: StoredBatch, offset: int
) -> None:
    view = memoryview(as_bytes(entry))
    assert ends_by(view, 0, Offset(offset)) == (entry.next_offset <= offset)


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("body_size", [0, 1, 8, 29])
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_changed_byte_of_an_entry_is_noticed(body_size: int, flip: int) -> None:
    entry = stored(batch(body_size), base_offset=7)
    data = as_bytes(entry)
    for position in range(ENVELOPE_SIZE + body_size):
        changed = bytearray(data)
        changed[position] ^= flip
        with pytest.raises(BadEntry):
            entry_at(memoryview(changed), 0)


def test_changed_padding_changes_nothing_that_is_read() -> None:
    entry = stored(batch(29))
    changed = bytearray(as_bytes(entry))
    for position in range(ENVELOPE_SIZE + 29, len(changed)):
        changed[position] ^= 0xFF
    assert entry_at(memoryview(changed), 0) == entry


@given(stored_batches(), st.data())
def test_any_piece_of_an_entry_is_refused(entry: StoredBatch, data: st.DataObject) -> None:
    whole = as_bytes(entry)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BadEntry):
        entry_at(memoryview(whole[:length]), 0)


def test_an_entry_without_all_of_its_padding_is_cut() -> None:
    whole = as_bytes(stored(batch(29)))
    for missing in (1, 2, 3):
        with pytest.raises(BadEntry, match="cut"):
            entry_at(memoryview(whole[:-missing]), 0)


def test_the_body_of_one_entry_is_not_taken_for_anothers() -> None:
    one, other = stored(batch(40, seed=1)), stored(batch(40, seed=2))
    mixed = bytes(one.head) + bytes(other.body)
    with pytest.raises(BadEntry, match="body"):
        entry_at(memoryview(mixed), 0)


def test_the_producers_part_of_one_entry_is_not_taken_for_anothers() -> None:
    one, other = as_bytes(stored(batch(40, seed=1))), as_bytes(stored(batch(40, seed=2)))
    with pytest.raises(BadEntry, match="leader"):
        entry_at(memoryview(one[:48] + other[48:]), 0)


@given(st.binary(max_size=300))
def test_noise_is_never_an_entry(noise: bytes) -> None:
    with pytest.raises(BadEntry):
        entry_at(memoryview(noise), 0)


@given(st.binary(max_size=300))
def test_noise_behind_a_magic_is_never_an_entry(noise: bytes) -> None:
    with pytest.raises((BadEntry, UnsupportedFormat)):
        entry_at(memoryview(b"QVRE\x01\x00\x58\x00" + noise), 0)


@pytest.mark.parametrize("entry_size", [0, 80, 89, 2 * BATCH_BYTES_MAX + 8, (1 << 32) - 8])
def test_a_size_that_makes_no_sense_is_not_followed(entry_size: int) -> None:
    changed = resealed(as_bytes(stored(batch(8))), entry_size=entry_size)
    with pytest.raises(BadEntry, match="size"):
        entry_at(memoryview(changed), 0)


def test_a_body_size_that_does_not_fit_the_entrys_is_refused() -> None:
    changed = resealed(as_bytes(stored(batch(8))) + bytes(8), entry_size=ENVELOPE_SIZE + 16)
    with pytest.raises(BadEntry, match="size"):
        entry_at(memoryview(changed), 0)


def test_damaged_bytes_from_a_peer_say_where() -> None:
    first, second = stored(batch(8)), stored(batch(8), base_offset=1)
    data = bytearray(as_bytes(first, second))
    data[first.size() + ENVELOPE_SIZE] ^= 1
    with pytest.raises(CorruptLog) as caught:
        entries_in(data)
    assert caught.value.details["position"] == first.size()


def test_bytes_from_a_peer_that_end_within_an_entry_are_refused() -> None:
    data = as_bytes(stored(batch(5)))
    for length in range(1, len(data)):
        with pytest.raises(CorruptLog):
            entries_in(data[:length])


# ---------------------------------------------------------------------- versions


def test_an_intact_entry_of_a_newer_version_is_unsupported_and_says_which() -> None:
    newer = resealed(as_bytes(stored(batch(8))), version=3)
    with pytest.raises(UnsupportedFormat) as caught:
        entry_at(memoryview(newer), 0)
    assert caught.value.details["version"] == 3


def test_a_newer_version_may_have_a_larger_envelope() -> None:
    grown = as_bytes(stored(batch(24)))
    newer = resealed(grown, version=3, envelope_size=ENVELOPE_SIZE + 16)
    with pytest.raises(UnsupportedFormat):
        entry_at(memoryview(newer), 0)


def test_a_damaged_entry_of_a_newer_version_is_damage() -> None:
    newer = bytearray(resealed(as_bytes(stored(batch(8))), version=3))
    newer[20] ^= 1
    with pytest.raises(BadEntry):
        entry_at(memoryview(newer), 0)


def test_an_entry_of_a_newer_version_is_never_hopped_over() -> None:
    newer = resealed(as_bytes(stored(batch(8))), version=3)
    assert not ends_by(memoryview(newer), 0, Offset(1 << 60))


# ---------------------------------------------------------------------- what producers may send


@pytest.mark.parametrize("count", [0, -1, BATCH_COUNT_MAX + 1])
def test_a_batch_of_too_few_or_too_many_messages_is_not_sealed(count: int) -> None:
    with pytest.raises(InvalidBatch, match="messages"):
        seal_batch(b"body", count, PAYLOAD)


def test_a_body_above_the_bound_is_not_sealed() -> None:
    with pytest.raises(InvalidBatch, match="bytes"):
        seal_batch(memoryview(bytes(BATCH_BYTES_MAX + 1)), 1, PAYLOAD)


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_every_changed_byte_from_a_producer_is_refused(flip: int) -> None:
    sealed = batch(30)
    data = sealed.head + bytes(sealed.body)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= flip
        with pytest.raises(InvalidBatch):
            open_batch(changed)


def test_a_batch_from_a_producer_with_missing_or_surplus_bytes_is_refused() -> None:
    sealed = batch(30)
    data = sealed.head + bytes(sealed.body)
    for length in range(len(data)):
        with pytest.raises(InvalidBatch):
            open_batch(data[:length])
    with pytest.raises(InvalidBatch):
        open_batch(data + b"\0")


@pytest.mark.parametrize(
    ("columns", "count"), [(ALL_COLUMNS + 1 | PAYLOAD, 1), (0, 1), (ALL_COLUMNS & ~PAYLOAD, 1)]
)
def test_columns_that_this_version_does_not_know_are_refused(columns: int, count: int) -> None:
    sealed = seal_batch(b"body", count, columns)
    with pytest.raises(InvalidBatch, match="columns"):
        open_batch(sealed.head + bytes(sealed.body))


@pytest.mark.parametrize("count", [0, BATCH_COUNT_MAX + 1])
def test_a_count_out_of_bounds_under_a_right_checksum_is_refused(count: int) -> None:
    fields = struct.pack("<IIIIIqq", count, 4, PAYLOAD, 0, 0, 0, 0)
    head = struct.pack("<I", crc32c(b"body", crc32c(fields))) + fields
    with pytest.raises(InvalidBatch, match="messages"):
        open_batch(head + b"body")


# ---------------------------------------------------------------------- transactions


def _of_a_transaction() -> UnstoredBatch:
    plain = batch(8)
    stamp = ProducerStamp(ProducerId(7), ProducerEpoch(1))
    return seal_batch(plain.body, plain.count, plain.columns, stamp, TRANSACTIONAL)


_TRANSACTION = transaction_id(ProducerId(7), ProducerEpoch(1))


def _version(entry: StoredBatch) -> int:
    (version,) = struct.unpack_from("<H", entry.head, 4)
    return int(version)


def test_only_entries_of_transactions_have_the_version_of_transactions() -> None:
    marker = seal_marker([_TRANSACTION], is_committed=True)
    versions = [_version(stored(one)) for one in (batch(8), _of_a_transaction(), marker)]
    assert versions == [1, 2, 2]


def test_the_flags_of_an_entry_are_read_back() -> None:
    marker = seal_marker([_TRANSACTION], is_committed=False)
    entries = entries_in(as_bytes(stored(_of_a_transaction()), stored(marker, 8)))
    assert [entry.flags for entry in entries] == [TRANSACTIONAL, TRANSACTIONAL | MARKER]
    assert [is_hidden(entry) for entry in entries] == [False, True]


def test_a_quiver_that_knows_no_transactions_refuses_their_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes none for a message that counts, and says what to do."""
    data = memoryview(as_bytes(stored(_of_a_transaction())))
    monkeypatch.setattr(envelope, "_VERSIONS", (1,))
    with pytest.raises(UnsupportedFormat, match="use a newer Quiver") as caught:
        entry_at(data, 0)
    assert caught.value.details["version"] == 2
    assert not ends_by(data, 0, Offset(1 << 60))


@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_marker_ends_all_transactions_that_it_was_made_for(count: int) -> None:
    ended = [transaction_id(ProducerId(1 << 40), ProducerEpoch(n)) for n in range(count)]
    (marker,) = entries_in(as_bytes(stored(seal_marker(ended, is_committed=True))))
    assert ended_by(marker) == ended
    assert (marker.count, marker.columns) == (1, 0)


def test_a_producer_may_not_send_markers() -> None:
    marker = seal_marker([_TRANSACTION], is_committed=True)
    with pytest.raises(InvalidBatch):
        open_batch(marker.head + bytes(marker.body))


def test_a_batch_of_a_transaction_needs_a_producer() -> None:
    plain = batch(8)
    nobody = seal_batch(plain.body, plain.count, plain.columns, flags=TRANSACTIONAL)
    with pytest.raises(InvalidBatch):
        open_batch(nobody.head + bytes(nobody.body))


@given(batches, st.integers(1, HOPS_MAX))
def test_a_copy_keeps_the_producers_bytes_and_tells_its_producer_apart(
    original: UnstoredBatch, hops: int
) -> None:
    entry = _stored(original)
    copy = entry
    for _ in range(hops):
        copy = _stored(copy_batch(copy))
    (read,) = entries_in(b"".join(map(bytes, copy.buffers())))
    assert read.hops == copy.hops == hops
    assert bytes(read.head)[-PRODUCER_SIZE:] == original.head
    assert bytes(read.body) == bytes(original.body)
    assert read.producer_id == copy.producer_id
    if original.producer_id:
        assert read.producer_id != original.producer_id or original.producer_id >> 39
    assert remark(read, Offset(3)).hops == hops
    (again,) = entries_in(b"".join(map(bytes, remark(read, Offset(3)).buffers())))
    assert (again.hops, again.producer_id) == (hops, read.producer_id)


def _stored(one: UnstoredBatch) -> StoredBatch:
    return store_batch(
        one,
        base_offset=Offset(5),
        epoch=LeaderEpoch(1),
        append_time=Microseconds(7),
        durable_offset=Offset(2),
    )


def test_a_copied_marker_ends_the_copies_of_all_its_transactions() -> None:
    transactions = [transaction_id(ProducerId(one), ProducerEpoch(2)) for one in (7, 8, 9)]
    marker, batches = seal_marker(transactions, is_committed=True), []
    for one in transactions:
        producer, epoch = producer_of(one)
        batches.append(
            seal_batch(b"body", 1, PAYLOAD, ProducerStamp(producer, epoch), TRANSACTIONAL)
        )
    for _ in range(2):
        marker, *batches = [copy_batch(_stored(one)) for one in (marker, *batches)]
        opened = [_transaction_of(_stored(one)) for one in batches]
        assert ended_by(_stored(marker)) == opened


def test_a_marker_for_copied_transactions_ends_their_copies_further_on() -> None:
    """A cluster that was promoted aborts what its source left open, and is mirrored itself."""
    copies = [
        copy_batch(
            _stored(seal_batch(b"body", 1, PAYLOAD, ProducerStamp(ProducerId(one)), TRANSACTIONAL))
        )
        for one in (7, 8)
    ]
    opened = [_transaction_of(_stored(one)) for one in copies]
    marker = seal_marker(opened, is_committed=False)
    further = [_transaction_of(_stored(copy_batch(_stored(one)))) for one in copies]
    assert ended_by(_stored(marker)) == opened
    assert ended_by(_stored(copy_batch(_stored(marker)))) == further


def _transaction_of(entry: StoredBatch) -> TransactionId:
    return transaction_id(entry.producer_id, entry.producer_epoch)
