"""Receipts: the text that names one delivery of one message.

A receipt is a lease and an offset, ``lease.offset``, safe in a URL. Those of many messages are made
and taken apart as Arrow columns, without a step for each message.
"""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from quiver.errors import InvalidReceipt

LEASE_BYTES = 26


def lease_text(lease: bytes) -> str:
    return base64.urlsafe_b64encode(lease).decode().rstrip("=")


def receipt(lease: bytes, offset: int) -> str:
    return f"{lease_text(lease)}.{offset}"


def receipts(lease: bytes, offsets: pa.Array) -> pa.Array:
    """The receipts of many messages of one lease."""
    return pc.binary_join_element_wise(lease_text(lease), pc.cast(offsets, pa.string()), ".")


def leases_in(column: pa.Array | pa.ChunkedArray | list[str]) -> dict[bytes, BitMap64]:
    """Receipts sorted by their leases; whether a lease is genuine is for the node to say."""
    if isinstance(column, list):
        column = pa.array(column, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    parts = pc.split_pattern(column, ".")
    if column.null_count or not pc.all(pc.equal(pc.list_value_length(parts), 2)).as_py():
        raise InvalidReceipt("some of these are not receipts")
    texts = pc.list_element(parts, 0).dictionary_encode()
    try:
        offsets = pc.cast(pc.list_element(parts, 1), pa.uint64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise InvalidReceipt("some of these are not receipts") from error
    codes = texts.indices.to_numpy()
    return {
        _lease(text): BitMap64(offsets[codes == code])
        for code, text in enumerate(texts.dictionary.to_pylist())
    }


def _lease(text: str) -> bytes:
    try:
        lease = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        lease = b""
    if len(lease) != LEASE_BYTES:
        raise InvalidReceipt(f"not a receipt: {text[:80]!r}")
    return lease
