"""Tokens over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from quiver.edge.http.schemas.values import Delay


class NewToken(Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to create."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=100,
            description="The principal. Several tokens may have the same one.",
        ),
    ]
    grants: Annotated[
        list[Annotated[str, Meta(max_length=300)]],
        Meta(
            min_length=1,
            max_length=100,
            description="What it may do, such as `publish:orders.*` or `consume:queue:emails`.",
        ),
    ]
    expires: (
        Annotated[Delay, Meta(description="Time until it expires. Null: it does not.")] | None
    ) = None
    certificate: Annotated[
        bool,
        Meta(
            description="Create no token: client certificates of this name get the grants. "
            "Default: false."
        ),
    ] = False


class TokenView(Struct, kw_only=True):
    id: str
    name: str
    grants: list[str]
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    certificate: bool = False


class CreatedToken(TokenView, kw_only=True):
    token: str | None = None
    """Keep it: it is not shown again. Null for a certificate."""


class TokenList(Struct, kw_only=True):
    tokens: list[TokenView]
