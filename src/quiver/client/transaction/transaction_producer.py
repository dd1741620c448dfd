"""The producer of transactions, one after the other: its id, its epoch, and a producer for each topic.

Each transaction has an epoch of its own, one above the last. Sequences begin at zero in each. A producer
takes the next transaction only when it is certain what became of the last one everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver.aio import SingleFlight
from quiver.client.producer.partition_queue import ProducerSession
from quiver.client.producer.producer import AsyncProducer
from quiver.client.producer.sender import Sender
from quiver.errors import ConnectionLost
from quiver.model.envelope import TRANSACTIONAL
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.transaction import EPOCHS_MAX, TransactionId, transaction_id
from quiver.protocol import TransactionsBegun

TOPICS_MAX = 256
"""Producers of so many topics are kept for the next transaction."""

MakeProducer = Callable[[str, ProducerSession], AsyncProducer]


class TransactionProducer:
    def __init__(self, begun: TransactionsBegun, name: str | None, make: MakeProducer) -> None:
        self.name = name
        self.token = begun.token
        self._id = ProducerId(begun.producer_id)
        self._epoch = ProducerEpoch(0)
        self._make = make
        self._producers: dict[str, AsyncProducer] = {}
        self._used: dict[str, AsyncProducer] = {}
        """Those that write to the transaction of now, by topic."""
        self._opening: SingleFlight[str, AsyncProducer] = SingleFlight()

    @property
    def transaction(self) -> TransactionId:
        return transaction_id(self._id, self._epoch)

    @property
    def has_next(self) -> bool:
        return self._epoch + 1 < EPOCHS_MAX

    def next(self) -> None:
        """Go on with another transaction. What was sent for the last one is settled."""
        self._epoch = ProducerEpoch(self._epoch + 1)
        self._used.clear()
        if len(self._producers) > TOPICS_MAX:
            self.close()

    def known(self, topic: str) -> AsyncProducer | None:
        """The producer of a topic, if there is one. It writes to the transaction of now."""
        used = self._used.get(topic)
        if used is not None:
            return used
        kept = self._producers.get(topic)
        if kept is not None:
            kept.opened_sender.begin(self._session)
            self._used[topic] = kept
        return kept

    async def opened(self, topic: str) -> AsyncProducer:
        """The producer of a topic: those who ask at the same time get the same one."""
        known = self.known(topic)
        return known or await self._opening.run(topic, lambda: self._open(topic))

    async def _open(self, topic: str) -> AsyncProducer:
        producer = await self._make(topic, self._session).open()
        self._producers[topic] = self._used[topic] = producer
        return producer

    @property
    def _session(self) -> ProducerSession:
        return ProducerSession(self._id, self._epoch, TRANSACTIONAL)

    @property
    def senders(self) -> list[Sender]:
        """Those that write to the transaction of now."""
        return [producer.opened_sender for producer in self._used.values()]

    def close(self) -> None:
        """Stop all that is under way. The producer takes no other transaction."""
        for producer in self._producers.values():
            producer.opened_sender.stop(ConnectionLost("the transaction has ended"))
        self._producers.clear()
