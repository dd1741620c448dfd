"""Tokens from the client's side: making, listing and revoking them, with a token that may."""

from __future__ import annotations

from collections.abc import Sequence

from quiver.client.cluster import Cluster, expect
from quiver.model.units import Duration, seconds
from quiver.model.wire import (
    CreateToken,
    ListTokens,
    RevokeToken,
    TokenCreated,
    TokenInfo,
    Tokens,
)


class Administering:
    """The part of an ``AsyncClient`` that is about tokens. All of it needs ``admin:*``."""

    _cluster: Cluster

    async def create_token(
        self,
        name: str,
        grants: Sequence[str],
        *,
        expires: Duration | None = None,
        certificate: bool = False,
    ) -> tuple[TokenInfo, str | None]:
        """Make a token for ``name``: what is known of it, and the token, which is not shown again.

        ``grants`` are written ``publish:orders.*`` or ``consume:queue:emails``. With ``certificate``
        there is no token: client certificates of that name have the grants.
        """
        request = CreateToken(
            name=name,
            grants=list(grants),
            expires_s=None if expires is None else seconds(expires),
            is_certificate=certificate,
        )
        _, (reply, _) = await self._cluster.call(request, repeatable=False)
        created = expect(TokenCreated, reply)
        return created.info, created.token

    async def list_tokens(self) -> list[TokenInfo]:
        """Every token, also those that were revoked or expired lately."""
        _, (reply, _) = await self._cluster.call(ListTokens(), repeatable=True)
        return expect(Tokens, reply).tokens

    async def revoke_token(self, token_id: str) -> None:
        """From now on the token counts no more, on every connection."""
        await self._cluster.call(RevokeToken(token_id=token_id), repeatable=True)
