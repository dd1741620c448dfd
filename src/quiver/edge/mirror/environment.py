"""What mirrors at work are given by their node."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from quiver.broker.mirror.mirrors import Mirrors
from quiver.broker.mirror.source import unpacked
from quiver.client.transport.cluster import Cluster
from quiver.edge.mirror.reach import reach_source
from quiver.log.disk.disk_threads import RunBlocking
from quiver.model.clock import Clock
from quiver.model.envelope import entries_in
from quiver.protocol import LogFetched


class MirrorEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    mirrors: Mirrors
    cluster: str
    """The id of this cluster."""
    clock: Clock
    run_checks: RunBlocking
    """Runs work that only takes a while."""
    decides: Callable[[], bool] = lambda: True
    """Whether this node creates and alters what all nodes of the cluster share."""
    reach: Callable[[str, str, Clock], Cluster] = reach_source
    """The cluster at a URL, for who has this token."""
    chance: Callable[[], Random] = Random
    """What pauses are drawn from."""

    def first_offset(self, reply: LogFetched, body: memoryview) -> int:
        """Where the first entry of an answer begins; where the log begins if it has none."""
        entries = entries_in(unpacked(body, reply.compression, reply.size))
        return entries[0].base_offset if entries else reply.start_offset
