"""Receipts: the text that names one delivery of one message.

A receipt is a lease and an offset, ``lease.offset``, safe in a URL. Those of many messages are made
and taken apart as Arrow columns, without a step for each message: as a table of characters where all
have the same length, which those of one lease mostly do, else with Arrow's own functions.
"""

from __future__ import annotations

import base64
import struct
from array import array
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver import arrow_compute as pc
from quiver.errors import InvalidReceipt

LEASE_BYTES = 26
_PLACE = struct.Struct("<IIH")
"""What a lease begins with: the subscription, the topic and the partition."""
_PREFIX_LENGTH = -(-LEASE_BYTES * 4 // 3) + 1
"""Characters of a lease and its point."""
_LENGTH_MAX = _PREFIX_LENGTH + 20
_DIGITS_MAX = 18
"""Numbers of so many digits fit into 64 bits, whichever they are."""
_FOUR_DIGITS = 10_000
_ZERO = ord("0")

Characters = np.ndarray[Any, np.dtype[np.uint8]]


def lease_text(lease: bytes) -> str:
    return base64.urlsafe_b64encode(lease).decode().rstrip("=")


def place_of(lease: bytes) -> tuple[int, int]:
    """The topic's number and the partition of a lease; whether it is genuine is for the node to say."""
    _, topic, partition = _PLACE.unpack_from(lease)
    return topic, partition


def receipt(lease: bytes, offset: int) -> str:
    return f"{lease_text(lease)}.{offset}"


def receipts(lease: bytes, offsets: pa.Array) -> pa.Array:
    """The receipts of many messages of one lease."""
    prefix = f"{lease_text(lease)}."
    digits = _digits(offsets.to_numpy()) if len(offsets) else None
    if digits is None:
        texts = pc.cast(offsets, pa.string())
        # Typed: where a scalar's type has to be guessed, pyarrow looks for packages at each call.
        start, nothing = pa.scalar(prefix, pa.string()), pa.scalar("", pa.string())
        return pc.binary_join_element_wise(start, texts, nothing)
    count, width = len(offsets), len(prefix) + digits.shape[1]
    table = np.empty((count, width), np.uint8)
    table[:, : len(prefix)] = np.frombuffer(prefix.encode(), np.uint8)
    table[:, len(prefix) :] = digits
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(table))


def _digits(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Characters | None:
    """The numbers as text, a row for each; ``None`` if some have more digits than others."""
    least, most = int(numbers.min()), int(numbers.max())
    width = len(str(most))
    if least < 0 or len(str(least)) != width:
        return None
    groups = -(-width // 4)
    table = np.empty((len(numbers), groups), np.uint32)
    for place in reversed(range(1, groups)):
        numbers, group = np.divmod(numbers, _FOUR_DIGITS)
        table[:, place] = _texts_of_four()[group]
    table[:, 0] = _texts_of_four()[numbers]
    return table.view(np.uint8)[:, 4 * groups - width :]


@cache
def _texts_of_four() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The numbers below ten thousand as text, each four characters in one."""
    return np.frombuffer(b"".join(b"%04d" % n for n in range(_FOUR_DIGITS)), np.uint32)


def leases_in(column: pa.Array | pa.ChunkedArray | list[str]) -> dict[bytes, BitMap64]:
    """Receipts sorted by their leases; whether a lease is genuine is for the node to say."""
    if isinstance(column, list):
        column = pa.array(column, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return _one_lease_in(column) or _many_leases_in(column)


def _one_lease_in(column: pa.Array) -> dict[bytes, BitMap64] | None:
    """Receipts of equal length and of one lease; ``None`` if they are not that."""
    table = _table(column)
    if table is None or not 0 < table.shape[1] - _PREFIX_LENGTH <= _DIGITS_MAX:
        return None
    prefixes, digits = table[:, :_PREFIX_LENGTH], table[:, _PREFIX_LENGTH:] - _ZERO
    if (prefixes != prefixes[0]).any() or (digits > 9).any():
        return None
    offsets = digits @ 10 ** np.arange(digits.shape[1] - 1, -1, -1)
    return {_lease(prefixes[0].tobytes()): BitMap64(array("Q", offsets.tobytes()))}


def _table(column: pa.Array) -> Characters | None:
    """The characters of texts that have the same length, a row for each text."""
    count = len(column)
    if not pa.types.is_string(column.type) or not count or column.null_count:
        return None
    _, bounds, texts = column.buffers()
    ends = np.frombuffer(bounds, np.int32, count + 1, 4 * column.offset)
    first, last = int(ends[0]), int(ends[-1])
    width = (last - first) // count
    if not width or (ends[1:] - ends[:-1] != width).any():
        return None
    return np.frombuffer(texts, np.uint8, last - first, first).reshape(count, width)


def _many_leases_in(column: pa.Array) -> dict[bytes, BitMap64]:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise InvalidReceipt(f"receipts must be text, not {column.type}")
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
        raise InvalidReceipt(f"{text!r} is not a receipt")
    return lease
