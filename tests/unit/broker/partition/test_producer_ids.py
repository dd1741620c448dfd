"""Who a producer is: ids never come twice, epochs only grow, predecessors are fenced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quiver.broker.partition.producer_ids import ProducerIds
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.errors import InvalidSetting, ProducerFenced
from quiver.model.clock import SystemClock
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.schema import PAYLOAD
from tests.aio import async_test


async def _store(folder: Path) -> SqliteStore:
    return await SqliteStore.open(str(folder / "metadata.db"), SystemClock())


def _require(ids: ProducerIds, producer: int, epoch: int) -> None:
    stamp = ProducerStamp(ProducerId(producer), ProducerEpoch(epoch))
    ids.require_current(seal_batch(b"body", 1, PAYLOAD, stamp))


def _is_fenced(ids: ProducerIds, producer: int, epoch: int) -> bool:
    try:
        _require(ids, producer, epoch)
    except ProducerFenced:
        return True
    return False


@async_test
async def test_ids_are_not_used_twice_even_after_a_restart(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        store = await _store(tmp_path)
        ids = ProducerIds(store)
        given += [(await ids.open(None)).producer_id for _ in range(20)]
        await store.close()
    assert len(set(given)) == len(given)
    assert 0 not in given


@async_test
async def test_many_that_open_at_once_get_different_ids(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    ids = ProducerIds(store)
    opened = await asyncio.gather(*(ids.open(None) for _ in range(2500)))
    assert len({identity.producer_id for identity in opened}) == 2500
    await store.close()


@async_test
async def test_a_name_keeps_its_id_and_raises_its_epoch(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    first = await ProducerIds(store).open("billing")
    again = await ProducerIds(store).open("billing")
    other = await ProducerIds(store).open("audit")
    assert (again.producer_id, again.epoch) == (first.producer_id, first.epoch + 1)
    assert other.producer_id != first.producer_id
    await store.close()


@async_test
async def test_a_name_opened_by_many_at_once_gives_each_its_own_epoch(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    ids = ProducerIds(store)
    opened = await asyncio.gather(*(ids.open("billing") for _ in range(10)))
    assert sorted(identity.epoch for identity in opened) == list(range(10))
    with pytest.raises(ProducerFenced):
        _require(ids, opened[0].producer_id, 8)
    await store.close()


@async_test
async def test_who_opened_a_name_earlier_is_fenced_at_once(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    ids = ProducerIds(store)
    first = await ids.open("billing")
    _require(ids, first.producer_id, first.epoch)
    second = await ids.open("billing")
    _require(ids, second.producer_id, second.epoch)
    with pytest.raises(ProducerFenced) as refused:
        _require(ids, first.producer_id, first.epoch)
    assert refused.value.details["epoch"] == second.epoch
    await store.close()


@async_test
async def test_a_fence_survives_a_restart(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    first = await ProducerIds(store).open("billing")
    await ProducerIds(store).open("billing")
    await store.close()
    store = await _store(tmp_path)
    ids = ProducerIds(store)
    await ids.load()
    with pytest.raises(ProducerFenced):
        _require(ids, first.producer_id, first.epoch)
    await store.close()


@async_test
async def test_other_producers_are_not_fenced(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    ids = ProducerIds(store)
    await ids.open("billing")
    await ids.open("billing")
    unnamed = await ids.open(None)
    assert not _is_fenced(ids, unnamed.producer_id, unnamed.epoch)
    assert not _is_fenced(ids, 0, 0)
    await store.close()


@pytest.mark.parametrize("name", ["", "a b", "x" * 201, "a\n", "ü", "a\0", "{}"])
def test_a_name_outside_the_rules_is_refused(name: str, tmp_path: Path) -> None:
    @async_test
    async def check() -> None:
        store = await _store(tmp_path)
        with pytest.raises(InvalidSetting, match="not a producer name"):
            await ProducerIds(store).open(name)
        await store.close()

    check()


@pytest.mark.parametrize(
    ("one", "another"),
    [
        (("team/eu", "x"), ("team", "eu/x")),
        (("team/eu", "x"), ("", "team/eu/x")),
        (("a", "b/c/d"), ("a/b/c", "d")),
        (("a:b", "c"), ("a", "b:c")),
    ],
)
@async_test
async def test_producers_of_two_owners_are_never_one(
    tmp_path: Path, one: tuple[str, str], another: tuple[str, str]
) -> None:
    store = await _store(tmp_path)
    ids = ProducerIds(store)
    for owner, name in (one, another, one, another):
        await ids.open(name, owner)
    first = await ids.open(one[1], one[0])
    second = await ids.open(another[1], another[0])
    assert first.producer_id != second.producer_id
    assert first.epoch == second.epoch == 2
    await store.close()


@async_test
async def test_a_name_that_an_earlier_version_stored_keeps_its_id(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    earlier = {name: await ProducerIds(store).open(name) for name in ("shop/x", "team/eu/x")}
    ids = ProducerIds(store)
    shop = await ids.open("x", "shop")
    team = await ids.open("x", "team/eu")
    assert shop.producer_id == earlier["shop/x"].producer_id
    assert team.producer_id == earlier["team/eu/x"].producer_id
    assert shop.epoch == team.epoch == 1
    assert (await ids.open("x", "team/eu")).epoch == 2
    other = await ids.open("eu/x", "team")
    assert other.producer_id != team.producer_id, "it was taken over once, by who came first"
    await store.close()


@pytest.mark.parametrize("name", ["", "a|b", "a b", "x" * 201])
@async_test
async def test_a_name_cannot_contain_what_separates_it_from_its_owner(
    tmp_path: Path, name: str
) -> None:
    store = await _store(tmp_path)
    with pytest.raises(InvalidSetting, match="not a producer name"):
        await ProducerIds(store).open(name, "shop")
    await store.close()
