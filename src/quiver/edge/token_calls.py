"""The calls that administrators make about tokens."""

from __future__ import annotations

from quiver.edge.access.tokens import TokenStore
from quiver.model import wire


async def manage_tokens(
    tokens: TokenStore, request: wire.CreateToken | wire.ListTokens | wire.RevokeToken
) -> wire.AnyReply:
    """Make, list or revoke tokens."""
    match request:
        case wire.CreateToken():
            info, text = await tokens.create(
                request.name,
                request.grants,
                expires_s=request.expires_s,
                is_certificate=request.is_certificate,
            )
            return wire.TokenCreated(info=info, token=text)
        case wire.RevokeToken():
            await tokens.revoke(request.token_id)
            return wire.Done()
        case _:
            return wire.Tokens(tokens=tokens.list())
