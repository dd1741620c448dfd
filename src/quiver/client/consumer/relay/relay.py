"""A consumer's session whose messages are passed on: over a WebSocket, or to a webhook.

Whoever passes them on gives the session credit. No more is reserved for it than the credit allows, and
without credit nothing. A message is started when it is taken from the session, many at a time. What
becomes of unsettled messages at the end depends on how the program at the other end left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import pyarrow as pa

from quiver.client.consumer.received import ReceivedMessage, batch_in, messages_in
from quiver.client.consumer.relay.credit import Credit
from quiver.client.consumer.relay.started_order import StartedOrder
from quiver.client.consumer.relay.watched_settlements import OnProblem, WatchedSettlements
from quiver.client.consumer.session.in_hand import InHand
from quiver.client.consumer.session.leases import Leases, leases_from, union
from quiver.client.consumer.session.node_stream import NodeStream, lost_in
from quiver.client.consumer.session.push_queue import PushQueue
from quiver.client.consumer.session.pushed import Pushed, PushedBatch, PushedMessages
from quiver.client.consumer.session.start_backoff import StartBackoff
from quiver.client.consumer.session.streams import NodeStreams
from quiver.client.consumer.session.terms import OpenSession, SessionTerms
from quiver.client.transport.channel import Answer
from quiver.client.transport.cluster import Cluster
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import Guarantee
from quiver.protocol import Received, Settlement

TAKEN_BYTES_MAX = 1 << 20
"""Pushes are taken together up to so many bytes."""


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
    _sessions: set[OpenSession]


def ignore_problem(error: QuiverError) -> None:
    """For a relay whose program cannot be told of settlements that failed."""


class Relay:
    """``open_relay`` makes one. Close it whatever happens.

    ``on_problem`` is told of settlements that failed or came too late and that nobody waits for.
    """

    def __init__(
        self,
        client: RelayClient,
        terms: SessionTerms,
        *,
        is_arrow: bool = False,
        on_problem: OnProblem = ignore_problem,
    ) -> None:
        cluster, clock = client._read_cluster, client._clock
        self._terms = terms
        self._client_sessions = client._sessions
        self._is_arrow = is_arrow
        self._pushed = PushQueue()
        self._in_hand = InHand(clock)
        self._order = StartedOrder()
        self.settlements = WatchedSettlements(
            cluster, clock, terms, self._in_hand, on_problem, before_nack=self._hold_back
        )
        self._streams = NodeStreams(
            cluster, clock, terms, self, pushed=self._pushed, in_hand=self._in_hand
        )
        self.credit = Credit(self._streams, self._pushed)
        self._start_backoff = StartBackoff(clock, terms.subscription)

    @property
    def visibility_us(self) -> int:
        return self._streams.consuming.visibility_ms * 1000

    async def open(self) -> None:
        """Connect. Raises what keeps the consumer from being one, such as ``SubscriptionNotFound``."""
        await self._streams.open()

    async def close(self, end: RelayEnd = RelayEnd.CLOSED) -> None:
        """Store what was settled and return the rest, as the program's end asks."""
        if self._streams.is_closed:
            return
        self._client_sessions.discard(self)
        self.credit.set(0)
        self.settlements.send_buffered()
        if end is not RelayEnd.KEPT:
            self._return_unsettled(end)
        self._streams.is_closed = True
        try:
            await self.settlements.store_all()
        finally:
            await self._streams.close(is_silent=end is not RelayEnd.CLOSED)
            await self.settlements.close()

    def _return_unsettled(self, end: RelayEnd) -> None:
        """Return what the program has; not what may have ended it."""
        back = {lease: offsets.copy() for lease, offsets in self._in_hand.leases.items()}
        oldest = self._order.oldest(back) if end is RelayEnd.SILENT else None
        if oldest is not None:
            lease, offset = oldest
            back[lease].discard(offset)
        self.settlements.give_back({lease: offsets for lease, offsets in back.items() if offsets})

    def settled(self, settlements: Sequence[Settlement], *, is_nack: bool) -> None:
        """These were settled in another way."""
        held = self._in_hand.leases
        leases = leases_from(one for one in settlements if one.lease in held)
        if is_nack:
            self._hold_back(leases)
        self._in_hand.forget(leases)

    # ------------------------------------------------------------------ messages

    def opened(self, stream: NodeStream) -> None:
        self.credit.offer_to(stream)

    def arrived(self, stream: NodeStream, reply: Received, body: memoryview) -> None:
        pushed: Pushed
        if self._is_arrow:
            pushed = PushedBatch(stream, batch_in(reply, body), len(body))
        else:
            messages = messages_in(reply, body, self._terms.subscription, None)
            pushed = PushedMessages(stream, messages, len(body))
        self._pushed.append(pushed)
        self.credit.trim()
        if self._pushed:
            self._streams.changed.wake()

    def _hold_back(self, nacked: Leases) -> None:
        """Return what follows messages that are nacked, if it may not overtake them.

        Of one partition, the relay has messages of one lease only.
        """
        if self._streams.blocks_on_nack:
            self._streams.release(self._pushed.remove_leases(nacked))

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
            self._streams.check()
            await self.settlements.until_room()
            if (pause_s := self._start_backoff.left_s) > 0:
                await self._streams.changed.wait(pause_s)
                continue
            if self.credit.is_resting:
                self.credit.set(self.credit.messages)
            chosen = self._choose(min(limit, self.credit.messages))
            if not chosen:
                self.settlements.send_buffered()
                await self._streams.changed.wait()
            elif started := await self._start_all(chosen):
                return started

    def _choose(self, left: int) -> list[Pushed]:
        """The next messages: some of a push, or several whole ones that are not large."""
        chosen: list[Pushed] = []
        size = 0
        waits = self._streams.guarantee != Guarantee.AT_LEAST_ONCE
        while left and self._pushed:
            pushed = self._pushed[0]
            if chosen and (len(pushed) > left or size + pushed.size > TAKEN_BYTES_MAX):
                break
            if waits and chosen and pushed.stream is not chosen[0].stream:
                break  # a node that cannot answer now keeps nothing of another's waiting
            part = pushed.take(left)
            left -= len(part)
            size += part.size
            chosen.append(part)
            if not pushed:
                self._pushed.popleft()
        return chosen

    async def _start_all(self, chosen: list[Pushed]) -> list[Pushed]:
        """Start these; those that the program may have."""
        self.credit.use(sum(map(len, chosen)), chosen[-1].stream)
        by_stream: dict[NodeStream, list[Pushed]] = {}
        for part in chosen:
            by_stream.setdefault(part.stream, []).append(part)
        begun = []
        for stream, parts in by_stream.items():
            leases = union(part.leases() for part in parts)
            begun.append(self._streams.begin(stream, leases, self.credit.new_window(stream)))
        self._order.add([run for part in chosen for run in part.runs()], self._in_hand.leases)
        self.credit.offer_rest()
        answers = [answer for answer in begun if answer is not None]
        return await self._without_lost(chosen, answers) if answers else chosen

    async def _without_lost(
        self, chosen: list[Pushed], answers: Sequence[asyncio.Future[Answer]]
    ) -> list[Pushed]:
        """Those that the nodes say the program may have, once that is stored."""
        try:
            lost = await lost_in(answers)
        except QuiverError as error:
            # Whether they were started is not known. What waits comes after them.
            self._start_backoff.failed(error)
            self.credit.messages += sum(map(len, chosen))
            self.credit.rest()
            self.settlements.give_back(union(part.leases() for part in chosen))
            return []
        except asyncio.CancelledError:
            self.settlements.give_back(union(part.leases() for part in chosen))
            raise
        self._start_backoff.succeeded()
        if not lost:
            return chosen
        self._in_hand.forget(lost)
        kept = [part for one in chosen if len(part := one.without(lost))]
        unused = sum(map(len, chosen)) - sum(map(len, kept))
        self.credit.set(self.credit.messages + unused)
        return kept


async def open_relay(
    client: RelayClient,
    terms: SessionTerms,
    *,
    is_arrow: bool = False,
    on_problem: OnProblem = ignore_problem,
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
