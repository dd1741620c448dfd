"""Refuses mirrors that would copy messages back to where they come from."""

from __future__ import annotations

import asyncio
import contextlib

from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.link import SourceLink
from quiver.errors import MirrorLoop, QuiverError
from quiver.model.mirror.settings import MirrorSettings
from quiver.protocol import DescribeSource, SourceDescribed

_TIMEOUT_S = 3.0


async def require_no_loop(
    settings: MirrorSettings, token: str, environment: MirrorEnvironment
) -> None:
    """``MirrorLoop`` if a topic that is named, or every topic, comes from this cluster.

    A source that does not answer now is found out when it does: such topics are never copied.
    """
    clock, cluster = environment.clock, environment.cluster
    link = SourceLink(environment.reach(settings.source, token, clock), None, clock)
    source: SourceDescribed | None = None
    try:
        with contextlib.suppress(QuiverError, OSError):
            async with asyncio.timeout(_TIMEOUT_S):
                source = await link.call(SourceDescribed, DescribeSource(topics=settings.topics))
    finally:
        await link.close()
    if source is None:
        return
    if source.cluster == cluster:
        raise MirrorLoop(
            f"{settings.source} is this cluster: a cluster does not copy its own topics"
        )
    for one in source.topics:
        if (
            one.origin is not None
            and one.name in settings.topics
            and cluster in one.origin.clusters
        ):
            raise MirrorLoop(
                f"topic {one.name!r} at the source is a copy of a topic of this cluster",
                topic=one.name,
            )
