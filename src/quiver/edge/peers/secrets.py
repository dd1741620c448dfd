"""The secret that the nodes of a cluster know each other by, in the metadata store.

It can be replaced while they run. Each node follows the store and shows the new secret from then on. The
old one is accepted for a while, so that no node is left out.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from hmac import compare_digest

import msgspec
import structlog

from quiver.aio import cancel_and_wait
from quiver.cluster.metadata.secret import SECRET_BYTES, kept_secret
from quiver.cluster.metadata.secret_key import SecretKey
from quiver.cluster.metadata.store import Expect, MetadataStore, Put
from quiver.errors import MetadataError
from quiver.model.clock import Clock

SECRET = "secrets/peers"  # noqa: S105 - a key in the metadata store
BEFORE = "secrets/peers-before"
PREFIX = "peer_"
"""How the secret begins where it is shown. No token begins like this."""
OVERLAP_S = 600.0
"""How long the old secret is accepted beside the new one."""
_RETRY_S = 0.5

logger = structlog.get_logger()


class _Before(msgspec.Struct, frozen=True, array_like=True):
    secret: bytes
    until_us: int


class PeerSecrets:
    """``open`` it; ``start`` follows the store until ``close``."""

    def __init__(self, store: MetadataStore, clock: Clock, key: SecretKey) -> None:
        self.current = ""
        """What this node shows to others."""
        self._store = store
        self._clock = clock
        self._key = key
        self._before: _Before | None = None
        self._revision = 0
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        store: MetadataStore,
        clock: Clock,
        key: SecretKey = SecretKey(),  # noqa: B008 - frozen
    ) -> PeerSecrets:
        secrets = cls(store, clock, key)
        await kept_secret(store, SECRET)
        await secrets._load()
        return secrets

    def accepts(self, token: str) -> bool:
        """Whether a node shows this."""
        accepted = [self.current]
        if self._before is not None and self._clock.time_us() < self._before.until_us:
            accepted.append(self._shown(self._before.secret))
        return any(compare_digest(token.encode(), one.encode()) for one in accepted)

    async def rotate(self) -> None:
        """Replace the secret; ``MetadataConflict`` if another node does the same."""
        known = await self._store.get(SECRET)
        assert known is not None
        until_us = self._clock.time_us() + round(OVERLAP_S * 1_000_000)
        await self._store.commit(
            [Expect(SECRET, known.revision)],
            [
                Put(SECRET, os.urandom(SECRET_BYTES)),
                Put(BEFORE, _encode(_Before(known.value, until_us))),
            ],
        )
        await self._load()

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        await cancel_and_wait(self._following)

    async def _follow(self) -> None:
        while True:
            try:
                await self._load()
                async with aclosing(self._store.watch(SECRET, self._revision)) as batches:
                    async for _ in batches:
                        await self._load()
                return  # the store is closed
            except MetadataError as error:
                logger.warning("the secret of the nodes may be out of date", reason=error.message)
                await self._clock.sleep(_RETRY_S)

    async def _load(self) -> None:
        listing = await self._store.list(SECRET)
        found = {entry.key: entry.value for entry in listing.entries}
        before = found.get(BEFORE)
        self._before = None if before is None else _decoder.decode(before)
        self._revision = listing.revision
        self.current = self._shown(found[SECRET])

    def _shown(self, stored: bytes) -> str:
        return PREFIX + self._key.secret_of(stored).hex()


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[_Before] = msgspec.msgpack.Decoder(_Before)
