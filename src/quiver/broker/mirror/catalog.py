"""The catalog of mirrors in the metadata store: their settings, and the tokens for their sources."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.broker.topics.registry import RecordKind, Registry, changed_settings
from quiver.cluster.metadata.secret import kept_secret
from quiver.cluster.metadata.store import MetadataStore
from quiver.errors import MirrorExists, MirrorNotFound
from quiver.model.clock import Clock
from quiver.model.mirror.settings import MirrorSettings
from quiver.model.topic import checked_name

CLUSTER_ID = "cluster-id"
_ID_BYTES = 8
_KIND = RecordKind(
    noun="mirror",
    prefix="mirrors/",
    numbers="numbers/mirror",
    not_found=MirrorNotFound,
    exists=MirrorExists,
)


async def cluster_id(store: MetadataStore) -> str:
    """The id of this cluster: made once, and kept in the metadata store."""
    return (await kept_secret(store, CLUSTER_ID))[:_ID_BYTES].hex()


class MirrorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store holds of a mirror."""

    name: str
    number: int
    settings: MirrorSettings
    created_us: int
    token: str = ""
    """What the nodes show the source; empty: nothing."""

    def __repr__(self) -> str:
        return f"MirrorRecord({self.name!r})"


class MirrorCatalog:
    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._clock = clock
        self.registry = self._registry = Registry(store, _KIND, MirrorRecord)
        self.load = self._registry.load
        self.get = self._registry.get
        self.has = self._registry.has
        self.all = self._registry.all
        self.delete = self._registry.delete

    async def create(self, name: str, settings: MirrorSettings, token: str) -> MirrorRecord:
        """Add a mirror; ``MirrorExists`` if there is one of this name."""
        checked_name(name, "mirror")
        return await self._registry.create(
            name,
            lambda number: MirrorRecord(
                name=name,
                number=number,
                settings=settings,
                created_us=self._clock.time_us(),
                token=token,
            ),
        )

    async def alter(self, name: str, changes: dict[str, Any], token: str) -> MirrorRecord:
        """Change some of a mirror's settings; without a ``token`` it keeps the one it has."""

        def altered(record: MirrorRecord) -> MirrorRecord:
            settings = changed_settings(record.settings, changes)
            return msgspec.structs.replace(record, settings=settings, token=token or record.token)

        return await self._registry.change(name, altered)
