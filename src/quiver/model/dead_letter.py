"""What is known of a dead letter: where it comes from, and how it failed."""

from __future__ import annotations

from datetime import datetime

import msgspec


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a dead letter, and its error."""

    origin_topic: str
    origin_partition: int | None = None
    origin_offset: int | None = None
    origin_subscription: str | None = None
    origin_time: datetime | None = None
    deliveries: int | None = None
    last_error: str | None = None
    first_delivery: datetime | None = None
    last_delivery: datetime | None = None
