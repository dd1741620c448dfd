"""The measurement of a node: ``quiver bench --save`` writes it, ``quiver plan`` reads it.

Costs are measured for a few message sizes. Costs between two sizes are interpolated, above the largest
they grow in proportion to the bytes, and below the smallest they stay the same.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from quiver.errors import InvalidSetting

VERSION = 1
FILE_BYTES_MAX = 1 << 20
DEFAULT_FILE = "quiver-bench.json"

Positive = Annotated[float, Meta(gt=0, le=1e15)]


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node does with messages of one size. Rates are messages per second."""

    size_bytes: Annotated[int, Meta(ge=1, le=1 << 30)]
    publish_per_s: Positive
    """Published in batches, each acknowledged when it is on disk."""
    deliver_per_s: Positive
    """Received and acknowledged by a consumer, in batches."""
    read_per_s: Positive
    """Read as a replica or a replay does."""
    stored_bytes: Positive
    """What a message takes on disk, uncompressed."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = VERSION
    taken: str
    software: str
    cores: Annotated[int, Meta(ge=1, le=4096)]
    points: Annotated[list[Point], Meta(min_length=1, max_length=100)]
    send_per_s: Positive
    """Messages of the middle size that one producer process sends, one by one."""
    latency_ms: dict[str, float]
    """From a publish to a reader that follows, on a quiet node, by quantile."""
    sync_ms: dict[str, float]
    """A sync of the disk, by quantile."""
    disk_write_bytes_per_s: Positive

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(
                f"it has version {self.version} and this Quiver reads version {VERSION}"
            )
        sizes = [point.size_bytes for point in self.points]
        if any(one >= next_one for one, next_one in pairwise(sizes)):
            raise ValueError("its points are not in the order of their sizes")
        for quantiles in (self.latency_ms, self.sync_ms):
            if not all(quantiles.get(name, -1) >= 0 for name in ("p50", "p99")):
                raise ValueError("it lacks p50 or p99 of a latency")

    def seconds_per_message(self, what: str, size: float) -> float:
        """Time of a node that a message of this size takes; ``what`` is a rate of ``Point``."""
        cost = [(point.size_bytes, 1 / getattr(point, what)) for point in self.points]
        return _between(cost, size)

    def stored_bytes(self, size: float) -> float:
        """What a message of this size takes on disk, uncompressed."""
        overhead = [
            (point.size_bytes, max(point.stored_bytes - point.size_bytes, 0.0))
            for point in self.points
        ]
        return size + _between(overhead, min(size, overhead[-1][0]))


def _between(points: list[tuple[int, float]], size: float) -> float:
    """The value at ``size`` of a line through the points."""
    first_size, first = points[0]
    last_size, last = points[-1]
    if size <= first_size:
        return first
    if size >= last_size:
        return last * size / last_size
    for (low, low_value), (high, high_value) in pairwise(points):
        if size <= high:
            return low_value + (high_value - low_value) * (size - low) / (high - low)
    raise AssertionError("the points are in order")


def save(measurement: Measurement, path: str) -> None:
    """Write it whole or not at all."""
    encoded = msgspec.json.format(msgspec.json.encode(measurement), indent=2)
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(encoded + b"\n")
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def load(path: str) -> Measurement:
    try:
        with open(path, "rb") as file:
            encoded = file.read(FILE_BYTES_MAX + 1)
        if len(encoded) > FILE_BYTES_MAX:
            raise ValueError("it is too large")
        return msgspec.json.decode(encoded, type=Measurement)
    except FileNotFoundError:
        raise InvalidSetting(
            f"the measurement {path} does not exist: create it on a machine like the nodes', "
            f"with: quiver bench --save {path}"
        ) from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidSetting(
            f"{path} is not a measurement: {error}; create one with: quiver bench --save FILE"
        ) from None
