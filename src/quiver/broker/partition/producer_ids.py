"""Producer ids that are never reused, and epochs that fence a predecessor.

A named producer keeps its id. Each opening raises its epoch, so an earlier process of that name is
refused from then on. A name belongs to its owner: two owners never have one producer. Ids for unnamed
producers are reserved in blocks, so most openings need no write.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec

from quiver.cluster.metadata.store import Delete, Entry, Expect, MetadataStore, Put
from quiver.errors import InvalidSetting, MetadataConflict, ProducerFenced
from quiver.model.batch import UnstoredBatch
from quiver.model.ids import ProducerEpoch, ProducerId

PRODUCERS = "producers/"
NUMBERS = "numbers/producer"
_BLOCK = 1000
_ATTEMPTS = 100
_NAME = re.compile(r"[A-Za-z0-9_.:@/-]{1,200}")
_SEPARATOR = "|"
"""Neither names nor owners contain it. A slash may be in both."""


class ProducerIdentity(msgspec.Struct, frozen=True, array_like=True):
    producer_id: ProducerId
    epoch: ProducerEpoch


class ProducerIds:
    def __init__(self, store: MetadataStore) -> None:
        self.revision = 0
        """The store's, after the last producer with a name was opened here."""
        self._store = store
        self._next = self._end = 0
        self._turn = asyncio.Lock()
        self._epochs: dict[ProducerId, ProducerEpoch] = {}

    async def load(self) -> None:
        """Read who was opened last under each name."""
        for entry in (await self._store.list(PRODUCERS)).entries:
            self.apply(entry)

    def reload(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.apply(entry)

    def apply(self, change: Entry | Delete) -> None:
        """A producer was opened, on this node or another."""
        if isinstance(change, Entry) and change.key.startswith(PRODUCERS):
            self.note(_decoder.decode(change.value))

    def note(self, identity: ProducerIdentity) -> None:
        """Whoever had this id in an earlier epoch is fenced from now on."""
        known = self._epochs.get(identity.producer_id, identity.epoch)
        self._epochs[identity.producer_id] = max(known, identity.epoch)

    def require_current(self, batch: UnstoredBatch) -> None:
        """``ProducerFenced`` if another has opened the name of the batch's producer since."""
        epoch = self._epochs.get(batch.producer_id, 0)
        if batch.producer_epoch < epoch:
            raise ProducerFenced(epoch=epoch)

    async def open(self, name: str | None, owner: str = "") -> ProducerIdentity:
        """The identity of a producer that starts now; a name is its owner's own."""
        if name is None:
            return ProducerIdentity(await self._fresh_id(), ProducerEpoch(0))
        if not _NAME.fullmatch(name):
            raise InvalidSetting(
                f"{name[:80]!r} is not a producer name; "
                "use 1 to 200 letters, digits, '.', '_', ':', '@', '/' or '-'"
            )
        return await self._open_named(name, owner)

    async def _open_named(self, name: str, owner: str) -> ProducerIdentity:
        key, earlier_key = _keys(name, owner)
        fresh: ProducerId | None = None
        for _ in range(_ATTEMPTS):
            known = await self._store.get(key)
            earlier = None if known or earlier_key is None else await self._store.get(earlier_key)
            expected = [Expect(key, known.revision if known else 0)]
            writes: list[Put | Delete] = []
            if found := known or earlier:
                last = _decoder.decode(found.value)
                identity = ProducerIdentity(last.producer_id, ProducerEpoch(last.epoch + 1))
            else:
                fresh = fresh or await self._fresh_id()
                identity = ProducerIdentity(fresh, ProducerEpoch(0))
            if earlier is not None:  # moved, so that nobody else continues as this producer
                expected.append(Expect(earlier.key, earlier.revision))
                writes.append(Delete(earlier.key))
            try:
                revision = await self._store.commit(
                    expected, [*writes, Put(key, _encode(identity))]
                )
            except MetadataConflict:
                continue
            self.revision = max(self.revision, revision)
            self.note(identity)
            return identity
        raise MetadataConflict(f"too many clients open producer {name!r} at once; try again")

    async def _fresh_id(self) -> ProducerId:
        async with self._turn:
            if self._next == self._end:
                await self._reserve_block()
            self._next += 1
            return ProducerId(self._next)

    async def _reserve_block(self) -> None:
        for _ in range(_ATTEMPTS):
            counter = await self._store.get(NUMBERS)
            first = int(counter.value) if counter else 0
            try:
                await self._store.commit(
                    [Expect(NUMBERS, counter.revision if counter else 0)],
                    [Put(NUMBERS, str(first + _BLOCK).encode())],
                )
            except MetadataConflict:
                continue
            self._next, self._end = first, first + _BLOCK
            return
        raise MetadataConflict(f"{NUMBERS} changed {_ATTEMPTS} times in a row")


def _keys(name: str, owner: str) -> tuple[str, str | None]:
    """The key of a name, and the key that earlier versions had for it, if that was another.

    They put a slash in between. That is kept where it is the only one, so that nodes of both versions
    agree while a cluster is upgraded.
    """
    if not owner:
        return PRODUCERS + name, None
    joined = f"{PRODUCERS}{owner}/{name}"
    if "/" not in owner and "/" not in name:
        return joined, None
    return f"{PRODUCERS}{owner}{_SEPARATOR}{name}", joined


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[ProducerIdentity] = msgspec.msgpack.Decoder(ProducerIdentity)
