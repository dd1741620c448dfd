"""Secrets that all nodes of a cluster share, each made once and kept in the metadata store."""

from __future__ import annotations

import contextlib
import os

from quiver.cluster.metadata.store import Expect, MetadataStore, Put
from quiver.errors import MetadataConflict

SECRET_BYTES = 32


async def kept_secret(store: MetadataStore, key: str) -> bytes:
    """The secret under this key."""
    known = await store.get(key)
    if known is None:
        with contextlib.suppress(MetadataConflict):  # another node was quicker
            await store.commit([Expect(key, 0)], [Put(key, os.urandom(SECRET_BYTES))])
        known = await store.get(key)
        assert known is not None
    return known.value
