"""The topics there are: what the store holds and what the node believes are the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quiver.broker.topics.catalog import TopicCatalog, changed_settings
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.errors import (
    InvalidSetting,
    MetadataUnavailable,
    TopicExists,
    TopicNotFound,
)
from quiver.model.topic import Durability, Retention, TopicSettings
from quiver.testing.clock import ManualClock
from tests.aio import async_test


class Shaky:
    """A store whose next commit is made, or not, and in either case ends in an error."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.fail_next: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        failing, self.fail_next = self.fail_next, None
        if failing == "before":
            raise MetadataUnavailable
        revision = await self._store.commit(expects, changes)
        if failing == "after":
            raise MetadataUnavailable
        return revision


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[TopicCatalog, Shaky]]:
    clock = ManualClock()
    store = Shaky(await SqliteStore.open(str(folder / "metadata.db"), clock))
    catalog = TopicCatalog(store, clock)
    await catalog.load()
    try:
        yield catalog, store
    finally:
        await store.close()


async def _stored_names(store: Shaky) -> list[str]:
    return [entry.key.removeprefix("topics/") for entry in (await store.list("topics/")).entries]


@async_test
async def test_a_topic_is_there_after_a_restart_with_all_its_settings(tmp_path: Path) -> None:
    settings = TopicSettings(
        partitions=3, durability=Durability.INTERVAL, retention=Retention(age="1h", bytes="1GiB")
    )
    async with opened(tmp_path) as (catalog, _):
        created = await catalog.create("orders", settings)
    async with opened(tmp_path) as (catalog, _):
        assert catalog.get("orders") == created
        assert created.settings == settings
        assert len(created.first_hashes) == 3


@async_test
async def test_a_number_is_never_used_again(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        async with opened(tmp_path) as (catalog, _):
            record = await catalog.create("orders", TopicSettings())
            numbers.append(record.number)
            await catalog.delete("orders")
            await catalog.forget(record)
    assert len(set(numbers)) == 3
    assert numbers == sorted(numbers)


@async_test
async def test_a_name_is_taken_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (catalog, _):
        results = await asyncio.gather(
            *(catalog.create("orders", TopicSettings()) for _ in range(10)), return_exceptions=True
        )
        assert sum(isinstance(result, TopicExists) for result in results) == 9


@async_test
async def test_topics_created_at_once_all_get_numbers_of_their_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as (catalog, _):
        records = await asyncio.gather(
            *(catalog.create(f"t{number}", TopicSettings()) for number in range(20))
        )
        assert len({record.number for record in records}) == 20


@async_test
async def test_alterations_at_once_all_take_effect(tmp_path: Path) -> None:
    async with opened(tmp_path) as (catalog, _):
        await catalog.create("orders", TopicSettings())
        await asyncio.gather(
            catalog.alter("orders", {"sync_interval_ms": 7}),
            catalog.alter("orders", {"retention": {"messages": 9}}),
            catalog.alter("orders", {"durability": "os"}),
        )
    async with opened(tmp_path) as (catalog, _):
        settings = catalog.get("orders").settings
        assert (settings.sync_interval_ms, settings.retention.messages) == (7, 9)
        assert settings.durability is Durability.OS


@async_test
async def test_a_deleted_topic_leaves_a_tombstone_until_it_is_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path) as (catalog, _):
        await catalog.create("orders", TopicSettings())
        record = await catalog.delete("orders")
        with pytest.raises(TopicNotFound):
            catalog.get("orders")
        assert not catalog.holds(record)
    async with opened(tmp_path) as (catalog, _):
        assert await catalog.deleted() == [record]
        await catalog.forget(record)
        assert await catalog.deleted() == []


@async_test
async def test_a_topic_of_the_same_name_is_another_topic(tmp_path: Path) -> None:
    async with opened(tmp_path) as (catalog, _):
        first = await catalog.create("orders", TopicSettings())
        await catalog.delete("orders")
        second = await catalog.create("orders", TopicSettings())
        assert not catalog.holds(first)
        assert catalog.holds(second)
        assert first.folder != second.folder


@async_test
async def test_partitions_cannot_be_set_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as (catalog, _):
        await catalog.create("orders", TopicSettings(partitions=2))
        with pytest.raises(InvalidSetting, match="partitions"):
            await catalog.alter("orders", {"partitions": 4})
        assert (await catalog.alter("orders", {"partitions": 2})).settings.partitions == 2


# ---------------------------------------------------------------------- changes of unknown outcome


CHANGES: dict[str, Callable[[TopicCatalog], Awaitable[Any]]] = {
    "create": lambda catalog: catalog.create("orders", TopicSettings()),
    "alter": lambda catalog: catalog.alter("orders", {"sync_interval_ms": 7}),
    "delete": lambda catalog: catalog.delete("orders"),
}


@pytest.mark.parametrize("outcome", ["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_of_unknown_outcome_the_node_believes_what_the_store_has(
    change: str, outcome: str, tmp_path: Path
) -> None:
    @async_test
    async def check() -> None:
        async with opened(tmp_path) as (catalog, store):
            if change != "create":
                await catalog.create("orders", TopicSettings())
            store.fail_next = outcome
            with pytest.raises(MetadataUnavailable):
                await CHANGES[change](catalog)
            believed = [record.name for record in catalog.topics()]
            assert believed == await _stored_names(store)
            if believed:
                await catalog.alter("orders", {"sync_interval_ms": 8})
                await catalog.delete("orders")
            await catalog.create("orders", TopicSettings())

    check()


# ---------------------------------------------------------------------- settings given in part


def test_settings_that_are_not_named_stay() -> None:
    settings = TopicSettings(partitions=3, retention=Retention(age="1h", messages=5))
    changed = changed_settings(settings, {"retention": {"age": "2h"}, "message_bytes_max": 7})
    assert changed.partitions == 3
    assert changed.retention == Retention(age="2h", messages=5)
    assert changed.message_bytes_max == 7


def test_a_limit_can_be_taken_away() -> None:
    settings = TopicSettings(retention=Retention(age="1h", messages=5))
    assert changed_settings(settings, {"retention": {"messages": None}}).retention.messages is None


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": "red"},
        {"partitions": 0},
        {"partitions": "3"},
        {"durability": "maybe"},
        {"retention": None},
        {"retention": 7},
        {"retention": {"colour": "red"}},
        {"retention": {1: 2, "colour": "red"}},
        {"retention": {"age": "--5"}},
        {"retention": {"bytes": "9" * 400}},
        {"message_bytes_max": 1 << 40},
        {"x" * 100_000: 1},
    ],
)
def test_changes_that_make_no_sense_are_a_setting_s_error(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting) as refused:
        changed_settings(TopicSettings(), changes)
    assert len(refused.value.message) < 400
