"""The metadata store that a node's settings ask for."""

from __future__ import annotations

from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import MetadataStore
from quiver.config import Metadata
from quiver.model.clock import Clock

SQLITE_FILE = "metadata.db"


async def open_store(
    settings: Metadata, folder: str, clock: Clock, *, shared: bool = False
) -> MetadataStore:
    """Open it; ``folder`` is where a node without etcd keeps its own. ``shared``: so that other
    processes of this machine can open it too."""
    if shared:
        from quiver.cluster.metadata.shared_sqlite import SharedSqliteStore  # noqa: PLC0415 - as below

        return await SharedSqliteStore.open(f"{folder}/{SQLITE_FILE}", clock)
    if settings.store == "sqlite":
        return await SqliteStore.open(f"{folder}/{SQLITE_FILE}", clock)
    # An HTTP client is loaded only where it is used: that takes a fifth of a node's start.
    from quiver.cluster.metadata.etcd.open import open_etcd  # noqa: PLC0415

    return await open_etcd(settings, clock)
