"""Has the nodes keep the messages that a transaction acknowledges.

The requests of one moment go out together, without a task. One that is lost with its connection goes to
any other node. A node that has kept a message for the transaction already says so again.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice

import msgspec

from quiver.aio import retrieve_exception
from quiver.client.consumer.session.leases import Leases, leases_from, settlements_of
from quiver.client.consumer.session.node_stream import NodeStream, stale_of
from quiver.client.consumer.settlement_kind import RETURN, Kind
from quiver.client.transaction.held_messages import HeldGroup, HeldMessages
from quiver.client.transport.channel import Answer, Channel
from quiver.client.transport.cluster import Cluster
from quiver.errors import QuiverError, StaleReceipt
from quiver.model.receipt import receipt
from quiver.model.transaction import TransactionId
from quiver.protocol import Hold

_STALE_NAMED_MAX = 100
"""How many of the messages that were lost an error names."""


class _Sent(msgspec.Struct, eq=False):
    group: HeldGroup
    leases: Leases
    request: Hold
    channel: Channel | None
    answer: asyncio.Future[Answer] | None


class Holds:
    """Lives on the event loop."""

    def __init__(
        self, cluster: Cluster, transaction: TransactionId, messages: HeldMessages
    ) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._messages = messages
        self._sent: list[_Sent] = []
        self._held: list[tuple[HeldGroup, Leases]] = []
        self._stale: Leases = {}

    def send(self, *, is_early: bool = False) -> None:
        """Send what was added since the last time. ``is_early``: only if its lease may end soon."""
        for group in self._messages.take(is_early=is_early):
            streams: dict[NodeStream | None, Leases] = {None: group.leases}
            if group.session is not None:
                streams = group.session.by_stream(group.leases)
            for stream, leases in streams.items():
                request = Hold(
                    subscription=group.subscription,
                    settlements=settlements_of(leases),
                    transaction=self._transaction,
                )
                channel, answer = self._start(request, stream)
                if answer is not None:  # what matters of its error is read in ``finish``
                    answer.add_done_callback(retrieve_exception)
                self._sent.append(_Sent(group, leases, request, channel, answer))

    def _start(
        self, request: Hold, stream: NodeStream | None
    ) -> tuple[Channel | None, asyncio.Future[Answer] | None]:
        if stream is not None:
            return stream.channel, stream.send(request)
        known = self._cluster.pool.any_open()
        return (None, None) if known is None else (known[1], known[1].start(request))

    def unconfirmed(self) -> list[tuple[Channel, int]] | None:
        """The requests without an answer, and where they were sent.

        ``None`` if one of them has to be sent again, or something is not kept: ``finish`` says so.
        """
        found: list[tuple[Channel, int]] = []
        for one in self._sent:
            if one.channel is None or one.answer is None:
                return None
            if not one.answer.done():
                found.append((one.channel, one.request.id))
            elif retrieve_exception(one.answer) is not None or stale_of(one.answer.result()):
                return None
        return None if self._stale else found

    async def finish(self) -> None:
        """Wait until all that was sent is kept; ``StaleReceipt`` if a lease had ended."""
        while self._sent:
            one = self._sent[0]
            stale = leases_from(stale_of(await self._answer(one)))
            if one not in self._sent:
                continue  # another who waits has noted it
            self._sent.remove(one)
            self._stale |= stale
            self._held.append((one.group, one.leases))
            if one.group.session is not None:
                one.group.session.held(one.leases)
        if self._stale:
            raise self._stale_receipt()

    async def _answer(self, one: _Sent) -> Answer:
        if one.answer is not None:
            try:
                return await asyncio.shield(one.answer)
            except QuiverError as error:
                if not error.retryable:
                    raise
        _, answer = await self._cluster.call(one.request, repeatable=True)
        return answer

    def _stale_receipt(self) -> StaleReceipt:
        subscriptions = {
            lease: group.subscription for group, leases in self._held for lease in leases
        }
        late = [
            (lease, offset)
            for lease, offsets in self._stale.items()
            for offset in islice(offsets, _STALE_NAMED_MAX)
        ][:_STALE_NAMED_MAX]
        named = [f"offset {offset} of {subscriptions[lease]!r}" for lease, offset in late[:10]]
        count = sum(map(len, self._stale.values()))
        return StaleReceipt(
            f"the transaction was aborted: the lease of {count:,} of its messages had ended, so others "
            "may have them, or they were settled before: "
            f"{', '.join(named)}{', …' if count > len(named) else ''}",
            stale=[receipt(lease, offset) for lease, offset in late],
            transaction=self._transaction,
        )

    async def give_back(self, kind: Kind) -> None:
        """Return what was not sent. The nodes do not keep it for the transaction."""
        for group in self._messages.take():
            if group.session is not None:
                group.session.undone(group.leases, kind)
                continue
            request = kind.request(group.subscription, settlements_of(group.leases))
            with contextlib.suppress(QuiverError):  # their leases end by themselves
                await self._cluster.call(request, repeatable=True)

    def undo(self) -> None:
        """The transaction was aborted: the nodes return what they kept for it.

        What was sent without an answer may not have arrived: the session gives it back.
        """
        for group, leases in self._held:
            if group.session is not None:
                group.session.undone(leases, None)
        for one in self._sent:
            if one.group.session is not None:
                one.group.session.undone(one.leases, RETURN)
