"""The registry of named, numbered things, and changing settings in part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from quiver.broker.topics.registry import (
    OnChange,
    RecordKind,
    Registry,
    changed_settings,
    ignore_change,
)
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.errors import InvalidSetting, SubscriptionExists, SubscriptionNotFound
from quiver.model.subscription import Backoff, SubscriptionSettings
from quiver.testing.clock import ManualClock
from tests.aio import async_test

KIND = RecordKind(
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


def registry(store: SqliteStore, on_change: OnChange[Thing] = ignore_change) -> Registry[Thing]:
    return Registry(store, KIND, Thing, on_change)


async def make(things: Registry[Thing], name: str) -> Thing:
    return await things.create(name, lambda number: Thing(name, number))


@async_test
async def test_the_digest_is_that_of_the_records_and_not_of_who_has_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        things, started = registry(store), registry(store)
        empty = things.digest
        await make(things, "a")
        await started.load()
        one = things.digest
        assert started.digest == one != empty
        await make(things, "b")
        restarted = registry(store)
        await restarted.load()
        assert restarted.digest == things.digest
        assert restarted.digest != started.digest, "it does not know the second one"
        await things.change("b", lambda thing: msgspec.structs.replace(thing, colour="blue"))
        assert restarted.digest != things.digest, "it does not know the change"
        await things.delete("b")
        assert things.digest == one


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
        with pytest.raises(SubscriptionExists, match="a thing named 'a' already exists"):
            await make(things, "a")
        for call in (things.delete("b"), things.change("b", lambda thing: thing)):
            with pytest.raises(SubscriptionNotFound, match="no thing named 'b'"):
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
async def test_what_another_has_deleted_is_neither_changed_nor_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        mine, theirs = registry(store), registry(store)
        await make(mine, "a")
        await theirs.load()
        await theirs.delete("a")
        with pytest.raises(SubscriptionNotFound):
            await mine.change("a", lambda thing: thing)
        assert mine.all() == []
        await make(mine, "b")
        await theirs.load()
        await theirs.delete("b")
        with pytest.raises(SubscriptionNotFound):
            await mine.delete("b")
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


@async_test
async def test_what_another_node_did_is_known_once_it_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        here = registry(store)
        seen: list[tuple[Thing | None, Thing | None]] = []
        there = registry(store, lambda old, new: seen.append((old, new)))
        made = await make(here, "a")
        listing = await store.list("")
        there.reload(listing.entries, listing.revision)
        changed = await here.change(
            "a", lambda thing: msgspec.structs.replace(thing, colour="blue")
        )
        entry = await store.get("things/a")
        assert entry is not None
        there.apply(entry, entry.revision)
        there.apply(entry, entry.revision)  # told twice, done once
        await here.delete("a")
        there.apply(Delete("things/a"), here.revision)
        assert seen == [(None, made), (made, changed), (changed, None)]
        assert there.all() == []


@async_test
async def test_old_news_of_what_this_node_removed_does_not_bring_it_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        things = registry(store)
        await make(things, "a")
        entry = await store.get("things/a")
        assert entry is not None
        await things.delete("a")
        things.apply(entry, entry.revision)
        assert things.all() == []
        again = await make(things, "a")
        things.apply(Delete("things/a"), entry.revision + 1)
        assert things.get("a") == again


@async_test
async def test_what_is_gone_from_a_listing_is_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        here, there = registry(store), registry(store)
        await make(here, "a")
        await make(here, "b")
        await there.load()
        await here.delete("a")
        listing = await store.list("")
        there.reload(listing.entries, listing.revision)
        assert [thing.name for thing in there.all()] == ["b"]


@async_test
async def test_two_nodes_change_the_same_thing_and_both_changes_are_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        here, there = registry(store), registry(store)
        await make(here, "a")
        await there.load()
        await here.change("a", lambda thing: msgspec.structs.replace(thing, colour="blue"))
        both = await there.change(
            "a", lambda thing: msgspec.structs.replace(thing, colour=f"light {thing.colour}")
        )
        assert both.colour == "light blue"
        assert (await here.delete("a")).name == "a"


@async_test
async def test_what_is_changed_beside_a_thing_is_tried_until_it_fits(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        things = registry(store)
        await make(things, "a")
        expected = [99, 0]

        async def also(_old: Thing, new: Thing) -> list[tuple[Expect, Put]]:
            return [(Expect("beside", expected.pop(0)), Put("beside", new.colour.encode()))]

        change = lambda thing: msgspec.structs.replace(thing, colour="blue")  # noqa: E731
        await things.change("a", change, also)
        beside = await store.get("beside")
        assert beside is not None
        assert beside.value == b"blue"


class NewerThing(Thing, frozen=True):
    """As a later version of Quiver has it."""

    shape: str = "round"


@async_test
async def test_what_only_a_newer_version_knows_stays_when_a_record_is_changed(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        newer: Registry[NewerThing] = Registry(store, KIND, NewerThing)
        await newer.create("a", lambda number: NewerThing("a", number, shape="square"))
        here = registry(store)
        await here.load()
        for colour in ("blue", "green"):
            await here.change("a", lambda one: msgspec.structs.replace(one, colour=colour))  # noqa: B023
        again: Registry[NewerThing] = Registry(store, KIND, NewerThing)
        await again.load()
        assert (again.get("a").colour, again.get("a").shape) == ("green", "square")


@async_test
async def test_a_record_that_is_made_anew_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        newer: Registry[NewerThing] = Registry(store, KIND, NewerThing)
        await newer.create("a", lambda number: NewerThing("a", number, shape="square"))
        here = registry(store)
        await here.load()
        await here.delete("a")
        await make(here, "a")
        await here.change("a", lambda one: msgspec.structs.replace(one, colour="blue"))
        again: Registry[NewerThing] = Registry(store, KIND, NewerThing)
        await again.load()
        assert again.get("a").shape == "round"
