"""The results of sent messages: one promise for each batch, one small handle for each message.

A ``BatchPromise`` is settled once, by the event loop, and may be waited for from any thread and any
loop. A ``Delivery`` is a promise and an index in the batch. It costs a tenth of a microsecond, so every
``send`` returns one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from quiver.errors import InvalidRequest, QuiverError, RequestTimeout
from quiver.model.ids import Microseconds, Offset, PartitionIndex
from quiver.model.message_id import MessageId
from quiver.protocol import Repeat

logger = logging.getLogger("quiver.client.delivery")


class Published(msgspec.Struct, frozen=True, gc=False):
    """A stored message and its position.

    ``offset`` and ``timestamp_us`` are ``None`` if they are not known: with ``acks="none"``, and for a
    duplicate of a message that was stored long ago.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_us: int | None
    topic_number: int | None
    duplicate: bool = False
    """The message was stored before and was not stored again."""

    @property
    def id(self) -> str | None:
        """The message's id; ``None`` if the offset is not known."""
        if self.offset is None or self.timestamp_us is None or self.topic_number is None:
            return None
        return str(
            MessageId(
                append_time=Microseconds(self.timestamp_us),
                topic=self.topic_number,
                partition=PartitionIndex(self.partition),
                offset=Offset(self.offset),
            )
        )


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a whole batch is stored, as far as that is known."""

    base_offset: int | None = None
    append_time: int | None = None
    topic_number: int | None = None
    duplicate: bool = False
    repeats: Mapping[int, Repeat] = {}
    """Those that were stored before, by their place in the batch."""

    def of(self, place: int) -> tuple[int | None, int | None, bool]:
        """Offset and time of one message, and whether it was stored before."""
        repeat = self.repeats.get(place)
        if repeat is not None:
            # Below zero: it is in the partition from which this one was split.
            return (repeat.offset if repeat.offset >= 0 else None), repeat.append_time, True
        if self.base_offset is None:
            return None, self.append_time, self.duplicate
        before = sum(other < place for other in self.repeats)
        return self.base_offset + place - before, self.append_time, self.duplicate


class BatchPromise:
    """Kept or broken exactly once; then ``placement`` or ``error`` is set for good."""

    __slots__ = (
        "_callbacks",
        "_lock",
        "_moved",
        "_whole",
        "error",
        "is_observed",
        "keeper",
        "partition",
        "placement",
        "topic",
    )

    def __init__(
        self, topic: str, partition: int, keeper: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.keeper = keeper
        self.placement: Placement | None = None
        self.error: QuiverError | None = None
        self.is_observed = False
        """Whether anybody has asked what became of it."""
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._whole: BatchPromise | None = None
        self._moved: dict[int, tuple[BatchPromise, int]] = {}
        """Where the promise of each message is, if they were divided among others."""

    def is_done(self) -> bool:
        return self.placement is not None or self.error is not None

    def keep(self, placement: Placement) -> None:
        self._settle(placement, None)

    def fail(self, error: QuiverError) -> None:
        self._settle(None, error)

    def _settle(self, placement: Placement | None, error: QuiverError | None) -> None:
        with self._lock:
            assert not self.is_done(), "a promise is settled once"
            self.placement, self.error = placement, error
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def divide(self, parts: Sequence[tuple[BatchPromise, Sequence[int]]]) -> None:
        """Let others keep it: each for the messages at the places that come with it, in order."""
        for part, places in parts:
            part._whole = self
            self._moved.update({place: (part, at) for at, place in enumerate(places)})

        def settle() -> None:
            if not self.is_done() and all(part.is_done() for part, _ in parts):
                error = next((part.error for part, _ in parts if part.error is not None), None)
                self._settle(None if error is not None else Placement(), error)

        for part, _ in parts:
            part.on_done(settle)

    @property
    def given(self) -> BatchPromise:
        """The one that was given to the user, of which this may be a part."""
        return self if self._whole is None else self._whole.given

    def error_at(self, place: int) -> QuiverError | None:
        """Why the message at this place was not stored, once that is known."""
        self.is_observed = True
        moved = self._moved.get(place)
        return self.error if moved is None else moved[0].error_at(moved[1])

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call when settled, in the thread that settles it; at once if it is settled already."""
        with self._lock:
            if not self.is_done():
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout_s: float | None) -> None:
        """Block this thread until it is settled; ``RequestTimeout`` if that takes too long."""
        if self.is_done():
            return
        if self.keeper is not None and _running_loop() is self.keeper:
            raise InvalidRequest(
                "waiting here would block the event loop that sends: await the delivery instead"
            )
        done = threading.Event()
        self.on_done(done.set)
        if not done.wait(timeout_s):
            raise RequestTimeout(
                f"not confirmed within {timeout_s:g} s; it may still be stored", topic=self.topic
            )

    def future(self) -> asyncio.Future[None]:
        """A future of the running loop that is done when this is settled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not future.done():
                future.set_result(None)

        def settled() -> None:
            if _running_loop() is loop:
                settle()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(settle)

        self.on_done(settled)
        return future

    def published(self, place: int) -> Published:
        """The message at this place, once stored; raises the error if it was not."""
        if place in self._moved:
            self.is_observed = True
            part, at = self._moved[place]
            return part.published(at)
        placed = self._kept()
        offset, time_us, duplicate = placed.of(place)
        return Published(
            self.topic, self.partition, offset, time_us, placed.topic_number, duplicate
        )

    def published_at(self, places: Sequence[int]) -> list[Published]:
        """The messages at these places, like ``published``; what they share is looked up once."""
        placed = self._kept()
        if placed.base_offset is None or placed.repeats or self._moved:
            return [self.published(place) for place in places]
        topic, partition, base = self.topic, self.partition, placed.base_offset
        time_us, number, duplicate = placed.append_time, placed.topic_number, placed.duplicate
        return [
            Published(topic, partition, base + place, time_us, number, duplicate)
            for place in places
        ]

    def _kept(self) -> Placement:
        self.is_observed = True
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.placement is not None, "asked for once it is settled"
        return self.placement


class Delivery(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The pending result of one message. Wait for it with ``result()``, or with ``await``."""

    promise: BatchPromise
    place: int

    def done(self) -> bool:
        """Whether the message is stored or has failed."""
        return self.promise.is_done()

    def result(self, timeout: float | None = None) -> Published:
        """Block until the message is stored, and return its position. In async code, use ``await``."""
        self.promise.wait(timeout)
        return self.promise.published(self.place)

    def exception(self, timeout: float | None = None) -> QuiverError | None:
        """Block until the message is stored or failed, and return the error or ``None``."""
        self.promise.wait(timeout)
        return self.promise.error_at(self.place)

    def outcome(self) -> Published | QuiverError:
        """The position or the error of the message, once it is stored or failed."""
        try:
            return self.promise.published(self.place)
        except QuiverError as error:
            return error

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call ``callback(delivery)`` when it is done. It runs on the event loop, so keep it short."""

        def done() -> None:
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of a delivery failed")

        self.promise.on_done(done)

    def __await__(self) -> Generator[Any, None, Published]:
        if not self.promise.is_done():
            yield from self.promise.future().__await__()
        return self.promise.published(self.place)


def outcomes(sent: Sequence[Delivery | QuiverError]) -> list[Published | QuiverError]:
    """Where each message is stored or why it is not, once that is known of all."""
    found: list[Published | QuiverError] = []
    for promise, run in groupby(sent, _promise_of):
        if promise is None or promise.error is not None:
            found += [one.outcome() if isinstance(one, Delivery) else one for one in run]
        else:
            found += promise.published_at([one.place for one in run])  # type: ignore[union-attr]
    return found


def stored_of(results: list[Published | QuiverError]) -> list[Published]:
    """Where each message is stored; the first error if one is not."""
    for one in results:
        if isinstance(one, QuiverError):
            raise one
    return results  # type: ignore[return-value]


def _promise_of(sent: Delivery | QuiverError) -> BatchPromise | None:
    return sent.promise if isinstance(sent, Delivery) else None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
