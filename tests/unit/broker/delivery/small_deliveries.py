"""Small subscriptions to try: a machine with messages in it, on a clock that stands at zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.delivery.machine.arrival import Arrival
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.model.delivery_columns import NEVER
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import SubscriptionSettings

SECOND = 1_000_000


def subscription(**settings: Any) -> DeliveryMachine:
    return DeliveryMachine(SubscriptionSettings(topics=["jobs"], **settings), Offset(0))


def arrival(
    base: int,
    count: int,
    *,
    at: float = 0,
    priority: int | Sequence[int] | None = None,
    key: Sequence[bytes | None] | None = None,
    delay: Sequence[float | None] | None = None,
    expires: Sequence[float | None] | None = None,
) -> Arrival:
    """A batch that is published at that second; delays and expiries are seconds on the clock."""
    priorities = None if priority is None else np.full(count, priority, np.int8)
    return Arrival(
        base_offset=Offset(base),
        count=count,
        time=seconds(at),
        priority=priorities,
        key=None if key is None else pa.array(key, pa.binary()),
        deliver_at=_times(delay),
        expires_at=_times(expires),
    )


def publish(machine: DeliveryMachine, count: int, **columns: Any) -> None:
    machine.state.observe(arrival(machine.state.observed_to, count, **columns))


def take(machine: DeliveryMachine, limit: int, at: float = 0, lease: int = 1) -> list[int]:
    """Which messages a receive gets."""
    taken, _ = machine.take(seconds(at), limit=limit, lease_id=lease, consumer="ann")
    return [] if taken is None else list(taken.offsets)


def offsets(*places: int) -> BitMap64:
    return BitMap64(places)


def seconds(number: float) -> Microseconds:
    return Microseconds(round(number * SECOND))


def _times(times: Sequence[float | None] | None) -> Any:
    if times is None:
        return None
    return np.array([NEVER if time is None else seconds(time) for time in times], np.int64)
