"""The client's methods for mirrors: topics that a cluster copies from another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quiver.client.api.settings import duration_s, mirror_settings, setting_values
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import InvalidSetting
from quiver.model.mirror.settings import MirrorSettings
from quiver.model.units import Duration
from quiver.protocol import (
    AlterMirror,
    CreateMirror,
    DeleteMirror,
    DescribeMirror,
    ListMirrors,
    Mirror,
    MirrorInfo,
    Mirrors,
    PromotedTopic,
    PromoteTopics,
    TopicsPromoted,
)

_ANSWER_S = 30.0


class MirrorsApi:
    """The methods of an ``AsyncClient`` for mirrors. Most need ``admin:cluster:*``."""

    _cluster: Cluster

    async def create_mirror(
        self,
        /,
        name: str,
        source: str,
        topics: str | Sequence[str],
        *,
        token: str | None = None,
        **settings: Any,
    ) -> MirrorInfo:
        """Copy topics of another cluster from now on.

        ``source`` is the URL of that cluster and ``topics`` are names or patterns there. ``token`` is
        shown to the source. ``settings`` are those of ``MirrorSettings``, such as
        ``with_subscriptions``. The copies take no publishes until they are promoted.
        """
        given = {"source": source, "topics": [topics] if isinstance(topics, str) else list(topics)}
        request = CreateMirror(name=name, settings=mirror_settings({**given, **settings}))
        reply = await self._with_token(request, token)
        return expect(Mirror, reply).mirror

    async def alter_mirror(
        self, /, name: str, *, token: str | None = None, **changes: Any
    ) -> MirrorInfo:
        """Change settings of a mirror; ``paused=True`` pauses it."""
        request = AlterMirror(name=name, changes=setting_values(MirrorSettings, changes))
        reply = await self._with_token(request, token)
        return expect(Mirror, reply).mirror

    async def delete_mirror(self, name: str) -> None:
        """Copy no more. The copies stay, and take no publishes until they are promoted or deleted."""
        await self._cluster.call(DeleteMirror(name=name), repeatable=False)

    async def describe_mirror(self, name: str) -> MirrorInfo:
        """Return a mirror, its copies and how far each partition is. Needs ``consume:cluster:*``."""
        _, (reply, _) = await self._cluster.call(DescribeMirror(name=name), repeatable=True)
        return expect(Mirror, reply).mirror

    async def list_mirrors(self) -> list[MirrorInfo]:
        """Return all mirrors, sorted by name. Needs ``consume:cluster:*``."""
        _, (reply, _) = await self._cluster.call(ListMirrors(), repeatable=True)
        return expect(Mirrors, reply).mirrors

    async def promote_topics(
        self, topics: str | Sequence[str], *, fence: bool = True, timeout: Duration = "10s"
    ) -> list[PromotedTopic]:
        """Make copies writable, and let their subscriptions deliver.

        ``topics`` are names or patterns of copies. With ``fence``, the source is asked to stop each
        topic first. If it does within ``timeout``, everything that it has is copied before. If it does
        not, the copies go on with what they have.
        """
        request = PromoteTopics(
            topics=[topics] if isinstance(topics, str) else list(topics),
            fence=fence,
            wait_ms=round(1000 * duration_s("timeout", timeout, 0, 600)),
        )
        _, (reply, _) = await self._cluster.call(
            request, repeatable=False, timeout_s=request.wait_ms / 1000 + _ANSWER_S
        )
        return expect(TopicsPromoted, reply).topics

    async def _with_token(self, request: CreateMirror | AlterMirror, token: str | None) -> Any:
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidSetting(
                "the token is not valid: a token begins with 'qv_'", setting="token"
            )
        body = [] if token is None else [token.encode()]
        _, (reply, _) = await self._cluster.call(request, repeatable=False, body=body)
        return reply
