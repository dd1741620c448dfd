"""The calls that administrators make about tokens."""

from __future__ import annotations

from quiver import protocol
from quiver.edge.auth.call_permissions import cluster_admin
from quiver.edge.calls.call import Call
from quiver.edge.calls.context import Answer, Context


async def create(context: Context, request: protocol.CreateToken, _: memoryview) -> Answer:
    info, text = await context.services.authority.tokens.create(
        request.name,
        request.grants,
        expires_s=request.expires_s,
        is_certificate=request.is_certificate,
    )
    return protocol.TokenCreated(info=info, token=text), ()


async def list_all(context: Context, _request: protocol.ListTokens, _: memoryview) -> Answer:
    return protocol.Tokens(tokens=context.services.authority.tokens.list()), ()


async def revoke(context: Context, request: protocol.RevokeToken, _: memoryview) -> Answer:
    await context.services.authority.tokens.revoke(request.token_id)
    return protocol.Done(), ()


CALLS = (
    Call(
        request=protocol.CreateToken,
        handler=create,
        needs=cluster_admin,
        is_audited=True,
        is_for_peers=False,
    ),
    Call(request=protocol.ListTokens, handler=list_all, needs=cluster_admin, is_for_peers=False),
    Call(
        request=protocol.RevokeToken,
        handler=revoke,
        needs=cluster_admin,
        is_audited=True,
        is_for_peers=False,
    ),
)
