"""Sets of offsets: how they are made, cut and combined."""

from __future__ import annotations

from array import array
from typing import Any, TypeVar

import numpy as np
from pyroaring import BitMap64

Numbers = np.ndarray[Any, np.dtype[Any]]
Label = TypeVar("Label")


def offset_range(start: int, stop: int) -> BitMap64:
    """The offsets from ``start`` up to, but without, ``stop``."""
    offsets = BitMap64()
    offsets.add_range(start, max(start, stop))
    return offsets


def offset_set(offsets: Numbers) -> BitMap64:
    return BitMap64(number_array("Q", offsets))


def offset_numbers(offsets: BitMap64) -> Numbers:
    """The offsets in ascending order."""
    return np.asarray(offsets.to_array()).view(np.int64)


def number_array(code: str, numbers: Numbers) -> array[int]:
    """Numbers in the form that bitmaps and ``bisect`` take at once."""
    made: array[int] = array(code)
    made.frombytes(numbers.astype(code, copy=False).tobytes())
    return made


def lowest(offsets: BitMap64, limit: int, before: int | None = None) -> BitMap64:
    """The lowest ``limit`` of the offsets that are below ``before``."""
    if not offsets or limit <= 0:
        return BitMap64()
    stop = offsets[limit] if limit < len(offsets) else offsets.max() + 1
    window = offset_range(offsets.min(), stop if before is None else min(stop, before))
    window &= offsets
    return window


def discard_from_all(sets: dict[Label, BitMap64], offsets: BitMap64) -> None:
    """Take the offsets out of every set; a set that is empty then goes."""
    for label in [label for label, members in sets.items() if members.intersect(offsets)]:
        sets[label] -= offsets
        if not sets[label]:
            del sets[label]
