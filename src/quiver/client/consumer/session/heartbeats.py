"""Heartbeats of a session: they say that the consumer is there, and keep the leases of what it works on.

A node extends a lease up to the subscription's ``max_processing``. What the program has had for longer
is with others, or soon will be, so the session keeps no account of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Protocol

from quiver.client.consumer.session.in_hand import InHand
from quiver.client.consumer.session.leases import settlements_of
from quiver.client.consumer.session.node_stream import NodeStream
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.logger import logger
from quiver.model.clock import Clock
from quiver.protocol import Consuming

_BEAT_S_MIN = 0.1
_BEATS, _IDLE_BEATS = 3, 2
"""So many fit into the visibility: while the program works on messages, and while it waits."""
_ANSWERED = 3
"""Of the heartbeats of an idle consumer, every such one asks the node whether it is there."""


class BeatStreams(Protocol):
    """The streams of the session."""

    consuming: Consuming

    def __iter__(self) -> Iterator[NodeStream]: ...


class Heartbeats:
    def __init__(
        self, clock: Clock, terms: SessionTerms, streams: BeatStreams, in_hand: InHand
    ) -> None:
        self._clock = clock
        self._terms = terms
        self._streams = streams
        self._in_hand = in_hand

    async def run(self) -> None:
        """Say again and again that the consumer is there, and what it works on."""
        for number in count(1):
            visibility_s = self._streams.consuming.visibility_ms / 1000
            # A lease that begins meanwhile lasts longer than this.
            beats = _BEATS if self._in_hand else _IDLE_BEATS
            await self._clock.sleep(max(_BEAT_S_MIN, visibility_s / beats))
            self.beat(is_quiet=not self._in_hand and number % _ANSWERED != 0)

    def beat(self, *, is_quiet: bool = False) -> None:
        """Say so now. ``is_quiet``: without an answer."""
        self._give_up_overdue()
        held = settlements_of(self._in_hand.leases)
        self._in_hand.tidy()
        for stream in self._streams:
            if stream.is_open:
                if is_quiet:
                    stream.tell()
                else:
                    stream.beat(held)

    def _give_up_overdue(self) -> None:
        consuming = self._streams.consuming
        if not consuming.max_processing_ms:
            return
        longest_s = (consuming.max_processing_ms + consuming.visibility_ms) / 1000
        overdue = self._in_hand.take_started_before(self._clock.monotonic() - longest_s)
        if overdue:
            logger.warning(
                "messages were not settled within max_processing: others get them",
                subscription=self._terms.subscription,
                messages=sum(map(len, overdue.values())),
            )
