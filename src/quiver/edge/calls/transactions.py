"""The calls about transactions. Those about one run on its coordinator."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver import protocol
from quiver.broker.transactions.machine import Ending
from quiver.broker.transactions.service import stored_name
from quiver.broker.transactions.shared import Part, SharedEnding
from quiver.edge.auth.call_permissions import cluster_admin, nothing
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.call import Call, Turn
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import Here, ask
from quiver.errors import InvalidRequest, PermissionDenied
from quiver.formats import ENTRIES, SNAPSHOTS, STATE_RECORDS
from quiver.model.envelope import TRANSACTION_VERSION
from quiver.model.transaction import (
    PARTS_MAX,
    TIMEOUT_S_MAX,
    TransactionId,
    TransactionState,
    producer_of,
)

_TIMEOUT_MS_MAX = round(TIMEOUT_S_MAX * 1000)
_ID_BITS = 63
_AGE_MS_MAX = 1 << 50

_Held = protocol.JoinTransaction | protocol.EndTransaction
"""What only whoever began a transaction may ask for."""


async def begin(context: Context, request: protocol.BeginTransactions, _: memoryview) -> Answer:
    caller, transactions = context.caller, context.services.broker.transactions
    member = context.services.member
    if member is not None:
        # An older node could not follow a log with a transaction in it, nor lead it.
        member.view.state.require_read_by_all(ENTRIES, TRANSACTION_VERSION)
    await context.services.note_formats([ENTRIES, STATE_RECORDS, SNAPSHOTS])
    producer = await transactions.begin(
        request.name,
        owner=caller.producer_owner,
        names_max=caller.producer_names_max,
        is_shared=request.is_shared,
    )
    token = transactions.tokens.token(producer, caller.principal.name, request.name)
    return protocol.TransactionsBegun(producer_id=producer, token=token), ()


async def join(context: Context, request: protocol.JoinTransaction, _: memoryview) -> Answer:
    require_holder(context, request)
    timeout_us = _timeout_us(request.timeout_ms)
    transaction, transactions = (
        TransactionId(request.transaction),
        context.services.broker.transactions,
    )
    if request.number is None:
        await transactions.join(transaction, timeout_us, request.participants)
        return protocol.Done(), ()
    part = Part(
        transaction=transaction,
        name=_stored(context, request) or "",
        number=request.number,
        timeout_us=timeout_us,
        participants=request.participants,
    )
    if await transactions.join_shared(part):
        return protocol.TransactionEnded(is_committed=True), ()
    return protocol.Done(), ()


async def end(context: Context, request: protocol.EndTransaction, _: memoryview) -> Answer:
    require_holder(context, request)
    transaction, transactions = (
        TransactionId(request.transaction),
        context.services.broker.transactions,
    )
    if request.number is not None:
        ended = await transactions.end_shared(transaction, _shared_ending(context, request))
    else:
        ended = await transactions.end(
            Ending(
                transaction=transaction,
                is_commit=request.is_commit,
                name=_stored(context, request),
                participants=request.participants,
                age_us=min(max(0, request.age_ms), _AGE_MS_MAX) * 1000,
                timeout_us=_timeout_us(request.timeout_ms),
            )
        )
    return protocol.TransactionEnded(
        is_committed=ended.is_committed, is_complete=ended.is_complete
    ), ()


async def end_after(
    context: Context, request: protocol.EndTransactionAfter, body: memoryview
) -> Answer:
    if context.went_well:
        return await end(context, request, body)
    require_holder(context, request)
    return protocol.TransactionInfo(
        transaction=request.transaction, state=TransactionState.OPEN
    ), ()


def _shared_ending(context: Context, request: protocol.EndTransaction) -> SharedEnding:
    assert request.number is not None, "it ends a shared transaction"
    if len(request.parts) > PARTS_MAX:
        raise InvalidRequest(f"a shared transaction has {PARTS_MAX:,} parts at most")
    return SharedEnding(
        name=_stored(context, request) or "",
        number=request.number,
        is_commit=request.is_commit,
        parts=list(dict.fromkeys(map(_known, request.parts))),
        participants=request.participants,
        is_last=request.is_last,
    )


async def abort(context: Context, request: protocol.AbortTransaction, _: memoryview) -> Answer:
    ending = Ending(transaction=_known(request.transaction), is_commit=False)
    ended = await context.services.broker.transactions.end(ending)
    return protocol.TransactionEnded(
        is_committed=ended.is_committed, is_complete=ended.is_complete
    ), ()


async def describe(
    context: Context, request: protocol.DescribeTransaction, _: memoryview
) -> Answer:
    transaction = _known(request.transaction)
    state = await context.services.broker.transactions.describe(transaction)
    return protocol.TransactionInfo(transaction=transaction, state=state), ()


async def resolve(context: Context, request: protocol.ResolveTransactions, _: memoryview) -> Answer:
    require_node(context)
    asked = [TransactionId(one) for one in request.transactions]
    states = await context.services.broker.transactions.resolve(asked)
    return protocol.TransactionsResolved(
        states={one: str(state) for one, state in states.items()}
    ), ()


async def close(context: Context, request: protocol.CloseTransactions, _: memoryview) -> Answer:
    require_node(context)
    await context.services.broker.transactions.close_here(
        protocol.Participant(request.topic, request.partition),
        {TransactionId(one): committed for one, committed in request.outcomes.items()},
    )
    return protocol.Done(), ()


# ---------------------------------------------------------------------- who may


def require_node(context: Context) -> None:
    if context.caller.principal is not PEER:
        raise PermissionDenied("only nodes of the cluster may send this request")


def require_holder(context: Context, request: _Held) -> None:
    """``PermissionDenied`` unless the caller began the transaction. A node that asks has checked."""
    if context.caller.principal is PEER:
        return
    tokens = context.services.broker.transactions.tokens
    producer, _ = producer_of(_known(request.transaction))
    tokens.require(request.token, producer, context.caller.principal.name)
    is_named = isinstance(request, protocol.EndTransaction) or request.number is not None
    if is_named:
        tokens.require_name(request.token, request.name)
    if request.number is not None and (request.name is None or not 0 <= request.number < 1 << 62):
        raise InvalidRequest("a shared transaction has a name, and a number from 0")


def _stored(context: Context, request: _Held) -> str | None:
    """The name as it is stored. A node that passes a request on has seen to that."""
    if request.name is None or context.caller.principal is PEER:
        return request.name
    owner = context.caller.producer_owner
    return stored_name(request.name, owner, is_shared=request.number is not None)


def _known(transaction: int) -> TransactionId:
    if not 0 <= transaction < 1 << _ID_BITS:
        raise InvalidRequest(f"{transaction} is not the id of a transaction")
    return TransactionId(transaction)


def _timeout_us(timeout_ms: int) -> int:
    if not 1 <= timeout_ms <= _TIMEOUT_MS_MAX:
        raise InvalidRequest(
            f"a transaction may be open for 1 to {_TIMEOUT_MS_MAX:,} ms, not {timeout_ms:,}",
            setting="timeout",
        )
    return timeout_ms * 1000


class AtTransactionCoordinator:
    """On the node that coordinates the transaction. What only its holder may do is checked before."""

    is_here, is_several = False, False

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]:
        if isinstance(request, _Held):
            require_holder(context, request)
        transaction = _known(request.transaction)
        address = await context.services.broker.transactions.coordinator_of(transaction)
        if address is None:
            return [await here(request)]
        if isinstance(request, _Held):
            request = msgspec.structs.replace(request, name=_stored(context, request))
        return [await ask(context, address, request)]


class AtTransactionCoordinatorAfter(AtTransactionCoordinator):
    """The same, once this node has seen that other requests went well. The coordinator need not know."""

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]:
        if not context.went_well:
            return [await here(request)]
        return await super().answers(context, request.alone(), here)


_AT_COORDINATOR = AtTransactionCoordinator()

CALLS = (
    Call(request=protocol.BeginTransactions, handler=begin, needs=nothing, turn=Turn.OWN),
    Call(
        request=protocol.JoinTransaction,
        handler=join,
        needs=nothing,
        turn=Turn.OWN,
        runs=_AT_COORDINATOR,
    ),
    Call(
        request=protocol.EndTransaction,
        handler=end,
        needs=nothing,
        turn=Turn.EAGER,
        runs=_AT_COORDINATOR,
    ),
    Call(
        request=protocol.AbortTransaction,
        handler=abort,
        needs=cluster_admin,
        runs=_AT_COORDINATOR,
        is_audited=True,
    ),
    Call(
        request=protocol.EndTransactionAfter,
        handler=end_after,
        needs=nothing,
        is_for_peers=False,
        turn=Turn.AFTER,
        runs=AtTransactionCoordinatorAfter(),
    ),
    Call(
        request=protocol.DescribeTransaction,
        handler=describe,
        needs=nothing,
        turn=Turn.OWN,
        runs=_AT_COORDINATOR,
    ),
    Call(
        request=protocol.ResolveTransactions,
        handler=resolve,
        needs=cluster_admin,
        turn=Turn.OWN,
    ),
    Call(
        request=protocol.CloseTransactions,
        handler=close,
        needs=cluster_admin,
        turn=Turn.OWN,
    ),
)
