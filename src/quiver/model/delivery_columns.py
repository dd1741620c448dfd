"""The columns that decide when, in what order and to whom a message is delivered.

Both the log, which keeps an index of them, and delivery read them here, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from quiver.model.schema import COLUMN_BIT

Numbers = np.ndarray[Any, np.dtype[Any]]

DEFAULT_PRIORITY = 4
NEVER = -1
"""In place of a time that a message does not have."""
TIMED_OR_RANKED = COLUMN_BIT["priority"] | COLUMN_BIT["deliver_at"] | COLUMN_BIT["expires_at"]
"""A batch without these columns is delivered at once and in order."""
_SUBSCRIPTION = COLUMN_BIT["origin_subscription"]
_TARGETED = _SUBSCRIPTION | COLUMN_BIT["origin_topic"]


def is_targeted(columns: int) -> bool:
    """Whether a batch is on its way back to the subscription that it names.

    A dead letter names the subscription too, but also the topic it comes from.
    """
    return columns & _TARGETED == _SUBSCRIPTION


def priorities(values: pa.Array) -> Numbers:
    if values.null_count:
        values = values.fill_null(DEFAULT_PRIORITY)
    return cast(Numbers, values.to_numpy())


def times(values: pa.Array) -> Numbers:
    values = values.view(pa.int64())
    if values.null_count:
        values = values.fill_null(NEVER)
    return cast(Numbers, values.to_numpy())


def rows_by_priority(values: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The rows of each priority that is not the default one, in ascending order."""
    found = set(values.tobytes())  # a byte for each message
    found.discard(DEFAULT_PRIORITY)
    if len(found) <= 2:
        for priority in found:
            yield priority, np.flatnonzero(values == priority)
        return
    rows = np.argsort(values, kind="stable")
    ends = np.cumsum(np.bincount(values)).tolist()
    for priority, (start, end) in enumerate(pairwise([0, *ends])):
        if priority in found:
            yield priority, rows[start:end]


def rows_by_target(names: pa.Array) -> Iterator[tuple[str, Numbers]]:
    """The rows that are for one subscription, by its name."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, np.flatnonzero(codes == code)
