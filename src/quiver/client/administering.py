"""A node from the client's side: its tokens, its figures and its alerts."""

from __future__ import annotations

from collections.abc import Sequence

from quiver.client.cluster import Cluster, expect
from quiver.model.units import Duration, seconds
from quiver.model.wire import (
    Alerts,
    CreateToken,
    ListAlerts,
    ListTokens,
    Metrics,
    ReadMetrics,
    RevokeToken,
    TokenCreated,
    TokenInfo,
    Tokens,
)


class Administering:
    """The part of an ``AsyncClient`` that is about tokens, which need ``admin:*``, and about how the
    node is."""

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

    async def metrics(self) -> str:
        """The node's figures, as text that Prometheus reads. Needs ``consume:cluster:*``."""
        _, (reply, body) = await self._cluster.call(ReadMetrics(), repeatable=True)
        expect(Metrics, reply)
        return bytes(body).decode()

    async def alerts(self) -> Alerts:
        """The alerts that fire now, and those that cleared lately."""
        _, (reply, _) = await self._cluster.call(ListAlerts(), repeatable=True)
        return expect(Alerts, reply)
