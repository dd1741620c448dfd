"""Workers that take messages, publish results of them and acknowledge them, all in one transaction.

They speak the native protocol's requests. A worker writes down what it did and what it was told. It aborts
some transactions, forgets others, and comes back as a zombie now and then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from quiver import protocol
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError, TransactionAborted, TransactionError
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import TRANSACTIONAL, ProducerStamp, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.transaction import transaction_id
from quiver.testing.simulator.broker_clients import BrokerClient, place_of
from quiver.testing.simulator.history import History, Transaction
from quiver.testing.simulator.messages import Ask
from quiver.testing.simulator.transactions.receiving import CALL_SECONDS, Taken, receive

_PATIENCE_SECONDS = 8.0
_EPOCHS_MAX = 6
_TIMEOUTS_MS = (3000, 8000)

T = TypeVar("T")


class Worker:
    """``is_hasty``: it only wants to finish."""

    def __init__(
        self,
        client: BrokerClient,
        queue: str,
        outputs: list[PartitionId],
        history: History,
        name: str | None,
    ) -> None:
        self.is_hasty = False
        self.stopping = False
        self.is_idle = False
        self._client = client
        self._queue = queue
        self._outputs = outputs
        self._history = history
        self._name = name

    def stop(self) -> None:
        """Begin no transaction from now on; what is received meanwhile is left to its lease."""
        self.stopping = True

    async def run(self) -> None:
        while not self.stopping:
            begun = await self._insist(self._begin)
            if begun is None:
                continue
            for epoch in range(self._client.rng.randint(1, _EPOCHS_MAX)):
                taken = [] if self.stopping else await receive(self._client, self._queue)
                self.is_idle = not taken
                if self.stopping or (taken and not await self._transact(begun, epoch, taken)):
                    break

    async def _begin(self) -> protocol.TransactionsBegun:
        answer = await self._client.ask_any(
            protocol.BeginTransactions(name=self._name), CALL_SECONDS
        )
        assert isinstance(answer.reply, protocol.TransactionsBegun)
        return answer.reply

    # ------------------------------------------------------------------ one transaction

    async def _transact(
        self, begun: protocol.TransactionsBegun, epoch: int, taken: list[Taken]
    ) -> bool:
        """Whether the producer can go on: nobody may have a transaction open and begin another."""
        rng = self._client.rng
        number = transaction_id(ProducerId(begun.producer_id), ProducerEpoch(epoch))
        one = Transaction(id=number, worker=self._client.name, began=self._client.loop.time())
        self._history.transactions.append(one)
        mood = 1.0 if self.is_hasty else rng.random()
        timeout_ms = rng.choice(_TIMEOUTS_MS)
        if rng.random() < 0.3 and not await self._join(one, begun.token, timeout_ms):
            return False
        is_whole = await self._publish(one, begun.producer_id, epoch, taken)
        is_whole = is_whole and await self._hold(one, taken)
        if mood < 0.08:
            return False  # it forgets about it
        if mood < 0.15:
            await asyncio.sleep(rng.uniform(0.5, 5.0))  # it is paused
        if 0.15 <= mood < 0.28:
            await self._be_fenced(one)
        is_commit = is_whole and not 0.28 <= mood < 0.35
        return await self._end(one, begun.token, is_commit=is_commit, timeout_ms=timeout_ms)

    async def _be_fenced(self, one: Transaction) -> None:
        """Another life of the worker takes its name, and does nothing with it."""
        if self._name is not None and await self._insist(self._begin) is not None:
            one.fenced = self._client.loop.time()

    async def _join(self, one: Transaction, token: bytes, timeout_ms: int) -> bool:
        request = protocol.JoinTransaction(transaction=one.id, token=token, timeout_ms=timeout_ms)
        return await self._insist(lambda: self._client.ask_any(request, CALL_SECONDS)) is not None

    async def _publish(
        self, one: Transaction, producer: int, epoch: int, taken: list[Taken]
    ) -> bool:
        """A result of each message in some partitions; whether all of them are stored."""
        rng = self._client.rng
        results: dict[PartitionId, list[str]] = defaultdict(list)
        for portion in taken:
            for _, value in portion.messages:
                chosen = rng.sample(self._outputs, rng.randint(1, len(self._outputs)))
                for number, partition in enumerate(chosen):
                    results[partition].append(f"{value}/{number}@{one.id}")
        stamp = ProducerStamp(ProducerId(producer), ProducerEpoch(epoch), Sequence(0))
        for partition, values in results.items():
            one.outputs += [(partition, value) for value in values]
        for partition, values in results.items():
            topic, index = place_of(partition)
            builder = BatchBuilder()
            for value in values:
                builder.add(value.encode())
            plain = builder.build()
            batch = seal_batch(plain.body, plain.count, plain.columns, stamp, TRANSACTIONAL)
            ask = Ask(
                protocol.Publish(topic=topic, partition=index), batch.head + bytes(batch.body)
            )
            if await self._insist(lambda: self._client.ask_leader(partition, ask)) is None:  # noqa: B023
                return False
        return True

    async def _hold(self, one: Transaction, taken: list[Taken]) -> bool:
        """Whether all messages wait for the transaction now."""
        for portion in taken:
            request = protocol.Hold(
                subscription=self._queue, settlements=[portion.settlement], transaction=one.id
            )
            answer = await self._insist(lambda: self._client.ask_any(request, CALL_SECONDS))  # noqa: B023
            if answer is None:
                return False
            assert isinstance(answer.reply, protocol.Settled)
            if answer.reply.stale:
                return False
            one.inputs += [(portion.partition, offset) for offset, _ in portion.messages]
        return True

    async def _end(
        self, one: Transaction, token: bytes, *, is_commit: bool, timeout_ms: int
    ) -> bool:
        """Ask for the end until there is an answer, or patience is over."""
        reached = {partition for partition, _ in (*one.outputs, *one.inputs)}
        if self._client.rng.random() < 0.2:
            reached = set(sorted(reached)[1:])  # it names too few
        one.asked = "commit" if is_commit else "abort"
        one.asked_at = self._client.loop.time()

        async def end() -> Any:
            now = self._client.loop.time()
            request = protocol.EndTransaction(
                transaction=one.id,
                token=token,
                is_commit=is_commit,
                name=self._name,
                participants=[protocol.Participant(*place_of(place)) for place in sorted(reached)],
                age_ms=round((now - one.began) * 1000),
                timeout_ms=timeout_ms,
            )
            try:
                return (await self._client.ask_any(request, CALL_SECONDS)).reply
            except TransactionError as error:
                return error

        answer = await self._insist(end)
        if answer is None:
            return False
        one.ended = self._client.loop.time()
        if isinstance(answer, TransactionError):
            one.told = "aborted" if isinstance(answer, TransactionAborted) else answer.code
            return False
        assert isinstance(answer, protocol.TransactionEnded)
        one.told = "committed" if answer.is_committed else "aborted"
        return True

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """The answer to a call, which is repeated for a while; ``None`` if there is none."""
        deadline = self._client.loop.time() + _PATIENCE_SECONDS
        while self._client.loop.time() < deadline:
            try:
                return await call()
            except TransactionError:
                return None  # it has ended
            except QuiverError:
                await self._client.rest()
        return None
