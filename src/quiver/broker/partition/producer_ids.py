"""Producer ids that are never reused, and epochs that fence a predecessor.

A named producer keeps its id. Each opening raises its epoch, so an earlier process of that name is
refused from then on. A name belongs to its owner: two owners never have one producer. Ids for unnamed
producers are reserved in blocks, so most openings need no write.

An owner has a bounded number of names. Where it has no room for another, its names that were not used
for a month are forgotten. A name counts as used when it is opened, and on each day that it publishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence

import msgspec

from quiver.aio import TaskSet
from quiver.cluster.metadata.store import Delete, Entry, Expect, MetadataStore, Put
from quiver.errors import (
    InvalidSetting,
    MetadataConflict,
    MetadataError,
    ProducerFenced,
    QuotaExceeded,
)
from quiver.model.batch import UnstoredBatch
from quiver.model.clock import Clock, SystemClock
from quiver.model.ids import ProducerEpoch, ProducerId

PRODUCERS = "producers/"
NUMBERS = "numbers/producer"
_BLOCK = 1000
_ATTEMPTS = 100
NAMES_MAX = 10_000
_DAY_US = 86_400 * 1_000_000
_UNUSED_US = 30 * _DAY_US
_FORGOTTEN_MAX = 100
_NAME = re.compile(r"[A-Za-z0-9_.:@/-]{1,200}")
_SEPARATOR = "|"
"""Neither names nor owners contain it. A slash may be in both."""


class ProducerIdentity(msgspec.Struct, frozen=True, array_like=True):
    producer_id: ProducerId
    epoch: ProducerEpoch


class ProducerRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the metadata store holds of a name."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    used_us: int = 0
    owner: str = ""

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)


class ProducerIds:
    """In memory, names are as they are stored: with their owner."""

    def __init__(self, store: MetadataStore, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._records: dict[str, ProducerRecord] = {}
        self._names: dict[ProducerId, str] = {}
        self._by_owner: dict[str, set[str]] = {}
        self._recording = TaskSet()
        self._used: set[str] = set()
        """Names that have published today, which their records do not say yet."""
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
        found = {entry.key for entry in entries if entry.key.startswith(PRODUCERS)}
        for name in [name for name in self._records if PRODUCERS + name not in found]:
            self._forget(name)
        for entry in entries:
            self.apply(entry)

    def apply(self, change: Entry | Delete) -> None:
        """A producer was opened or forgotten, on this node or another."""
        if not change.key.startswith(PRODUCERS):
            return
        name = change.key.removeprefix(PRODUCERS)
        if isinstance(change, Entry):
            self._keep(name, _decoder.decode(change.value))
        else:
            self._forget(name)

    def _keep(self, name: str, record: ProducerRecord) -> None:
        known = self._records.get(name)
        if known is not None and known.producer_id != record.producer_id:
            self._forget(name)
        elif known is not None:
            if known.epoch > record.epoch:
                return  # an older change, told late
            self._by_owner[known.owner].discard(name)
        self._records[name] = record
        self._names[record.producer_id] = name
        self._by_owner.setdefault(record.owner, set()).add(name)
        self.note(record.identity)

    def _forget(self, name: str) -> None:
        record = self._records.pop(name, None)
        if record is not None:
            self._names.pop(record.producer_id, None)
            self._epochs.pop(record.producer_id, None)
            self._by_owner[record.owner].discard(name)
            self._used.discard(name)

    def note(self, identity: ProducerIdentity) -> None:
        """Whoever had this id in an earlier epoch is fenced from now on."""
        known = self._epochs.get(identity.producer_id, identity.epoch)
        self._epochs[identity.producer_id] = max(known, identity.epoch)

    def require_current(self, batch: UnstoredBatch) -> None:
        """``ProducerFenced`` if another has opened the name of the batch's producer since."""
        epoch = self._epochs.get(batch.producer_id, 0)
        if batch.producer_epoch < epoch:
            raise ProducerFenced(epoch=epoch)
        name = self._names.get(batch.producer_id)
        if name is not None and self._records[name].used_us + _DAY_US < self._now_us():
            self._used.add(name)
            if not self._recording:
                self._recording.start(self._record_use())

    async def open(
        self, name: str | None, *, owner: str = "", names_max: int = NAMES_MAX
    ) -> ProducerIdentity:
        """The identity of a producer that starts now; a name is its owner's own.

        An owner has ``names_max`` names; 0: any number.
        """
        if name is None:
            return ProducerIdentity(await self.fresh(), ProducerEpoch(0))
        if not _NAME.fullmatch(name):
            raise InvalidSetting(
                f"{name[:80]!r} is not a producer name; "
                "use 1 to 200 letters, digits, '.', '_', ':', '@', '/' or '-'"
            )
        return await self._open_named(*_stored_names(name, owner), owner, names_max)

    async def _open_named(
        self, name: str, earlier_name: str | None, owner: str, names_max: int
    ) -> ProducerIdentity:
        if names_max and name not in self._records and earlier_name not in self._records:
            await self._make_room(owner, names_max)
        fresh: ProducerId | None = None
        for _ in range(_ATTEMPTS):
            known = await self._store.get(PRODUCERS + name)
            earlier = None
            if known is None and earlier_name is not None:
                earlier = await self._store.get(PRODUCERS + earlier_name)
            expected = [Expect(PRODUCERS + name, known.revision if known else 0)]
            writes: list[Put | Delete] = []
            if found := known or earlier:
                last = _decoder.decode(found.value)
                identity = ProducerIdentity(last.producer_id, ProducerEpoch(last.epoch + 1))
            else:
                fresh = fresh or await self.fresh()
                identity = ProducerIdentity(fresh, ProducerEpoch(0))
            if earlier is not None:  # moved, so that nobody else continues as this producer
                expected.append(Expect(earlier.key, earlier.revision))
                writes.append(Delete(earlier.key))
            record = ProducerRecord(identity.producer_id, identity.epoch, self._now_us(), owner)
            try:
                revision = await self._store.commit(
                    expected, [*writes, Put(PRODUCERS + name, _encode(record))]
                )
            except MetadataConflict:
                continue
            self.revision = max(self.revision, revision)
            if earlier is not None:
                self._forget(earlier.key.removeprefix(PRODUCERS))
            self._keep(name, record)
            return identity
        raise MetadataConflict(f"too many clients open producer {name!r} at once; try again")

    async def _make_room(self, owner: str, names_max: int) -> None:
        """``QuotaExceeded`` if the owner has as many names as it may, and has used them all lately."""
        names = self._by_owner.get(owner, set())
        if len(names) < names_max:
            return
        unused_us = self._now_us() - _UNUSED_US
        unused = [name for name in names if self._records[name].used_us < unused_us]
        for name in sorted(unused, key=lambda one: self._records[one].used_us)[:_FORGOTTEN_MAX]:
            await self._delete(name)
        if len(names) >= names_max:
            raise QuotaExceeded(
                f"you have {len(names):,} producer names, the most allowed: use one of them again, or "
                "a producer without a name",
                quota="producers",
            )

    async def _delete(self, name: str) -> None:
        known = await self._store.get(PRODUCERS + name)
        if known is None:
            self._forget(name)
        elif _decoder.decode(known.value) == self._records.get(name):
            with contextlib.suppress(MetadataConflict):  # it was opened in this moment
                await self._store.commit([Expect(known.key, known.revision)], [Delete(known.key)])
                self._forget(name)

    async def _record_use(self) -> None:
        """Write down which names have published today."""
        while self._used:
            name = self._used.pop()
            # What is not written now is tried again with the next batch of that name.
            with contextlib.suppress(MetadataError):
                await self._write_use(name)

    async def _write_use(self, name: str) -> None:
        known = await self._store.get(PRODUCERS + name)
        if known is not None:
            record = msgspec.structs.replace(_decoder.decode(known.value), used_us=self._now_us())
            await self._store.commit(
                [Expect(known.key, known.revision)], [Put(known.key, _encode(record))]
            )
            self._keep(name, record)

    async def close(self) -> None:
        await self._recording.wait()

    def _now_us(self) -> int:
        return self._clock.time_us()

    async def fresh(self, modulus: int = 1, remainder: int = 0) -> ProducerId:
        """An id that nobody has; one that leaves this remainder, if that is asked for."""
        async with self._turn:
            while True:
                if self._next == self._end:
                    await self._reserve_block()
                self._next += 1
                if self._next % modulus == remainder:
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


def _stored_names(name: str, owner: str) -> tuple[str, str | None]:
    """What a name is stored as, and what earlier versions stored it as, if that was something else.

    They put a slash in between. That is kept where it is the only one, so that nodes of both versions
    agree while a cluster is upgraded.
    """
    if not owner:
        return name, None
    joined = f"{owner}/{name}"
    if "/" not in owner and "/" not in name:
        return joined, None
    return f"{owner}{_SEPARATOR}{name}", joined


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[ProducerRecord] = msgspec.msgpack.Decoder(ProducerRecord)
