"""Receipts as text and as columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.errors import InvalidReceipt
from quiver.model.receipt import LEASE_BYTES, lease_text, leases_in, receipt, receipts

LEASES = st.binary(min_size=LEASE_BYTES, max_size=LEASE_BYTES)
OFFSETS = st.integers(0, (1 << 63) - 1)


@given(st.lists(st.tuples(LEASES, OFFSETS)))
def test_receipts_sort_themselves_by_their_leases(pairs: list[tuple[bytes, int]]) -> None:
    expected: dict[bytes, BitMap64] = {}
    for lease, offset in pairs:
        expected.setdefault(lease, BitMap64()).add(offset)
    assert leases_in([receipt(lease, offset) for lease, offset in pairs]) == expected


@given(LEASES, st.lists(OFFSETS, min_size=1))
def test_a_column_of_receipts_is_the_receipts_one_by_one(lease: bytes, offsets: list[int]) -> None:
    column = receipts(lease, pa.array(offsets, pa.int64()))
    assert column.to_pylist() == [receipt(lease, offset) for offset in offsets]
    for shape in (column, pa.chunked_array([column, column]), column.cast(pa.large_string())):
        assert leases_in(shape) == {lease: BitMap64(offsets)}


@given(LEASES, st.integers(0, 18), st.integers(-20, 20), st.integers(1, 40), st.integers(0, 39))
def test_receipts_of_a_run_of_messages_are_whole_wherever_it_begins_and_is_cut(
    lease: bytes, power: int, before: int, count: int, cut: int
) -> None:
    first = max(0, 10**power + before)
    offsets = list(range(first, first + count))
    column = receipts(lease, pa.array(offsets, pa.int64()))
    assert column.to_pylist() == [receipt(lease, offset) for offset in offsets]
    column.validate(full=True)
    assert leases_in(column.slice(cut)) == ({lease: BitMap64(offsets[cut:])} if cut < count else {})


@pytest.mark.parametrize("rest", [":12", "/12", "\u0661"])
def test_one_receipt_that_is_none_spoils_a_column_of_the_same_length(rest: str) -> None:
    good = receipt(bytes(LEASE_BYTES), 1000)
    bad = f"{good[: -len(rest.encode())]}{rest}"
    with pytest.raises(InvalidReceipt):
        leases_in([good, bad])


def test_a_receipt_is_safe_in_a_url() -> None:
    text = receipt(bytes(range(230, 256)), 1)
    assert text.replace(".", "").replace("-", "").replace("_", "").isalnum()


def test_ten_thousand_leases_are_sorted_in_one_go() -> None:
    leases = [n.to_bytes(LEASE_BYTES, "little") for n in range(10_000)]
    sorted_out = leases_in([receipt(lease, n) for n, lease in enumerate(leases * 5)])
    assert len(sorted_out) == 10_000
    assert sorted_out[leases[7]] == BitMap64([7, 10_007, 20_007, 30_007, 40_007])


def test_another_spelling_of_a_lease_is_no_receipt() -> None:
    text = lease_text(bytes(LEASE_BYTES))
    assert text[-1] == "A"
    with pytest.raises(InvalidReceipt):
        leases_in([f"{text[:-1]}B.1"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2]),
        pa.array([b"x"]),
        pa.array([None], pa.string()),
        pa.nulls(2),
        pa.array(["a.1", "b"]),
        *(
            pa.array([f"{lease_text(bytes(LEASE_BYTES))}{rest}"])
            for rest in ("", ".", ".-1", ".1.2", ":1", ".\u00e91", f".{1 << 64}", f".{'1' * 30}")
        ),
        pa.array(["\u00e9" * 40]),
    ],
)
def test_a_column_of_something_else_is_refused(column: pa.Array) -> None:
    with pytest.raises(InvalidReceipt):
        leases_in(column)


def test_no_receipts_are_no_leases() -> None:
    assert leases_in([]) == {}
    assert leases_in(pa.array([], pa.string())) == {}
