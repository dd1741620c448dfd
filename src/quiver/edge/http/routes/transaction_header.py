"""The header that makes a request part of a transaction."""

from __future__ import annotations

from quiver.client import AsyncClient
from quiver.client.transaction.joined import JoinedTransaction
from quiver.client.transaction.reference import reference_in
from quiver.edge.http.call import TRANSACTION, Call

_FIELD = TRANSACTION.lower().encode()
TRANSACTION_HEADERS = {
    TRANSACTION: "The id of a transaction: the request takes effect when that is committed."
}


def client_of(call: Call) -> AsyncClient | JoinedTransaction:
    """Who carries out the request: the caller's client, or the transaction that it belongs to."""
    if _FIELD not in call.fields:
        return call.client
    return JoinedTransaction(call.client.cluster, reference_in(call.header(_FIELD).strip()))
