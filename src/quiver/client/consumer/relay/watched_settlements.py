"""Settlements of a relay: of messages that it passed on, and of any others of the subscription.

Who waits for settlements hears how just these ended. Of what nobody waits for, ``on_problem`` is told
what failed or came too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from quiver.client.consumer.session.in_hand import InHand
from quiver.client.consumer.session.leases import Leases, leases_from, settlements_of
from quiver.client.consumer.session.node_stream import stale_of
from quiver.client.consumer.session.settlements import Settlements
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.consumer.settlement_kind import Kind
from quiver.client.transport.cluster import Cluster
from quiver.errors import QuiverError, StaleReceipt
from quiver.model.clock import Clock
from quiver.model.receipt import receipt
from quiver.protocol import AnyRequest, Settlement

OnProblem = Callable[[QuiverError], object]


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
        for lease, offsets in leases_from(settlements).items():
            mine = self.leases.get(lease)
            if mine is not None and (both := mine & offsets):
                found[lease] = both
        return found


class WatchedSettlements:
    """Everything happens in the relay's event loop."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        terms: SessionTerms,
        in_hand: InHand,
        on_problem: OnProblem,
        before_nack: Callable[[Leases], None],
    ) -> None:
        self._settlements = Settlements(
            cluster, clock, terms, in_hand, lambda call: call(), observer=self
        )
        self._cluster = cluster
        self._terms = terms
        self._in_hand = in_hand
        self._on_problem = on_problem
        self._before_nack = before_nack
        self._watching: set[Watched] = set()
        self._last_kind: Kind | None = None
        self._is_closing = False

    # ------------------------------------------------------------------ what the program did

    def settle_all(self, kind: Kind, leases: Leases) -> None:
        """Record what the program did with messages. It is sent with others, soon."""
        known, others = self._divided(leases)
        self._record(kind, known)
        if others:
            self._settlements.tasks.start(self._settle_and_tell(kind, others))

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
            self._settlements.send_buffered()
            await self._settlements.until_confirmed()
        finally:
            self._watching.discard(watched)
        if watched.error is not None:
            raise watched.error
        if watched.late:
            raise _stale(watched.late)

    def give_back(self, leases: Leases) -> None:
        """The program has not seen these: they are ready again at once, and do not count."""
        self._settlements.give_back(leases)

    def _divided(self, leases: Leases) -> tuple[Leases, Leases]:
        """What this session has started, and what comes from elsewhere or is not even genuine."""
        is_known = self._in_hand.is_known
        known = {lease: offsets for lease, offsets in leases.items() if is_known(lease)}
        return known, {key: value for key, value in leases.items() if key not in known}

    def _record(self, kind: Kind, leases: Leases) -> None:
        if not leases:
            return
        if kind != self._last_kind:
            self._settlements.send_buffered()  # what is done with a message is done in order
            self._last_kind = kind
        if kind.name == "nack":
            self._before_nack(leases)
        self._settlements.buffer.add_all(kind, leases)

    async def _settle_others(self, kind: Kind, leases: Leases) -> Leases:
        """Settle what was not started here, on its own: a wrong receipt spoils nothing else."""
        request = kind.request(self._terms.subscription, settlements_of(leases))
        _, answer = await self._cluster.call(request, repeatable=True)
        return leases_from(stale_of(answer))

    async def _settle_and_tell(self, kind: Kind, leases: Leases) -> None:
        try:
            late = await self._settle_others(kind, leases)
        except QuiverError as error:
            self._on_problem(error)
        else:
            if late:
                self._on_problem(_stale(late))

    # ------------------------------------------------------------------ on their way

    def send_buffered(self) -> None:
        self._settlements.send_buffered()

    async def until_room(self) -> None:
        """Wait while too many settlements are on their way."""
        while self._settlements.is_full:
            await self._settlements.until_some_confirmed()

    async def flush(self) -> None:
        """Wait until everything that was settled so far is stored."""
        await self._settlements.flush()

    async def store_all(self) -> None:
        """The same for a relay that ends. Nobody is told of problems any more."""
        self._is_closing = True
        await self._settlements.store_all()

    async def close(self) -> None:
        await self._settlements.close()

    # ------------------------------------------------------------------ what failed

    def came_late(self, stale: list[Settlement]) -> None:
        is_known = False
        for watched in self._watching:
            late = watched.overlap(stale)
            watched.late = {**watched.late, **late}
            is_known = is_known or bool(late)
        if not is_known and not self._is_closing:
            self._on_problem(_stale(leases_from(stale)))

    def not_delivered(self, error: BaseException, request: AnyRequest | None) -> None:
        if not isinstance(error, QuiverError) or self._is_closing:
            return
        settlements = getattr(request, "settlements", ())
        affected = [one for one in self._watching if one.overlap(settlements)]
        for watched in affected:
            watched.error = error
        if not affected:
            self._on_problem(error)


def _stale(late: Leases) -> StaleReceipt:
    return StaleReceipt(
        "the lease had ended: another consumer may have the message",
        stale=[receipt(lease, offset) for lease, offsets in late.items() for offset in offsets],
    )
