"""The calls that administrators make about tokens."""

from __future__ import annotations

from quiver import protocol
from quiver.edge.auth.tokens import TokenStore


async def manage_tokens(
    tokens: TokenStore, request: protocol.CreateToken | protocol.ListTokens | protocol.RevokeToken
) -> protocol.AnyReply:
    """Make, list or revoke tokens."""
    match request:
        case protocol.CreateToken():
            info, text = await tokens.create(
                request.name,
                request.grants,
                expires_s=request.expires_s,
                is_certificate=request.is_certificate,
            )
            return protocol.TokenCreated(info=info, token=text)
        case protocol.RevokeToken():
            await tokens.revoke(request.token_id)
            return protocol.Done()
        case _:
            return protocol.Tokens(tokens=tokens.list())
