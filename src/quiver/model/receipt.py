"""Receipts: the text that names one delivery of one message.

A receipt is a lease and an offset, ``lease.offset``, safe in a URL. Those of many messages are made
and taken apart as Arrow columns, without a step for each message.
"""

from __future__ import annotations

import base64
from array import array

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from quiver.errors import InvalidReceipt

LEASE_BYTES = 26
# Typed once: where a scalar's type has to be guessed, pyarrow looks for packages at each call.
_NOTHING = pa.scalar("", pa.string())
_LEASE, _OFFSET = pa.scalar(0, pa.int32()), pa.scalar(1, pa.int32())


def lease_text(lease: bytes) -> str:
    return base64.urlsafe_b64encode(lease).decode().rstrip("=")


def receipt(lease: bytes, offset: int) -> str:
    return f"{lease_text(lease)}.{offset}"


def receipts(lease: bytes, offsets: pa.Array) -> pa.Array:
    """The receipts of many messages of one lease."""
    prefix = pa.scalar(f"{lease_text(lease)}.", pa.string())
    return pc.binary_join_element_wise(prefix, pc.cast(offsets, pa.string()), _NOTHING)


def leases_in(column: pa.Array | pa.ChunkedArray | list[str]) -> dict[bytes, BitMap64]:
    """Receipts sorted by their leases; whether a lease is genuine is for the node to say."""
    if isinstance(column, list):
        column = pa.array(column, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise InvalidReceipt(f"receipts are text, not {column.type}")
    parts = pc.split_pattern(column, ".")
    if column.null_count or not (pc.list_value_length(parts).to_numpy() == 2).all():
        raise InvalidReceipt("some of these are not receipts")
    texts = pc.list_element(parts, _LEASE).dictionary_encode()
    try:
        offsets = pc.cast(pc.list_element(parts, _OFFSET), pa.uint64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise InvalidReceipt("some of these are not receipts") from error
    codes = texts.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(1, len(texts.dictionary)))
    leases: dict[bytes, BitMap64] = {}
    groups = np.split(offsets[order], starts)
    for text, group in zip(texts.dictionary.to_pylist(), groups, strict=False):
        leases[_lease(text)] = BitMap64(array("Q", group.tobytes()))
    return leases


def _lease(text: str) -> bytes:
    try:
        lease = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        lease = b""
    if len(lease) != LEASE_BYTES or lease_text(lease) != text:
        raise InvalidReceipt(f"not a receipt: {text[:80]!r}")
    return lease
