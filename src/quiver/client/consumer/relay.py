"""A consumer's session whose messages are passed on: over a WebSocket, or to a webhook.

Whoever passes them on gives the session credit. No more is reserved for it than the credit allows, and
without credit nothing. A message is started when it is taken from the session, many at a time. What
becomes of unsettled messages at the end depends on how the program at the other end left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from quiver.client.consumer.node_stream import NodeStream
from quiver.client.consumer.pushed import PushedBatch, PushedMessages
from quiver.client.consumer.received import ReceivedMessage, batch_in, messages_in
from quiver.client.consumer.session import (
    UNCONFIRMED_MAX,
    ConsumerSession,
    SessionTerms,
    settlements_of,
)
from quiver.client.consumer.settlement_buffer import RETURN, Kind, Leases
from quiver.client.consumer.started_order import StartedOrder
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import InvalidRequest, QuiverError, StaleReceipt
from quiver.model.clock import Clock
from quiver.model.receipt import receipt
from quiver.protocol import AnyRequest, Received, Return, Settled, Settlement

WINDOW_MAX = 10_000
TAKEN_BYTES_MAX = 1 << 20
"""Pushes are taken together up to so many bytes."""

Pushed = PushedMessages | PushedBatch


class RelayEnd(Enum):
    """How the program at the other end left."""

    CLOSED = "closed"
    """It said so: what it has not settled is ready again at once, and does not count."""
    SILENT = "silent"
    """Without a word. The message that it had first counts: it may have ended the program."""
    KEPT = "kept"
    """It may come back: what it has stays leased until its visibility has passed."""


class RelayClient(Protocol):
    """The client that a relay is part of."""

    _read_cluster: Cluster
    _clock: Clock
    _sessions: set[ConsumerSession]


class Watched(msgspec.Struct, eq=False):
    """Settlements that somebody waits for."""

    kind: Kind
    leases: Leases
    others: Leases
    """Those that were not started in this session."""
    late: Leases = {}
    error: QuiverError | None = None

    def overlap(self, settlements: Sequence[Settlement]) -> Leases:
        found: Leases = {}
        for one in settlements:
            mine = self.leases.get(one.lease)
            if mine is not None and (both := mine & BitMap64.deserialize(one.offsets)):
                found[one.lease] = both
        return found


class Relay(ConsumerSession):
    """``open_relay`` makes one. Close it whatever happens.

    ``on_problem`` is told of settlements that failed or came too late and that nobody waits for.
    """

    def __init__(
        self,
        client: RelayClient,
        terms: SessionTerms,
        *,
        is_arrow: bool = False,
        on_problem: Callable[[QuiverError], object] = lambda error: None,
    ) -> None:
        terms = msgspec.structs.replace(terms, prefetch=0)
        super().__init__(client._read_cluster, client._clock, terms, self, None)
        self._client_sessions = client._sessions
        self._is_arrow = is_arrow
        self._on_problem = on_problem
        self.credit = 0
        """How many more messages may be taken."""
        self.is_resting = False
        self._order = StartedOrder()
        self._served: NodeStream | None = None
        """The stream whose messages were taken last."""
        self._watching: set[Watched] = set()
        self._last_kind: Kind | None = None

    def call_soon(self, call: Callable[[], None]) -> None:
        call()

    @property
    def visibility_us(self) -> int:
        return self._consuming.visibility_ms * 1000

    # ------------------------------------------------------------------ credit

    def set_credit(self, messages: int) -> None:
        """So many more messages may be taken. What waits beyond that is ready again at once."""
        self.credit = messages
        self.is_resting = False
        self._trim()
        self._offer()
        if messages and self._pushed:
            self._changed.wake()

    def rest(self) -> None:
        """Return what waits, and get nothing until ``set_credit``: nobody takes it now."""
        self.is_resting = True
        self._trim()
        self._offer()

    @property
    def _share(self) -> int:
        """How many messages each node may push."""
        if self.is_resting or not self.credit:
            return 0
        return min(WINDOW_MAX, max(1, self.credit // max(1, len(self._streams))))

    @property
    def _takes_turns(self) -> bool:
        """Whether the credit is too small for all nodes at the same time."""
        return self._share > 0 and self.credit < len(self._streams)

    def _offer(self) -> None:
        """Tell the nodes how many messages they may push.

        If that is not even one each, the node whose message was taken last comes last: it may be
        this very node, which would always be the first.
        """
        share = self._window = self._share
        last = self._served if self._takes_turns else None
        told = [
            stream
            for stream in self._streams.values()
            if stream is not last and _is_other(stream.window, share, len(self._streams))
        ]
        if last is None or not told:
            for stream in told:
                stream.tell(window=share)
            if last is not None:
                self._offer_to(last)
            return
        answers = [stream.start((), share) for stream in told]
        others = asyncio.gather(*answers, return_exceptions=True)
        others.add_done_callback(lambda _: self._offer_to(last))

    def _offer_to(self, stream: NodeStream) -> None:
        if stream.is_open and not self._is_closed and stream.window != self._share:
            stream.tell(window=self._share)

    async def _open_stream(self, address: str, channel: Any) -> None:
        await super()._open_stream(address, channel)
        self._offer_to(self._streams[address])  # the credit may be another one by now

    def _trim(self) -> None:
        """Return what waits beyond the credit. Who pushed it pushes nothing until the next offer."""
        allowed = 0 if self.is_resting or self._is_closed else self.credit
        excess = sum(map(len, self._pushed)) - allowed
        while excess > 0:
            pushed = self._pushed[-1]
            count = min(excess, len(pushed))
            excess -= count
            released = settlements_of(pushed.give_back(count))
            if not pushed:
                self._pushed.pop()
            pushed.stream.tell(released=released, window=0)

    def arrived(self, stream: NodeStream, reply: Received, body: memoryview) -> None:
        pushed: Pushed
        if self._is_arrow:
            pushed = PushedBatch(stream, batch_in(reply, body), len(body))
        else:
            messages = messages_in(reply, body, self.terms.subscription, None)
            pushed = PushedMessages(stream, messages, len(body))
        self._pushed.append(pushed)
        self._trim()
        if self._pushed:
            self._changed.wake()

    # ------------------------------------------------------------------ messages

    async def next_messages(self, limit: int) -> list[ReceivedMessage]:
        """The next messages, as soon as there are some: up to ``limit`` and the credit."""
        taken = await self._next(limit)
        return [message for part in taken for message in part.messages]  # type: ignore[union-attr]

    async def next_batch(self, limit: int) -> pa.RecordBatch:
        """The same as an Arrow batch, of a relay that was made for that."""
        batches = [part.batch for part in await self._next(limit)]  # type: ignore[union-attr]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    async def _next(self, limit: int) -> list[Pushed]:
        while True:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            if self._is_closed:
                raise InvalidRequest("the consumer is closed")
            await self.until_confirmed()
            chosen = self._choose(min(limit, self.credit))
            if not chosen:
                self._flush()
                await self._changed.wait()
            elif started := await self._start_all(chosen):
                return started

    def _choose(self, left: int) -> list[Pushed]:
        """The next messages: some of a push, or several whole ones that are not large."""
        chosen: list[Pushed] = []
        size = 0
        while left and self._pushed:
            pushed = self._pushed[0]
            if chosen and (len(pushed) > left or size + pushed.size > TAKEN_BYTES_MAX):
                break
            part = pushed.take(left)
            left -= len(part)
            size += part.size
            chosen.append(part)
            if not pushed:
                self._pushed.popleft()
        return chosen

    async def _start_all(self, chosen: list[Pushed]) -> list[Pushed]:
        """Start these; those that the program may have."""
        self.credit -= sum(map(len, chosen))
        by_stream: dict[NodeStream, list[Pushed]] = {}
        for part in chosen:
            by_stream.setdefault(part.stream, []).append(part)
        self._served = chosen[-1].stream
        begun = []
        for stream, parts in by_stream.items():
            is_last = self._takes_turns and stream is self._served
            window = 0 if is_last else self._share
            leases = _union([part.leases() for part in parts])
            begun.append(self._begin(stream, leases, None if window == stream.window else window))
        self._order.add([run for part in chosen for run in part.runs()], self._in_hand)
        self._window = self._share
        if len(self._streams) > 1:
            self._offer()
        self._trim()
        answers = [answer for answer in begun if answer is not None]
        return await self._without_lost(chosen, answers) if answers else chosen

    async def _without_lost(self, chosen: list[Pushed], answers: Sequence[Any]) -> list[Pushed]:
        """Those that the nodes say the program may have, once that is stored."""
        lost: Leases = {}
        try:
            for answer in answers:
                for one in expect(Settled, (await answer)[0]).stale:
                    lost[one.lease] = BitMap64.deserialize(one.offsets)
        except QuiverError:
            self.give_back(_union([part.leases() for part in chosen]))  # it is not known
            return []
        except asyncio.CancelledError:
            self.give_back(_union([part.leases() for part in chosen]))
            raise
        if not lost:
            return chosen
        self._forget(lost)
        return [kept for part in chosen if len(kept := part.without(lost))]

    # ------------------------------------------------------------------ settling

    async def until_confirmed(self) -> None:
        """Wait while too many settlements are on their way."""
        while sum(self._unconfirmed.values()) >= UNCONFIRMED_MAX:
            await self._confirmations.wait()

    def settle_all(self, kind: Kind, leases: Leases) -> None:
        """Record what the program did with messages. It is sent with others, soon."""
        known, others = self._divided(leases)
        self._record(kind, known)
        if others:
            self._tasks.start(self._settle_and_tell(kind, others))

    def settle_watched(self, kind: Kind, leases: Leases) -> Watched:
        """The same for somebody who waits with ``stored``."""
        known, others = self._divided(leases)
        watched = Watched(kind, known, others)
        self._watching.add(watched)
        self._record(kind, known)
        return watched

    async def stored(self, watched: Watched) -> None:
        """Wait until that is stored; ``StaleReceipt`` for what came too late."""
        try:
            if watched.others:
                watched.late = await self._settle_others(watched.kind, watched.others)
            await asyncio.sleep(0)  # settlements of the same moment are sent together
            self._flush()
            sent = set(self._unconfirmed)
            while sent & self._unconfirmed.keys():
                await self._confirmations.wait()
        finally:
            self._watching.discard(watched)
        if watched.error is not None:
            raise watched.error
        if watched.late:
            raise _stale(watched.late)

    def give_back(self, leases: Leases) -> None:
        """The program has not seen these: they are ready again at once, and do not count."""
        self._forget(leases)
        self._send(leases, RETURN)

    def _divided(self, leases: Leases) -> tuple[Leases, Leases]:
        """What this session has started, and what comes from elsewhere or is not even genuine."""
        known = {key: value for key, value in leases.items() if key in self._lease_streams}
        return known, {key: value for key, value in leases.items() if key not in known}

    def _record(self, kind: Kind, leases: Leases) -> None:
        if not leases:
            return
        if kind != self._last_kind:
            self._flush()  # what is done with a message is done in order
            self._last_kind = kind
        self._buffer.add_all(kind, leases)

    async def _settle_others(self, kind: Kind, leases: Leases) -> Leases:
        """Settle what was not started here, on its own: a wrong receipt spoils nothing else."""
        request = kind.request(self.terms.subscription, settlements_of(leases))
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        stale = expect(Settled, reply).stale
        return {one.lease: BitMap64.deserialize(one.offsets) for one in stale}

    async def _settle_and_tell(self, kind: Kind, leases: Leases) -> None:
        try:
            late = await self._settle_others(kind, leases)
        except QuiverError as error:
            self._on_problem(error)
        else:
            if late:
                self._on_problem(_stale(late))

    def _note_stale(self, request: AnyRequest, stale: list[Settlement]) -> None:
        if isinstance(request, Return):
            return
        super()._note_stale(request, stale)
        is_known = False
        for watched in self._watching:
            late = watched.overlap(stale)
            watched.late = {**watched.late, **late}
            is_known = is_known or bool(late)
        if stale and not is_known and not self._is_closed:
            late = {one.lease: BitMap64.deserialize(one.offsets) for one in stale}
            self._on_problem(_stale(late))

    def _not_delivered(self, error: BaseException, request: AnyRequest | None = None) -> None:
        super()._not_delivered(error, request)
        if not isinstance(error, QuiverError) or self._is_closed:
            return
        settlements = getattr(request, "settlements", ())
        affected = [one for one in self._watching if one.overlap(settlements)]
        for watched in affected:
            watched.error = error
        if not affected:
            self._on_problem(error)

    # ------------------------------------------------------------------ the end

    async def close(self, end: RelayEnd = RelayEnd.CLOSED) -> None:
        """Store what was settled and return the rest, as the program's end asks."""
        if self._is_closed:
            return
        self._client_sessions.discard(self)
        self.set_credit(0)
        self._flush()
        self._is_silent = end is not RelayEnd.CLOSED
        if end is not RelayEnd.KEPT:
            back = {lease: offsets.copy() for lease, offsets in self._in_hand.items()}
            oldest = self._order.oldest(back) if end is RelayEnd.SILENT else None
            if oldest is not None:
                lease, offset = oldest
                back[lease].discard(offset)
            self.give_back({lease: offsets for lease, offsets in back.items() if offsets})
        await super().close()


async def open_relay(
    client: RelayClient,
    terms: SessionTerms,
    *,
    is_arrow: bool = False,
    on_problem: Callable[[QuiverError], object] = lambda error: None,
) -> Relay:
    """A relay that is connected. Raises what keeps it from consuming, as ``SubscriptionNotFound``."""
    relay = Relay(client, terms, is_arrow=is_arrow, on_problem=on_problem)
    client._sessions.add(relay)
    try:
        await relay.open()
    except BaseException:
        await relay.close()
        raise
    return relay


def _is_other(told: int, share: int, nodes: int) -> bool:
    """Whether a node has to be told its share. Of several nodes, one may have about as much."""
    if nodes == 1 or not share or not told:
        return told != share
    return not share <= 2 * told <= 4 * share


def _union(parts: Sequence[Leases]) -> Leases:
    found: Leases = {}
    for leases in parts:
        for lease, offsets in leases.items():
            known = found.get(lease)
            found[lease] = offsets if known is None else known | offsets
    return found


def _stale(late: Leases) -> StaleReceipt:
    return StaleReceipt(
        "the lease had ended: another consumer may have the message",
        stale=[receipt(lease, offset) for lease, offsets in late.items() for offset in offsets],
    )
