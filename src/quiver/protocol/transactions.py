"""Transactions: publishes and acknowledgements that count together, or not at all.

A coordinator decides each transaction: the leader of a partition of ``__transactions``, found by the
transaction's producer. A publish belongs to a transaction by its envelope, an acknowledgement by ``Hold``.
Neither counts before the coordinator has decided, and the partitions have heard of it.
"""

from __future__ import annotations

import msgspec

from quiver.protocol.base import Reply, Request
from quiver.protocol.deliver import Settlement


class Participant(msgspec.Struct, array_like=True, frozen=True):
    """A partition that a transaction writes to or takes messages from."""

    topic: str
    partition: int


class BeginTransactions(Request, tag="begin_transactions"):
    """A producer of transactions, one after the other. Whoever had the name before is fenced."""

    name: str | None = None
    is_shared: bool = False
    """Its transactions will be parts of shared ones of this name. Then nobody is fenced."""


class TransactionsBegun(Reply, tag="transactions_begun"):
    producer_id: int
    token: bytes
    """Shows that its holder was given the producer: whoever ends a transaction has to have it."""


class JoinTransaction(Request, tag="join_transaction"):
    """Tell the coordinator of a transaction in advance: its time limit, and partitions it reaches.

    With a ``number`` it is a part of the shared transaction of its name and this number, which is open for
    another time limit. The answer is ``transaction_ended`` if that is committed already.
    """

    transaction: int
    token: bytes
    timeout_ms: int = 60_000
    participants: list[Participant] = []
    name: str | None = None
    number: int | None = None


class Hold(Request, tag="hold"):
    """Keep messages until a transaction has ended, durably: then they are finished, or return.

    The answer is ``settled``. What is stale in it is not held.
    """

    subscription: str
    settlements: list[Settlement]
    transaction: int


class EndTransaction(Request, tag="end_transaction"):
    """Commit or abort. The answer comes when all partitions that could be reached know it.

    All publishes are confirmed and all messages are held by then. Who repeats it gets the same answer.
    """

    transaction: int
    token: bytes
    is_commit: bool
    name: str | None = None
    """Under which it was begun: another may have begun under it since."""
    participants: list[Participant] = []
    age_ms: int = 0
    timeout_ms: int = 60_000
    number: int | None = None
    """Of the shared transaction that is to end: ``parts`` count, and no others of this number."""
    parts: list[int] = []
    is_last: bool = False
    """Nobody will use the name of the shared transaction any more."""


class EndTransactionAfter(EndTransaction, tag="end_transaction_after"):
    """The same, once other requests of this connection have gone well: publishes and holds.

    If one of them has not, or is not known, nothing is ended, and the answer is ``transaction``.
    """

    after: list[int] = []
    """Their ids. They were sent before, over this connection."""

    def alone(self) -> EndTransaction:
        """The same without the others: they have gone well, or need not."""
        names = EndTransaction.__struct_fields__
        return EndTransaction(**{name: getattr(self, name) for name in names})


class TransactionEnded(Reply, tag="transaction_ended"):
    is_committed: bool
    is_complete: bool = True
    """Whether all partitions know. Those that do not, hear of it soon."""


class AbortTransaction(Request, tag="abort_transaction"):
    """Abort the transaction of a client that does not. The answer is how it has ended."""

    transaction: int


class DescribeTransaction(Request, tag="describe_transaction"):
    """What became of a transaction. It is known for an hour at least."""

    transaction: int


class TransactionInfo(Reply, tag="transaction"):
    transaction: int
    state: str
    """``open``, ``committed``, ``aborted`` or ``unknown``."""


class ResolveTransactions(Request, tag="resolve_transactions"):
    """A partition asks what became of transactions that are open there. For nodes alone.

    One that the coordinator has not heard of is open from now on, until its time limit.
    """

    transactions: list[int]


class TransactionsResolved(Reply, tag="transactions_resolved"):
    states: dict[int, str] = {}


class CloseTransactions(Request, tag="close_transactions"):
    """Tell a partition what became of transactions: whether each is committed. For nodes alone.

    The answer comes when that is durable there.
    """

    topic: str
    partition: int
    outcomes: dict[int, bool]
