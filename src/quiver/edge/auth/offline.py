"""The tokens of a node that is not running, read and written in its data folder.

Use it for the first token, or if all others are lost. It needs access to the folder.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.data_folder import take_folder
from quiver.log.disk.real_disk import RealDisk
from quiver.model.clock import SystemClock
from quiver.model.units import Duration, seconds
from quiver.protocol import TokenInfo

METADATA = "metadata.db"


class FolderTokens:
    """What a client says about tokens, said of a folder."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens

    async def create_token(
        self,
        name: str,
        grants: Sequence[str],
        *,
        expires: Duration | None = None,
        certificate: bool = False,
    ) -> tuple[TokenInfo, str | None]:
        expires_s = None if expires is None else seconds(expires)
        return await self._tokens.create(
            name, list(grants), expires_s=expires_s, is_certificate=certificate
        )

    async def list_tokens(self) -> list[TokenInfo]:
        return self._tokens.list()

    async def revoke_token(self, token_id: str) -> None:
        await self._tokens.revoke(token_id)


@asynccontextmanager
async def tokens_in(folder: str) -> AsyncIterator[FolderTokens]:
    """The tokens of a data folder, made if it is missing; ``FolderInUse`` while a node has it."""
    clock = SystemClock()
    lock = take_folder(RealDisk(), folder)
    try:
        store = await SqliteStore.open(os.path.join(folder, METADATA), clock)
        try:
            tokens = TokenStore(store, clock)
            await tokens.load()
            yield FolderTokens(tokens)
        finally:
            await store.close()
    finally:
        lock.release()
