"""Transactions over HTTP."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quiver.client.transaction.reference import NAME_BYTES_MAX
from quiver.edge.http.schemas.values import DurationText
from quiver.model.transaction import TIMEOUT_S, TIMEOUT_S_MAX, TransactionState


class NewTransaction(Struct, kw_only=True, forbid_unknown_fields=True):
    """A transaction to begin."""

    name: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=NAME_BYTES_MAX,
                description="Whoever began under this name before cannot commit any more.",
            ),
        ]
        | None
    ) = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0, le=TIMEOUT_S_MAX)] | DurationText,
        Meta(
            description="How long it may be open, 15 minutes at most. Default: 60.",
            examples=[60],
        ),
    ] = TIMEOUT_S


class TransactionView(Struct, kw_only=True):
    id: str
    """Give it as `Quiver-Transaction` with publishes and acknowledgements."""
    state: TransactionState
