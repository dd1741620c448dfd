"""Bugs to plant in transactions: each takes one rule away, to prove that the checker would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping
from typing import Any

from msgspec.structs import replace
from pyroaring import BitMap64

from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.records import AnyRecord
from quiver.broker.delivery.machine.snapshot import DeliverySnapshot
from quiver.broker.delivery.machine.state import DeliveryState
from quiver.broker.partition.committed_log import CommittedLog
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.open_transactions import OpenTransactions
from quiver.broker.transactions.completions import Completions, Waiter
from quiver.broker.transactions.coordinator import TransactionCoordinator
from quiver.broker.transactions.machine import Ending, Open, Records, TransactionMachine
from quiver.broker.transactions.records import Decided, Outcome, SharedEnded
from quiver.broker.transactions.shared import Shared, SharedEnding, SharedTransactions
from quiver.broker.transactions.shared_machine import SharedTransactionMachine
from quiver.client.consumer.settlement_kind import Kind
from quiver.client.transaction.holds import Holds
from quiver.edge.messages.dependents import Dependents, GoOn
from quiver.model.batch import StoredBatch
from quiver.model.envelope import COMMITTED
from quiver.model.ids import Microseconds, Offset
from quiver.model.transaction import TransactionId


async def _close_nothing(self: Partition, outcomes: Mapping[TransactionId, bool]) -> None:
    """Say that markers are written."""


def _commit_for_anyone(self: TransactionMachine, ending: Ending, opened: Open | None) -> Outcome:
    """Whoever has the name now."""
    return Outcome.COMMITTED if ending.is_commit else Outcome.ABORTED


async def _answer_at_once(self: TransactionCoordinator, records: Records) -> None:
    if records:
        self._write(records)


def _complete_at_once(self: Completions, transaction: TransactionId) -> Waiter:
    waiter: Waiter = asyncio.get_running_loop().create_future()
    waiter.set_result(True)
    return waiter


_write = TransactionCoordinator._write


def _tell_at_once(self: TransactionCoordinator, records: Records) -> asyncio.Future[None]:
    """Participants hear of a decision that is not durable."""
    self._send([record for record in records if isinstance(record, Decided)])
    return _write(self, records)


def _ack_at_once(
    self: DeliveryMachine,
    lease_id: int,
    offsets: BitMap64,
    transaction: TransactionId,
    now: Microseconds,
) -> tuple[BitMap64, list[AnyRecord]]:
    return self.ack(lease_id, offsets)


def _end_of_the_log(self: CommittedLog) -> Offset:
    return self._log.next_offset


_end = OpenTransactions._end


def _end_committed(self: OpenTransactions, transaction: TransactionId, marker: StoredBatch) -> None:
    _end(self, transaction, replace(marker, flags=marker.flags | COMMITTED))


_snapshot = DeliveryState.snapshot


def _snapshot_without_pending_acks(self: DeliveryState) -> DeliverySnapshot:
    return replace(_snapshot(self), pending_acks=[])


def _return_nothing(
    self: DeliveryMachine, transaction: TransactionId, *, is_committed: bool
) -> tuple[BitMap64, list[AnyRecord]]:
    """What an aborted transaction took is finished all the same."""
    return _close(self, transaction, is_committed=True)


_close = DeliveryMachine.close


def _end_with_all_parts(
    self: SharedTransactionMachine, ending: SharedEnding, shared: Shared, outcome: Outcome
) -> SharedEnded:
    """Every part counts, named or not."""
    if outcome.is_committed:
        ending = replace(ending, parts=sorted(shared.parts))
    return _end_shared(self, ending, shared, outcome)


_end_shared = SharedTransactionMachine._ended


def _end_without_a_note(self: SharedTransactions, record: SharedEnded) -> None:
    """Nobody knows afterwards which number was committed."""
    known = self.get(record.name).committed
    _note_end(self, record)
    self.get(record.name).committed = known


_note_end = SharedTransactions.ended


async def _give_nothing_back(self: Holds, kind: Kind) -> None:
    """The session keeps what an aborted transaction had acknowledged."""
    self._messages.take()


def _wait_for_nothing(
    self: Dependents, after: Iterable[int], unanswered: Container[int], go_on: GoOn
) -> None:
    """A commit is decided while its messages are on their way to the disk."""
    go_on(True)


_answered = Dependents.answered


def _all_went_well(self: Dependents, request_id: int, *, went_well: bool) -> None:
    """A commit is decided although a message was refused."""
    _answered(self, request_id, went_well=True)


SINK_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "commit parts that nobody named": [(SharedTransactionMachine, "_ended", _end_with_all_parts)],
    "commit a number again": [(SharedTransactions, "ended", _end_without_a_note)],
}
"""Those that only seeds with a sink find."""

SESSION_TRANSACTION_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "give nothing of an aborted transaction back": [(Holds, "give_back", _give_nothing_back)],
}
"""Those that only seeds find whose transactions have consumers with sessions."""

COMMIT_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "commit before the messages are stored": [(Dependents, "add", _wait_for_nothing)],
    "commit although a message was refused": [(Dependents, "answered", _all_went_well)],
}
"""Those that only seeds with the shipped client find."""

TRANSACTION_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "lose the marker of a transaction": [(Partition, "close_transactions", _close_nothing)],
    "let a zombie commit": [(TransactionMachine, "_verdict", _commit_for_anyone)],
    "answer a decision before it is durable": [
        (TransactionCoordinator, "_written", _answer_at_once),
        (Completions, "wait", _complete_at_once),
    ],
    "tell partitions of a decision before it is durable": [
        (TransactionCoordinator, "_write", _tell_at_once)
    ],
    "acknowledge without waiting for the transaction": [(DeliveryMachine, "hold", _ack_at_once)],
    "finish what an aborted transaction took": [(DeliveryMachine, "close", _return_nothing)],
    "read past an open transaction": [(CommittedLog, "next_offset", property(_end_of_the_log))],
    "show what was aborted": [(OpenTransactions, "_end", _end_committed)],
    "forget what is held in a snapshot": [
        (DeliveryState, "snapshot", _snapshot_without_pending_acks)
    ],
    **COMMIT_BUGS,
    **SINK_BUGS,
    **SESSION_TRANSACTION_BUGS,
}
"""Those that only seeds with transactions find."""
