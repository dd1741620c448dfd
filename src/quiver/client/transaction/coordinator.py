"""The calls to the coordinator of a transaction. Any node takes them, and passes them on to it.

Who repeats the end of a transaction gets the same answer. So a commit is repeated until there is one, over
changes of leaders, within the time of a call. Then the coordinator is asked what became of it.
"""

from __future__ import annotations

import contextlib
from weakref import WeakSet

from quiver.client.transport.channel import Channel
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import (
    QuiverError,
    TransactionAborted,
    TransactionError,
    TransactionInDoubt,
    UnknownCall,
)
from quiver.model.clock import Clock
from quiver.model.transaction import TransactionId, TransactionState
from quiver.protocol import (
    AbortTransaction,
    BeginTransactions,
    DescribeTransaction,
    Done,
    EndTransaction,
    EndTransactionAfter,
    JoinTransaction,
    TransactionEnded,
    TransactionInfo,
    TransactionsBegun,
)

_ATTEMPT_S = 5.0
"""How long one node is waited for: another may coordinate by then."""
_ASK_S = 5.0
"""How long the outcome of a commit without an answer is asked for."""
_COMPLETE_S = 5.0
"""How long a commit waits for partitions that have not heard of it."""
_COMPLETE_PAUSE_S = 0.05


class Coordinator:
    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._older: WeakSet[Channel] = WeakSet()
        """To nodes that do not know ``end_transaction_after``."""

    async def begin(self, name: str | None, *, is_shared: bool = False) -> TransactionsBegun:
        """Who repeats it gets another producer, and fences nobody but itself."""
        request = BeginTransactions(name=name, is_shared=is_shared)
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        return expect(TransactionsBegun, reply)

    async def join(self, request: JoinTransaction) -> bool:
        """Whether the shared transaction that it would be a part of is committed already."""
        _, (reply, _) = await self._cluster.call(request, repeatable=True, attempt_s=_ATTEMPT_S)
        if isinstance(reply, TransactionEnded):
            return reply.is_committed
        expect(Done, reply)
        return False

    async def end(
        self, request: EndTransaction, timeout_s: float | None = None
    ) -> TransactionEnded:
        """Repeated until there is an answer, or the time of a call is up."""
        _, (reply, _) = await self._cluster.call(
            request, repeatable=True, timeout_s=timeout_s, attempt_s=_ATTEMPT_S
        )
        return expect(TransactionEnded, reply)

    async def abort(self, transaction: TransactionId) -> None:
        """Abort it, whoever began it; ``TransactionError`` if it is committed."""
        request = AbortTransaction(transaction=transaction)
        _, (reply, _) = await self._cluster.call(request, repeatable=True, attempt_s=_ATTEMPT_S)
        expect(TransactionEnded, reply)

    async def describe(
        self, transaction: TransactionId, timeout_s: float | None = None
    ) -> TransactionState:
        _, (reply, _) = await self._cluster.call(
            DescribeTransaction(transaction=transaction),
            repeatable=True,
            timeout_s=timeout_s,
            attempt_s=_ATTEMPT_S,
        )
        return TransactionState(expect(TransactionInfo, reply).state)

    async def commit(self, request: EndTransaction) -> bool:
        """Commit; whether all partitions know of it.

        ``TransactionAborted`` if it was aborted, ``TransactionInDoubt`` if nobody said what became of
        it. After any other error it is not committed.
        """
        try:
            ended = await self.end(request)
        except TransactionError:
            raise
        except QuiverError as error:
            # Also one that is final: an earlier attempt, whose answer was lost, may have committed.
            ended = await self._outcome(TransactionId(request.transaction), error)
        _require_committed(request, ended)
        return ended.is_complete or await self._completed(request)

    async def commit_after(self, channel: Channel, request: EndTransactionAfter) -> bool | None:
        """Commit once other requests have gone well; whether all partitions know of it.

        ``None`` if one of them has not, or the node cannot say: nothing is decided. Of ``TransactionError``
        the transaction is aborted. After any other error it may be decided.
        """
        if channel in self._older:
            return None
        try:
            reply, _ = await channel.start(request, timeout_s=_ATTEMPT_S)
        except UnknownCall:
            self._older.add(channel)
            return None
        if isinstance(reply, TransactionInfo):
            return None
        ended = expect(TransactionEnded, reply)
        _require_committed(request, ended)
        return ended.is_complete or await self._completed(request.alone())

    async def _completed(self, request: EndTransaction) -> bool:
        """It is committed. Wait for partitions that have not heard of it, for a while."""
        deadline = self._clock.monotonic() + _COMPLETE_S
        while (left_s := deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(_COMPLETE_PAUSE_S)
            with contextlib.suppress(QuiverError):
                if (await self.end(request, left_s)).is_complete:
                    return True
        return False

    async def _outcome(self, transaction: TransactionId, error: QuiverError) -> TransactionEnded:
        """There was no answer to the commit: ask what became of it."""
        state = TransactionState.UNKNOWN
        with contextlib.suppress(QuiverError):
            state = await self.describe(transaction, _ASK_S)
        if state not in (TransactionState.COMMITTED, TransactionState.ABORTED):
            if not error.retryable:
                raise error
            raise in_doubt(transaction, error) from error
        is_committed = state is TransactionState.COMMITTED
        return TransactionEnded(is_committed=is_committed, is_complete=False)


def in_doubt(transaction: TransactionId, error: QuiverError) -> TransactionInDoubt:
    """Nobody says what became of a transaction, after this error."""
    return TransactionInDoubt(
        f"whether transaction {transaction} was committed is not known ({error.message}): "
        f"describe_transaction({transaction}) will say so",
        transaction=transaction,
    )


def _require_committed(request: EndTransaction, ended: TransactionEnded) -> None:
    if not ended.is_committed:
        raise TransactionAborted(
            f"transaction {request.transaction} was aborted: its time limit was over",
            transaction=request.transaction,
        )
