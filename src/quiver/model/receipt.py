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
_PREFIX_LENGTH = -(-LEASE_BYTES * 4 // 3) + 1
"""Characters of a lease and its point."""
_LENGTH_MAX = _PREFIX_LENGTH + 20


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
    longest = pc.max(pc.binary_length(column)).as_py()
    if column.null_count or (longest or 0) > _LENGTH_MAX:
        raise InvalidReceipt("some of these are not receipts")
    texts = column.cast(pa.binary())
    prefixes = pc.binary_slice(texts, 0, _PREFIX_LENGTH).dictionary_encode()
    try:
        numbers = pc.binary_slice(texts, _PREFIX_LENGTH, _LENGTH_MAX).cast(pa.uint64())
    except pa.ArrowInvalid as error:
        raise InvalidReceipt("some of these are not receipts") from error
    leases = [_lease(prefix) for prefix in prefixes.dictionary.to_pylist()]
    offsets = numbers.to_numpy()
    if len(leases) > 1:
        codes = prefixes.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        groups = np.split(offsets[order], np.searchsorted(codes[order], np.arange(1, len(leases))))
    else:
        groups = [offsets] * len(leases)
    return {
        lease: BitMap64(array("Q", group.tobytes()))
        for lease, group in zip(leases, groups, strict=True)
    }


def _lease(prefix: bytes) -> bytes:
    """The lease of a receipt, from what is before the offset."""
    text = prefix.decode(errors="replace")
    try:
        lease = base64.b64decode(f"{text[:-1]}=", altchars=b"-_", validate=True)
    except ValueError:
        lease = b""
    if len(lease) != LEASE_BYTES or f"{lease_text(lease)}." != text:
        raise InvalidReceipt(f"not a receipt: {text!r}")
    return lease
