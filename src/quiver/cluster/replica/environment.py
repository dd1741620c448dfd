"""What a node of a cluster is given from outside: store, network, disk, time and threads.

The same code runs in a real node and in the simulator; only these differ.
"""

from __future__ import annotations

import msgspec

from quiver.cluster.metadata.store import MetadataStore
from quiver.cluster.replica.network import Network
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.log_context import LogContext
from quiver.model.clock import Clock


class LocalEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has of its own."""

    disk: Disk
    clock: Clock
    run_blocking: RunBlocking
    """Runs disk work off the event loop."""
    logs: LogContext = msgspec.field(default_factory=LogContext)
    """What all logs of the node share."""


class ClusterEnvironment(LocalEnvironment, frozen=True, kw_only=True):
    store: MetadataStore
    network: Network
