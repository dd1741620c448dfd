"""What a transaction publishes and acknowledges, from the program's word until the nodes have it.

Nothing of it counts before the coordinator has decided. Lives on the event loop, once it is open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any

import msgspec
import pyarrow as pa

from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.terms import Holder, OpenSession
from quiver.client.consumer.settlement_kind import Kind
from quiver.client.producer.pending_batch import PendingBatch
from quiver.client.producer.sender import Sender
from quiver.client.transaction.held_messages import HeldMessages
from quiver.client.transaction.holds import Holds
from quiver.client.transaction.transaction_producer import TransactionProducer
from quiver.client.transport.channel import Channel
from quiver.client.transport.cluster import Cluster
from quiver.errors import InvalidRequest, QuiverError, TransactionTooLarge
from quiver.model.transaction import PARTICIPANTS_MAX
from quiver.protocol import Participant

Sent = list[tuple[Sender, list[PendingBatch]]]
"""The batches that were sent and are not settled."""


class Unconfirmed(msgspec.Struct, frozen=True):
    """Requests without an answer, all sent over one connection."""

    channel: Channel
    requests: list[int]


class TransactionContents:
    def __init__(self, cluster: Cluster, producer: TransactionProducer) -> None:
        self._producer = producer
        self._messages = HeldMessages()
        self._holds = Holds(cluster, producer.transaction, self._messages)

    def ack(
        self,
        message: Any,
        holder: Holder,
        *,
        client: object,
        sessions: Container[OpenSession],
    ) -> bool:
        """A message that ``client`` has received, or one of these sessions. From any thread.

        Whether its lease ends by itself, as without a session.
        """
        if not isinstance(message, ReceivedMessage):
            raise InvalidRequest(
                "give messages that were received or consumed, or a received batch, "
                f"not {type(message).__name__}"
            )
        session = getattr(message.settler, "session", None)
        is_own = message.settler is client if session is None else session in sessions
        if not is_own:
            raise InvalidRequest(
                f"message {message.id} came with another client, or its consumer is closed: a "
                "transaction acknowledges messages of its own client"
            )
        self._messages.add(message, session)
        if session is not None:
            session.join(message, holder)
        return session is None

    def ack_batch(self, batch: pa.RecordBatch | pa.Table, subscription: str) -> None:
        self._messages.add_batch(batch, subscription)

    def keep_leases(self) -> None:
        """Have the nodes keep messages whose leases may end before the transaction does."""
        self._holds.send(is_early=True)

    async def held(self) -> None:
        """Have the nodes keep what was acknowledged so far. If that fails, so does the commit."""
        self._holds.send()
        with contextlib.suppress(QuiverError):
            await self._holds.finish()

    # ------------------------------------------------------------------ before the end

    def send(self) -> Sent:
        """Send everything."""
        self._holds.send()
        return [(sender, sender.send_all()) for sender in self._producer.senders]

    def unconfirmed(self, sent: Sent) -> Unconfirmed | None:
        """What was sent and is not confirmed, if it all went over one connection.

        ``None`` if there is nothing, or if it is not certain that the node gets all of it.
        """
        requests = self._holds.unconfirmed()
        if requests is None:
            return None
        for sender, unfinished in sent:
            if sender.stopped_by is not None:
                return None
            for batch in unfinished:
                if batch.channel is None or not batch.is_in_flight:
                    return None
                requests.append((batch.channel, batch.request_id))
        if not requests:
            return None
        channel = requests[0][0]
        # What waits in the client for room on the connection may never be sent.
        if channel.is_congested or any(other is not channel for other, _ in requests):
            return None
        return Unconfirmed(channel, [request for _, request in requests])

    async def stored(self, sent: Sent | None = None) -> None:
        """Wait until everything is stored, and kept for the transaction. Raises what failed."""
        for sender, unfinished in self.send() if sent is None else sent:
            await sender.accumulator.finished(unfinished)
            if sender.stopped_by is not None:
                raise sender.stopped_by.with_traceback(None)
        await self._holds.finish()

    async def drained(self, sent: Sent | None = None) -> bool:
        """Wait until nothing is under way, before an abort; whether all of it went well.

        A message that arrived after the end would open the transaction again in its partition.
        """
        if sent is None:
            sent = [(sender, sender.send_all()) for sender in self._producer.senders]
        for sender, unfinished in sent:
            await sender.accumulator.finished(unfinished)
        try:
            await self._holds.finish()
        except QuiverError:
            return False
        return not any(sender.stopped_by for sender, _ in sent)

    def reached(self) -> list[Participant]:
        """The partitions that it writes to and takes from."""
        reached = set(self._messages.participants)
        for sender in self._producer.senders:
            reached.update((sender.topic, partition) for partition in sender.reached)
        if len(reached) > PARTICIPANTS_MAX:
            raise TransactionTooLarge(
                f"the transaction reaches {len(reached):,} partitions, and {PARTICIPANTS_MAX:,} are "
                "allowed: commit more often"
            )
        return [Participant(topic, partition) for topic, partition in sorted(reached)]

    # ------------------------------------------------------------------ after the end

    async def give_back(self, kind: Kind) -> None:
        """The transaction is aborted: return what the nodes do not keep for it."""
        await self._holds.give_back(kind)

    def undo(self) -> None:
        """The transaction was aborted: what the nodes kept for it comes again."""
        self._holds.undo()

    def leave(self, holder: Holder) -> None:
        for session in self._messages.sessions:
            session.leave(holder)
