"""The registry of named, numbered things, and changing settings in part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from quiver.broker.registry import Kind, Registry, changed_settings
from quiver.cluster.metadata import Put
from quiver.cluster.sqlite_store import SqliteStore
from quiver.errors import InvalidSetting, MetadataConflict, SubscriptionExists, SubscriptionNotFound
from quiver.model.subscription import Backoff, SubscriptionSettings
from quiver.testing.clock import ManualClock
from tests.aio import async_test

KIND = Kind(
    noun="thing",
    prefix="things/",
    numbers="numbers/thing",
    not_found=SubscriptionNotFound,
    exists=SubscriptionExists,
)


class Thing(msgspec.Struct, frozen=True):
    name: str
    number: int
    colour: str = "red"


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(str(folder / "metadata.db"), ManualClock())
    try:
        yield store
    finally:
        await store.close()


def registry(store: SqliteStore) -> Registry[Thing]:
    return Registry(store, KIND, Thing)


async def make(things: Registry[Thing], name: str) -> Thing:
    return await things.create(name, lambda number: Thing(name, number))


@async_test
async def test_a_number_is_never_given_twice(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        things = registry(store)
        assert (await make(things, "a")).number == 1
        await things.delete("a")
        assert (await make(things, "a")).number == 2
    async with opened(tmp_path) as store:
        things = registry(store)
        await things.load()
        await things.delete("a")
        assert (await make(things, "b")).number == 3


@async_test
async def test_names_are_unique_and_unknown_ones_are_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        things = registry(store)
        await make(things, "a")
        with pytest.raises(SubscriptionExists, match="a thing 'a' already"):
            await make(things, "a")
        for call in (things.delete("b"), things.change("b", lambda thing: thing)):
            with pytest.raises(SubscriptionNotFound, match="no thing 'b'"):
                await call


@async_test
async def test_a_change_is_there_after_loading_and_counts_as_a_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        things = registry(store)
        made = await make(things, "a")
        before = things.version
        changed = await things.change("a", lambda thing: Thing(thing.name, thing.number, "blue"))
        assert things.version > before
        assert things.holds(made)
        again = registry(store)
        await again.load()
        assert again.all() == [changed]


@async_test
async def test_a_change_by_another_is_seen_when_ones_own_fails(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        mine, theirs = registry(store), registry(store)
        await make(mine, "a")
        await theirs.load()
        await theirs.change("a", lambda thing: Thing(thing.name, thing.number, "blue"))
        with pytest.raises(MetadataConflict):
            await mine.change("a", lambda thing: Thing(thing.name, thing.number, "green"))
        assert mine.get("a").colour == "blue"
        await theirs.delete("a")
        with pytest.raises(MetadataConflict):
            await mine.delete("a")
        assert mine.all() == []


@async_test
async def test_numbers_taken_by_another_are_passed_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        mine, theirs = registry(store), registry(store)
        await make(theirs, "a")
        assert (await make(mine, "b")).number == 2
        with pytest.raises(SubscriptionExists):
            await make(mine, "a")
        assert mine.get("a").number == 1


@async_test
async def test_a_tombstone_is_left_in_the_same_step(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        things = registry(store)
        await make(things, "a")
        await things.delete("a", lambda thing: [Put("graves/a", str(thing.number).encode())])
        left = await store.get("graves/a")
        assert left is not None
        assert left.value == b"1"


def test_a_group_of_settings_may_be_changed_in_part() -> None:
    settings = SubscriptionSettings(topics=["t"], backoff=Backoff(min=1, max=5))
    changed = changed_settings(settings, {"backoff": {"max": 9}, "visibility": "1m"})
    assert changed.backoff == Backoff(min=1, max=9)
    assert (changed.visibility, changed.topics) == (60.0, ["t"])
    whole = changed_settings(settings, {"backoff": Backoff(min=2)})
    assert whole.backoff == Backoff(min=2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"speed": 1}, "no setting 'speed'"),
        ({"backoff": {"speed": 1}}, "no setting 'speed'"),
        ({"visibility": []}, "visibility"),
        ({"max_deliveries": "many"}, "max_deliveries"),
        ({"topics": []}, "topics"),
    ],
)
def test_a_wrong_change_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        changed_settings(SubscriptionSettings(topics=["t"]), changes)
