"""Tokens over HTTP. The secret of a token is in one answer only: the one that creates it."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.routes.topics import BODY_ERRORS
from quiver.edge.http.schemas.tokens import CreatedToken, NewToken, TokenList, TokenView
from quiver.errors import (
    InvalidRequest,
    InvalidSetting,
    MalformedBody,
    PermissionDenied,
    QuotaExceeded,
    TokenNotFound,
)
from quiver.model.message import datetime_of
from quiver.protocol import TokenInfo

_new = msgspec.json.Decoder(NewToken)


async def list_tokens(call: Call) -> Reply:
    found = await call.client.list_tokens()
    return Reply(200, encode(TokenList(tokens=[TokenView(**_fields(one)) for one in found])))


async def create_token(call: Call) -> Reply:
    given = await call.json(_new)
    info, token = await call.client.create_token(
        given.name, given.grants, expires=given.expires, certificate=given.certificate
    )
    created = CreatedToken(**_fields(info), token=token)
    return Reply(201, encode(created), headers=((b"location", f"/tokens/{info.id}".encode()),))


async def revoke_token(call: Call) -> Reply:
    call.require_no_body()
    await call.client.revoke_token(call.path["token"])
    return Reply(204)


def _fields(info: TokenInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "grants": info.grants,
        "created": datetime_of(info.created_us),
        "expires": None if info.expires_us is None else datetime_of(info.expires_us),
        "revoked": None if info.revoked_us is None else datetime_of(info.revoked_us),
        "certificate": info.is_certificate,
    }


OPERATIONS = (
    Operation(
        method="GET",
        path="/tokens",
        id="list_tokens",
        handler=list_tokens,
        summary="List tokens, including those that were revoked or expired recently.",
        tag="tokens",
        replies={200: ("All tokens.", {JSON: TokenList})},
        errors=(PermissionDenied,),
    ),
    Operation(
        method="POST",
        path="/tokens",
        id="create_token",
        handler=create_token,
        summary="Create a token. Only this reply has it: the node stores its hash.",
        tag="tokens",
        body={JSON: NewToken},
        replies={201: ("The new token.", {JSON: CreatedToken})},
        errors=(*BODY_ERRORS, InvalidRequest, InvalidSetting, PermissionDenied, QuotaExceeded),
    ),
    Operation(
        method="DELETE",
        path="/tokens/{token}",
        id="revoke_token",
        handler=revoke_token,
        summary="Revoke a token by its id. It stops working at once, on open connections too.",
        tag="tokens",
        replies={204: ("The token is revoked.", {})},
        errors=(MalformedBody, PermissionDenied, TokenNotFound),
    ),
)
