"""Transactions over HTTP: begin, commit, abort, and what became of one.

The id of a transaction has all that a node needs to go on with it, so any node takes any request of it.
"""

from __future__ import annotations

import msgspec

from quiver.client.api.settings import duration_s
from quiver.client.api.transactions import TIMEOUT_S_MIN
from quiver.client.transaction.coordinator import Coordinator
from quiver.client.transaction.joined import JoinedTransaction
from quiver.client.transaction.reference import (
    NAME_BYTES_MAX,
    TransactionReference,
    number_in,
    reference_in,
)
from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.routes.topics import BODY_ERRORS
from quiver.edge.http.schemas.transactions import NewTransaction, TransactionView
from quiver.errors import (
    InvalidRequest,
    InvalidSetting,
    MalformedBody,
    TransactionAborted,
    TransactionFenced,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionTimedOut,
    TransactionTooLarge,
)
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.transaction import TIMEOUT_S_MAX, TransactionState, transaction_id

_new = msgspec.json.Decoder(NewTransaction)


async def begin_transaction(call: Call) -> Reply:
    asked = await call.json(_new) if call.has_body else NewTransaction()
    timeout_s = duration_s("timeout", asked.timeout, TIMEOUT_S_MIN, TIMEOUT_S_MAX)
    if asked.name is not None and len(asked.name.encode()) > NAME_BYTES_MAX:
        raise InvalidRequest(f"name: at most {NAME_BYTES_MAX} bytes", field="name")
    cluster = call.client.cluster
    begun = await Coordinator(cluster, cluster.clock).begin(asked.name)
    number = transaction_id(ProducerId(begun.producer_id), ProducerEpoch(0))
    reference = TransactionReference(number, round(timeout_s * 1000), begun.token, asked.name)
    await JoinedTransaction(cluster, reference).begin()
    view = TransactionView(id=reference.text, state=TransactionState.OPEN)
    location = (b"location", f"/transactions/{reference.text}".encode())
    return Reply(201, encode(view), headers=(location,))


async def commit_transaction(call: Call) -> Reply:
    call.require_no_body()
    transaction = _transaction(call)
    await transaction.commit()
    return _ended(transaction, TransactionState.COMMITTED)


async def abort_transaction(call: Call) -> Reply:
    call.require_no_body()
    text = call.path["transaction"]
    if text.isdigit():
        await call.client.abort_transaction(number_in(text))
        return Reply(200, encode(TransactionView(id=text, state=TransactionState.ABORTED)))
    transaction = _transaction(call)
    await transaction.abort()
    return _ended(transaction, TransactionState.ABORTED)


async def describe_transaction(call: Call) -> Reply:
    text = call.path["transaction"]
    cluster = call.client.cluster
    state = await Coordinator(cluster, cluster.clock).describe(number_in(text))
    return Reply(200, encode(TransactionView(id=text, state=state)))


def _transaction(call: Call) -> JoinedTransaction:
    return JoinedTransaction(call.client.cluster, reference_in(call.path["transaction"]))


def _ended(transaction: JoinedTransaction, state: TransactionState) -> Reply:
    return Reply(200, encode(TransactionView(id=transaction.reference.text, state=state)))


_ENDS = (TransactionAborted, TransactionTimedOut, TransactionFenced, TransactionNotFound)
_PATH = "/transactions/{transaction}"
OPERATIONS = (
    Operation(
        method="POST",
        path="/transactions",
        id="begin_transaction",
        handler=begin_transaction,
        summary="Begin a transaction. Give its id as `Quiver-Transaction` with what belongs to it.",
        tag="transactions",
        body={JSON: NewTransaction},
        needs_body=False,
        replies={201: ("The transaction.", {JSON: TransactionView})},
        errors=(*BODY_ERRORS, InvalidRequest, InvalidSetting),
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/commit",
        id="commit_transaction",
        handler=commit_transaction,
        summary="Commit: everything is visible from now on. Repeating it gives the same answer.",
        tag="transactions",
        replies={200: ("It is committed.", {JSON: TransactionView})},
        errors=(MalformedBody, *_ENDS, TransactionInDoubt, TransactionTooLarge),
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/abort",
        id="abort_transaction",
        handler=abort_transaction,
        summary="Abort: nothing of it is ever visible, and what it acknowledged comes again. "
        "By its number, whoever has `admin` on the cluster may abort another's.",
        tag="transactions",
        replies={200: ("It is aborted.", {JSON: TransactionView})},
        errors=(MalformedBody, *_ENDS),
    ),
    Operation(
        method="GET",
        path=_PATH,
        id="describe_transaction",
        handler=describe_transaction,
        summary="Show what became of a transaction. It is known for an hour at least.",
        tag="transactions",
        replies={200: ("Its state.", {JSON: TransactionView})},
        errors=(TransactionNotFound,),
    ),
)
