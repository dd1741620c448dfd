"""When a leader answers the fetches that wait: entries at once, a watermark alone only after a while."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from quiver.aio import cancel_and_wait
from quiver.cluster.records import VersionedPartition
from quiver.cluster.replica.leader import Leader
from quiver.cluster.replica.parked_fetches import ParkedFetches
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns
from tests.unit.cluster.replica.test_rules import A, B, C, fetch, grow, leading, offset, record

SETTINGS = ReplicaSettings()
DELAY_S = SETTINGS.watermark_delay_s


def setting() -> tuple[ManualClock, Leader, ParkedFetches]:
    """A leader in epoch 3 whose log ends at 100, all of it committed."""
    clock, machine = ManualClock(), leading(watermark=100, lease_until=1_000.0)
    return clock, machine, ParkedFetches(machine, clock, SETTINGS)


async def parked(
    machine: Leader, fetches: ParkedFetches, watermark: int = 100, wait_s: float = 0.5
) -> asyncio.Task[None]:
    asked = fetch(B, machine.logs[0].end, last=3, watermark=watermark, wait_s=wait_s)
    machine.on_fetch(asked, 0.0)
    task = asyncio.create_task(fetches.wait(asked))
    await turns()
    return task


@async_test
async def test_entries_answer_a_fetch_at_once() -> None:
    _, machine, fetches = setting()
    waiting = await parked(machine, fetches)
    assert not waiting.done()
    grow(machine, 110)
    fetches.look(0)
    await turns()
    assert waiting.done()


@async_test
async def test_a_watermark_that_moved_waits_for_entries_to_ride_on() -> None:
    clock, machine, fetches = setting()
    grow(machine, 110)
    waiting = await parked(machine, fetches)
    machine.logs[0].watermark = offset(110)
    fetches.look(0)
    await clock.advance(DELAY_S / 2)
    assert not waiting.done()
    grow(machine, 120)
    fetches.look(0)
    await turns()
    assert waiting.done()


@async_test
async def test_a_watermark_that_nothing_follows_is_sent_alone_after_a_while() -> None:
    clock, machine, fetches = setting()
    grow(machine, 110)
    waiting = await parked(machine, fetches)
    machine.logs[0].watermark = offset(110)
    fetches.look(0)
    await clock.advance(DELAY_S)
    assert waiting.done()


@async_test
async def test_a_follower_learns_soon_that_its_log_is_to_begin_later() -> None:
    clock, machine, fetches = setting()
    asked = replace(fetch(B, 100, last=3, watermark=100), start=offset(5))
    machine.on_fetch(asked, 0.0)
    waiting = asyncio.create_task(fetches.wait(asked))
    await turns()
    assert not waiting.done()
    machine.logs[0].start = offset(20)
    fetches.look(0)
    await clock.advance(DELAY_S)
    assert waiting.done()


@async_test
async def test_a_follower_that_asks_with_an_old_watermark_waits_no_longer_for_it() -> None:
    clock, machine, fetches = setting()
    waiting = await parked(machine, fetches, watermark=90)
    await clock.advance(DELAY_S / 2)
    assert not waiting.done()
    await clock.advance(DELAY_S)
    assert waiting.done()


@async_test
async def test_a_fetch_without_news_is_answered_after_the_time_it_asked_for() -> None:
    clock, machine, fetches = setting()
    waiting = await parked(machine, fetches, wait_s=0.5)
    await clock.advance(0.49)
    assert not waiting.done()
    await clock.advance(0.01)
    assert waiting.done()


@pytest.mark.parametrize("wait_s", [60.0, 3_600.0])
@async_test
async def test_no_fetch_waits_for_longer_than_a_leader_allows(wait_s: float) -> None:
    clock, machine, fetches = setting()
    waiting = await parked(machine, fetches, wait_s=wait_s)
    await clock.advance(SETTINGS.idle_wait_s)
    assert waiting.done()


@async_test
async def test_followers_ask_again_soon_when_the_lease_is_not_renewed() -> None:
    clock, machine, fetches = setting()
    waiting = await parked(machine, fetches, wait_s=10.0)
    machine.lease_until = clock.monotonic()
    fetches.doubt()
    await clock.advance(SETTINGS.leader.lag_seconds_max / 4)
    assert waiting.done()


@async_test
async def test_all_are_answered_when_the_leader_leads_no_more() -> None:
    clock, machine, fetches = setting()
    waiting = await parked(machine, fetches)
    fetches.answer_all()
    await turns()
    assert waiting.done()
    assert not clock.sleepers


@async_test
async def test_a_follower_is_held_for_as_long_as_its_fetch_waits() -> None:
    _, machine, fetches = setting()
    waiting = await parked(machine, fetches)
    assert machine._followers[B].held == [1]
    await cancel_and_wait(waiting)
    assert machine._followers[B].held == [0]


@async_test
async def test_a_follower_that_left_the_in_sync_set_is_answered_so_that_it_asks_again() -> None:
    _, machine, fetches = setting()
    waiting = await parked(machine, fetches)
    fetches.answer_forgotten()
    await turns()
    assert not waiting.done()
    machine.on_record(VersionedPartition(record(A, C), 8))
    fetches.answer_forgotten()
    await turns()
    assert waiting.done()
