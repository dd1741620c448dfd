"""Tokens and their grants."""

from __future__ import annotations

import msgspec

from quiver.protocol.base import Reply, Request


class TokenInfo(msgspec.Struct, kw_only=True):
    """The description of a token. The token itself is shown only when it is created."""

    id: str
    name: str
    """The principal. Several tokens may have the same one."""
    grants: list[str]
    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    is_certificate: bool = False
    """There is no token: client certificates of this name have the grants."""


class CreateToken(Request, tag="create_token"):
    name: str
    grants: list[str]
    """As in ``publish:orders.*``, ``consume:queue:emails``, ``admin:*``."""
    expires_s: float | None = None
    """After how long it counts no more; never if not given."""
    is_certificate: bool = False
    """Make no secret: let client certificates of this name in."""


class TokenCreated(Reply, tag="token_created"):
    info: TokenInfo
    token: str | None = None
    """Keep it: it is not stored and not shown again. Nothing for a certificate."""

    def __repr__(self) -> str:
        return f"TokenCreated(id={self.id}, info={self.info!r})"


class ListTokens(Request, tag="list_tokens"):
    pass


class Tokens(Reply, tag="tokens"):
    tokens: list[TokenInfo]


class RevokeToken(Request, tag="revoke_token"):
    token_id: str
