"""A message as a reader gets it.

A ``Message`` is a plain value that costs well under a microsecond to create, so nothing is computed before
it is needed. Times are microseconds since 1970-01-01 UTC; properties without ``_us`` return a ``datetime``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from quiver.errors import InvalidRequest
from quiver.model.dead_letter import DeadLetter
from quiver.model.ids import Microseconds, Offset, PartitionIndex
from quiver.model.message_id import MessageId

PRIORITY_DEFAULT = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def datetime_of(time_us: int) -> datetime:
    """The moment as a ``datetime`` in UTC, exact to the microsecond."""
    return _EPOCH + timedelta(microseconds=time_us)


def time_us_of(moment: datetime) -> int:
    """The moment in microseconds since 1970; one without a time zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND


class _Origin(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What few messages have. Given by name, so that it costs the others nothing."""

    origin_identity: str | None = None
    """The ``identity`` that a dead letter or a redriven message had at first."""
    dead_letter: DeadLetter | None = None
    """Of a dead letter: where it comes from, and how it failed."""


class Message(_Origin, frozen=True, gc=False):
    """A stored message and its position."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    """When it was stored."""
    topic_number: int
    payload: bytes
    key: bytes | None = None
    headers: dict[str, str] = {}
    priority: int = PRIORITY_DEFAULT
    event_time_us: int | None = None
    """When the event happened, as set by the producer."""
    deliver_at_us: int | None = None
    expires_at_us: int | None = None
    dedup_id: str | None = None

    @property
    def id(self) -> str:
        """Unique and in time order; see ``MessageId``."""
        return str(
            MessageId(
                append_time=Microseconds(self.timestamp_us),
                topic=self.topic_number,
                partition=PartitionIndex(self.partition),
                offset=Offset(self.offset),
            )
        )

    @property
    def identity(self) -> str:
        """What stays the same however often the message is published, delivered or redriven.

        The ``dedup_id`` within its topic, or else the id. A redriven message has that of the message
        that it was. A dead letter has its own.
        """
        if self.origin_identity is not None and self.dead_letter is None:
            return self.origin_identity
        return self.id if self.dedup_id is None else f"{self.topic}/{self.dedup_id}"

    @property
    def timestamp(self) -> datetime:
        return datetime_of(self.timestamp_us)

    @property
    def event_time(self) -> datetime | None:
        return None if self.event_time_us is None else datetime_of(self.event_time_us)

    @property
    def deliver_at(self) -> datetime | None:
        return None if self.deliver_at_us is None else datetime_of(self.deliver_at_us)

    @property
    def expires_at(self) -> datetime | None:
        return None if self.expires_at_us is None else datetime_of(self.expires_at_us)

    def json(self, type: Any = Any) -> Any:
        """Decode the payload as JSON, into ``type`` if given (checked by msgspec)."""
        try:
            return msgspec.json.decode(self.payload, type=type)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"the payload of message {self.id} is not the expected JSON: {error}"
            ) from error

    def text(self) -> str:
        """Decode the payload as UTF-8 text."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"the payload of message {self.id} is not UTF-8: {error}"
            ) from error
