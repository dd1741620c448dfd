"""Who a producer is: ids never come twice, epochs only grow, predecessors are fenced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from quiver.broker.partition.producer_ids import PRODUCERS, ProducerIds
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import Put
from quiver.errors import InvalidSetting, ProducerFenced, QuotaExceeded
from quiver.model.clock import SystemClock
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import Microseconds, ProducerEpoch, ProducerId
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
        await ids.open(name, owner=owner)
    first = await ids.open(one[1], owner=one[0])
    second = await ids.open(another[1], owner=another[0])
    assert first.producer_id != second.producer_id
    assert first.epoch == second.epoch == 2
    await store.close()


@async_test
async def test_a_name_that_an_earlier_version_stored_keeps_its_id(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    earlier = {name: await ProducerIds(store).open(name) for name in ("shop/x", "team/eu/x")}
    ids = ProducerIds(store)
    shop = await ids.open("x", owner="shop")
    team = await ids.open("x", owner="team/eu")
    assert shop.producer_id == earlier["shop/x"].producer_id
    assert team.producer_id == earlier["team/eu/x"].producer_id
    assert shop.epoch == team.epoch == 1
    assert (await ids.open("x", owner="team/eu")).epoch == 2
    other = await ids.open("eu/x", owner="team")
    assert other.producer_id != team.producer_id, "it was taken over once, by who came first"
    await store.close()


@pytest.mark.parametrize("name", ["", "a|b", "a b", "x" * 201])
@async_test
async def test_a_name_cannot_contain_what_separates_it_from_its_owner(
    tmp_path: Path, name: str
) -> None:
    store = await _store(tmp_path)
    with pytest.raises(InvalidSetting, match="not a producer name"):
        await ProducerIds(store).open(name, owner="shop")
    await store.close()


class _Clock(SystemClock):
    """The system's, moved on by whole days."""

    days = 0

    def time_us(self) -> Microseconds:
        return Microseconds(super().time_us() + self.days * 86_400 * 1_000_000)


@async_test
async def test_an_owner_has_a_bounded_number_of_names(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    ids = ProducerIds(store)
    for number in range(3):
        await ids.open(f"mine-{number}", owner="me", names_max=3)
    with pytest.raises(QuotaExceeded, match="3 producer names"):
        await ids.open("mine-3", owner="me", names_max=3)
    await ids.open("mine-0", owner="me", names_max=3)
    await ids.open("other", owner="you", names_max=3)
    restarted = ProducerIds(store)
    await restarted.load()
    with pytest.raises(QuotaExceeded):
        await restarted.open("mine-3", owner="me", names_max=3)
    await store.close()


@async_test
async def test_names_that_are_not_used_make_room_and_those_that_publish_stay(
    tmp_path: Path,
) -> None:
    store, clock = await _store(tmp_path), _Clock()
    ids = ProducerIds(store, clock)
    used = await ids.open("used", owner="me", names_max=2)
    await ids.open("unused", owner="me", names_max=2)
    for clock.days in range(0, 40, 10):
        _require(ids, used.producer_id, used.epoch)
        await ids.close()
    await ids.open("new", owner="me", names_max=2)
    names = {entry.key for entry in (await store.list(PRODUCERS)).entries}
    assert names == {"producers/me/used", "producers/me/new"}
    again = await ids.open("used", owner="me", names_max=2)
    assert (again.producer_id, again.epoch) == (used.producer_id, used.epoch + 1)
    await store.close()


@async_test
async def test_a_name_that_publishes_again_after_a_long_time_stays(tmp_path: Path) -> None:
    store, clock = await _store(tmp_path), _Clock()
    ids = ProducerIds(store, clock)
    used = await ids.open("used", owner="me", names_max=1)
    clock.days = 40
    _require(ids, used.producer_id, used.epoch)
    await ids.close()
    with pytest.raises(QuotaExceeded):
        await ids.open("new", owner="me", names_max=1)
    await store.close()


@async_test
async def test_a_record_without_an_owner_keeps_its_id(tmp_path: Path) -> None:
    store = await _store(tmp_path)
    await store.commit([], [Put("producers/me/old", msgspec.msgpack.encode([7, 3]))])
    ids = ProducerIds(store)
    await ids.load()
    opened = await ids.open("old", owner="me", names_max=1)
    assert (opened.producer_id, opened.epoch) == (7, 4)
    await store.close()
