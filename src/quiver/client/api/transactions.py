"""The client's methods for transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quiver.client.api.settings import duration_s
from quiver.client.consumer.session.terms import OpenSession
from quiver.client.transaction.transaction import AsyncTransaction, TransactionTerms
from quiver.client.transaction.transaction_producers import TransactionProducers
from quiver.client.transport.cluster import Cluster
from quiver.errors import InvalidRequest, InvalidSetting
from quiver.model.clock import Clock
from quiver.model.transaction import (
    TIMEOUT_S,
    TIMEOUT_S_MAX,
    TransactionId,
    TransactionState,
)
from quiver.model.units import Duration

TIMEOUT_S_MIN = 0.1
_NAME_BYTES_MAX = 255
_ID_MAX = (1 << 63) - 1


class TransactionsApi:
    """The methods of an ``AsyncClient`` for transactions."""

    _check_open: Callable[[], None]
    _clock: Clock
    _cluster: Cluster
    _sessions: set[OpenSession]
    _settler: Callable[[], Any]
    _transactions: TransactionProducers

    def transaction(
        self, name: str | None = None, *, timeout: Duration = TIMEOUT_S
    ) -> AsyncTransaction:
        """Return a transaction: what it publishes and acknowledges is visible together, or not at all.

        Leaving its block commits, an exception aborts. ``timeout`` is how long it may be open, 15
        minutes at most. Messages that are received while it is open stay leased until it ends. With a
        ``name`` it fences every other client that began under this name before: such a client cannot
        commit any more.
        """
        self._check_open()
        terms = TransactionTerms(
            checked_name(name), duration_s("timeout", timeout, TIMEOUT_S_MIN, TIMEOUT_S_MAX)
        )
        return AsyncTransaction(
            self._transactions, self._cluster, self._clock, terms, self._settler, self._sessions
        )

    async def describe_transaction(self, transaction: int) -> TransactionState:
        """Return what became of a transaction: ``open``, ``committed``, ``aborted`` or ``unknown``.

        The outcome is known for an hour at least.
        """
        self._check_open()
        return await self._transactions.coordinator.describe(_checked_id(transaction))

    async def abort_transaction(self, transaction: int) -> None:
        """Abort the transaction of another client, which may be gone.

        The description of a topic has the open transactions that its readers wait for. It needs
        ``admin`` on the cluster. One that is committed stays so: the error is ``TransactionError``.
        """
        self._check_open()
        await self._transactions.coordinator.abort(_checked_id(transaction))


def _checked_id(transaction: Any) -> TransactionId:
    if not isinstance(transaction, int) or not 0 <= transaction <= _ID_MAX:
        raise InvalidRequest(
            f"{transaction!r:.80} is not the id of a transaction: give the number of its id"
        )
    return TransactionId(transaction)


def checked_name(name: str | None) -> str | None:
    """The name of a transaction; ``InvalidSetting`` if it is none."""
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= _NAME_BYTES_MAX:
        raise InvalidSetting(
            f"name must be text of 1 to {_NAME_BYTES_MAX} bytes, not {name!r:.80}", setting="name"
        )
    return name
