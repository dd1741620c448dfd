"""Named, numbered records in the metadata store: topics, subscriptions.

The store is the truth and this is its copy in memory. A change that is cut off in the middle would
leave the two apart, so callers run each change to its end. A number is never reused, so leftovers of a
deleted record are never taken for those of another with the same name.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from quiver.broker.topics.unknown_fields import encoded, unknown_fields
from quiver.cluster.metadata.store import MAX_COMMIT_KEYS, Delete, Entry, Expect, MetadataStore, Put
from quiver.errors import InvalidSetting, MetadataConflict, MetadataError, QuiverError
from quiver.model.setting import require_known

_ATTEMPTS = 100
_ALSO_MAX = MAX_COMMIT_KEYS - 8
"""How many changes beside its own a record's commit has room for."""


class Numbered(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...


R = TypeVar("R", bound=Numbered)
S = TypeVar("S", bound=msgspec.Struct)
Also = Callable[[R, R], Awaitable[Sequence[tuple[Expect, Put | None]]]]
"""What else a change of a record needs, by what it was and what it is to be: each an expectation, and
what is written if it holds."""


OnChange = Callable[[R | None, R | None], None]
"""Called with what there was and what there is now."""


def ignore_change(_old: object, _new: object) -> None:
    """Nobody needs to know."""


async def nothing_else(_old: object, _new: object) -> Sequence[tuple[Expect, Put | None]]:
    """A change concerns its record alone."""
    return ()


class RecordKind(msgspec.Struct, frozen=True, kw_only=True):
    """What is registered, where, and the errors for it."""

    noun: str
    title: str = ""
    """What errors call it; by default the noun."""
    prefix: str
    numbers: str
    not_found: type[QuiverError]
    exists: type[QuiverError]


class Registry(Generic[R]):
    """``version`` grows with every change.

    ``on_change`` is called when another node has made a change, ``index`` at every change.
    """

    def __init__(
        self,
        store: MetadataStore,
        kind: RecordKind,
        record: type[R],
        on_change: OnChange[R] = ignore_change,
        index: OnChange[R] = ignore_change,
    ) -> None:
        self.version = 0
        self.revision = 0
        """The store's, after the last change that is known here."""
        self._store = store
        self._kind = kind
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(record)
        self._records: dict[str, R] = {}
        self._by_number: dict[int, R] = {}
        self._revisions: dict[str, int] = {}
        self._unknown: dict[str, dict[str, Any]] = {}
        """Fields of records that only a newer Quiver knows, where there are any."""
        self._dropped: dict[str, int] = {}
        """Names that were removed here, and when, until the store's own word of it has come."""
        self._digest = (-1, "")
        self._turn = asyncio.Lock()
        self._on_change = on_change
        self._index = index

    async def load(self) -> None:
        """Read every record from the store."""
        for entry in (await self._store.list(self._kind.prefix)).entries:
            self._take_in(entry)

    @property
    def digest(self) -> str:
        """Tells records apart from others: nodes that know the same ones have the same digest."""
        if self._digest[0] != self.version:
            revisions = array("q", sorted(self._revisions.values())).tobytes()
            self._digest = self.version, blake2b(revisions, digest_size=8).hexdigest()
        return self._digest[1]

    # ------------------------------------------------------------------ what other nodes do

    def reload(self, entries: Sequence[Entry], revision: int) -> None:
        """Everything that is in the store at ``revision``."""
        found = {entry.key: entry for entry in entries if entry.key.startswith(self._kind.prefix)}
        gone = [name for name in self._records if self._key(name) not in found]
        for entry in found.values():
            self.apply(entry, revision)
        for name in gone:
            self.apply(Delete(self._key(name)), revision)

    def apply(self, change: Entry | Delete, revision: int) -> None:
        """One change in the store, this node's own or another's."""
        if not change.key.startswith(self._kind.prefix):
            return
        name = change.key.removeprefix(self._kind.prefix)
        known = max(self._revisions.get(name, 0), self._dropped.get(name, 0))
        if self._dropped.get(name, revision + 1) <= revision:
            del self._dropped[name]
        if (change.revision if isinstance(change, Entry) else revision) <= known:
            return
        old = self._records.get(name)
        if isinstance(change, Entry):
            self._take_in(change)
        elif old is not None:
            self._forget(name)
        self._on_change(old, self._records.get(name))

    def get(self, name: str) -> R:
        record = self._records.get(name)
        if record is None:
            noun = self._kind.noun
            title = self._kind.title or noun
            raise self._kind.not_found(
                f"there is no {title} named {name[:200]!r}", **{noun: name[:200]}
            )
        return record

    def has(self, name: str) -> bool:
        return name in self._records

    def numbered(self, number: int) -> R | None:
        """The one with this number, if it is still there."""
        return self._by_number.get(number)

    def named(self, names: Iterable[str]) -> list[R]:
        """Those of these names that are there."""
        return [self._records[name] for name in names if name in self._records]

    def all(self) -> list[R]:
        return list(self._records.values())

    def holds(self, record: R) -> bool:
        """Whether this very thing is still there, by whatever settings."""
        known = self._records.get(record.name)
        return known is not None and known.number == record.number

    async def create(
        self,
        name: str,
        make: Callable[[int], R],
        also: Callable[[R], Sequence[Put]] = lambda _: (),
        *,
        wanted: int = 0,
    ) -> R:
        """Add what ``make`` gives for a new number, unless there is one of this name.

        What ``also`` gives is written before it is, as much as possible in the same step. The number
        is the ``wanted`` one, unless that one or a later one was given out before.
        """
        async with self._turn:
            if name in self._records:
                raise self._exists(name)
            for _ in range(_ATTEMPTS):
                counter = await self._store.get(self._kind.numbers)
                number = max((int(counter.value) if counter else 0) + 1, wanted)
                record = make(number)
                expects = [
                    Expect(self._key(name), 0),
                    Expect(self._kind.numbers, counter.revision if counter else 0),
                ]
                others = also(record)
                for at in range(0, len(others) - _ALSO_MAX, _ALSO_MAX):
                    await self._store.commit([], others[at : at + _ALSO_MAX])
                changes = [
                    Put(self._key(name), encoded(record, {})),
                    Put(self._kind.numbers, str(number).encode()),
                    *others[-(len(others) % _ALSO_MAX or _ALSO_MAX) :],
                ]
                try:
                    revision = await self._commit(name, expects, changes)
                except MetadataConflict as conflict:
                    if conflict.details.get("key") == self._key(name):
                        raise self._exists(name) from None
                    continue
                self._keep(record, revision)
                return record
            raise MetadataConflict(f"{self._kind.numbers} changed {_ATTEMPTS} times in a row")

    async def change(
        self,
        name: str,
        change: Callable[[R], R],
        also: Also[R] = nothing_else,
    ) -> R:
        """Replace a record by what ``change`` makes of it, also when others change it meanwhile.

        What ``also`` gives for the old and the new is written before it is, as much as possible in
        the same step.
        """
        async with self._turn:
            for _ in range(_ATTEMPTS):
                old = self.get(name)
                changed = change(old)
                others = await also(old, changed)
                try:
                    for at in range(0, len(others) - _ALSO_MAX, _ALSO_MAX):
                        part = others[at : at + _ALSO_MAX]
                        await self._store.commit([e for e, _ in part], _puts(part))
                    last = others[-(len(others) % _ALSO_MAX or _ALSO_MAX) :]
                    revision = await self._commit(
                        name,
                        [Expect(self._key(name), self._revisions[name]), *(e for e, _ in last)],
                        [Put(self._key(name), self._encoded(changed)), *_puts(last)],
                    )
                except MetadataConflict:
                    continue  # what is in the store now is known, and is changed
                self._keep(changed, revision)
                return changed
            raise MetadataConflict(f"{self._key(name)} changed {_ATTEMPTS} times in a row")

    async def delete(
        self, name: str, also: Callable[[R], Sequence[Put | Delete]] = lambda _: ()
    ) -> R:
        """Remove a record, and do in the same step whatever ``also`` gives, as much as fits."""
        async with self._turn:
            for _ in range(_ATTEMPTS):
                record = self.get(name)
                others = also(record)
                try:
                    revision = await self._commit(
                        name,
                        [Expect(self._key(name), self._revisions[name])],
                        [Delete(self._key(name)), *others[:_ALSO_MAX]],
                    )
                except MetadataConflict:
                    continue  # another has changed it; it is deleted as it is now
                self._drop(name, revision)
                for at in range(_ALSO_MAX, len(others), _ALSO_MAX):
                    await self._store.commit([], others[at : at + _ALSO_MAX])
                return record
            raise MetadataConflict(f"{self._key(name)} changed {_ATTEMPTS} times in a row")

    async def _commit(
        self, name: str, expects: Sequence[Expect], changes: Sequence[Put | Delete]
    ) -> int:
        """Commit a change of one record; if that fails, see what the store has of it."""
        try:
            revision = await self._store.commit(expects, changes)
            self.revision = max(self.revision, revision)
            return revision
        except MetadataError:
            entry = await self._store.get(self._key(name))
            if entry is None:
                self._forget(name)
            else:
                self._take_in(entry)
            raise

    def _take_in(self, entry: Entry) -> None:
        record = self._decoder.decode(entry.value)
        self._keep(record, entry.revision)
        self._unknown.pop(record.name, None)
        if unknown := unknown_fields(entry.value, record):
            self._unknown[record.name] = unknown

    def _encoded(self, record: R) -> bytes:
        return encoded(record, self._unknown.get(record.name, {}))

    def _keep(self, record: R, revision: int) -> None:
        old = self._records.get(record.name)
        if old is not None:
            self._by_number.pop(old.number, None)
        self._index(old, record)
        self._records[record.name] = self._by_number[record.number] = record
        self._revisions[record.name] = revision
        self.version += 1

    def _drop(self, name: str, revision: int) -> None:
        self._forget(name)
        self._dropped[name] = revision

    def _forget(self, name: str) -> None:
        old = self._records.pop(name, None)
        if old is not None:
            self._by_number.pop(old.number, None)
        self._index(old, None)
        self._revisions.pop(name, None)
        self._unknown.pop(name, None)
        self.version += 1

    def _key(self, name: str) -> str:
        return self._kind.prefix + name

    def _exists(self, name: str) -> QuiverError:
        noun = self._kind.noun
        title = self._kind.title or noun
        return self._kind.exists(f"a {title} named {name!r} already exists", **{noun: name})


def _puts(others: Sequence[tuple[Expect, Put | None]]) -> list[Put]:
    return [put for _, put in others if put is not None]


def changed_settings(settings: S, changes: dict[str, Any]) -> S:
    """Settings with some of them changed; a group of settings may be given in part."""
    require_known(type(settings), changes)
    merged = msgspec.to_builtins(settings)
    for name, value in changes.items():
        group = getattr(settings, name)
        if isinstance(group, msgspec.Struct) and isinstance(value, dict):
            require_known(type(group), value, name)
            merged[name] |= value
        else:
            merged[name] = msgspec.to_builtins(value)
    try:
        return msgspec.convert(merged, type(settings))
    except msgspec.ValidationError as error:
        raise InvalidSetting(str(error)) from error
