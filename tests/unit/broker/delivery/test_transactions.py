"""Acknowledgements that wait for a transaction, through the broker and over crashes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from quiver.broker.broker import Broker
from quiver.broker.delivery.partition_delivery import Portion
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.broker.subscription.settlement import Settlement
from quiver.broker.subscription.subscription import Subscription
from quiver.errors import InvalidRequest, LogClosed, NotEnoughReplicas
from quiver.model.envelope import FORMAT_VERSION, TRANSACTION_VERSION
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.model.transaction import TransactionId
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, run, turns
from tests.unit.broker.broker_doubles import Gate, batch_of, open_broker, publish
from tests.unit.broker.delivery.test_state_log import World, _lose_power

ONE, OTHER = TransactionId(7), TransactionId(8)


async def received(
    broker: Broker, name: str = "jobs", consumer: str = ""
) -> tuple[Subscription, list[Portion]]:
    subscription = await broker.directory.get(name)
    portions = await subscription.receive(
        100, bytes_max=1 << 20, consumer=consumer, visibility_s=None
    )
    return subscription, portions


async def hold(
    subscription: Subscription, portions: list[Portion], transaction: TransactionId = ONE
) -> list[Settlement]:
    """Those whose lease had ended; durable when it returns."""
    settlements = [
        Settlement(subscription.settler.token(one), one.taken.offsets) for one in portions
    ]
    stale, stored = subscription.settler.hold(settlements, transaction)
    await asyncio.gather(*map(asyncio.shield, stored))
    return stale


async def state_of(broker: Broker) -> DeliveryStateLog:
    await broker.directory.get("jobs")
    state = (await broker.publisher.partition("jobs", 0)).state
    assert state is not None
    return state


async def queue(broker: Broker, *payloads: bytes, **settings: Any) -> None:
    await broker.subscriptions.create_queue("jobs", TopicSettings(), settings, exist_ok=False)
    if payloads:
        await publish(broker, "jobs", batch_of(*payloads))


async def close(state: DeliveryStateLog, transaction: TransactionId, *, is_committed: bool) -> None:
    stored = state.close_transactions({transaction: is_committed})
    if stored is not None:
        await asyncio.shield(stored)


def offsets(portions: list[Portion]) -> list[int]:
    return [offset for portion in portions for offset in portion.taken.offsets]


@async_test
async def test_what_is_held_is_delivered_to_nobody_else_when_its_lease_would_have_ended(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        await queue(broker, b"1", b"2", visibility="5s")
        subscription, portions = await received(broker, consumer="ann")
        assert await hold(subscription, portions) == []
        await clock.advance(60)
        subscription.tick()
        subscription.leave("ann")
        assert (await received(broker, consumer="bob"))[1] == []
        info = await broker.subscriptions.describe("jobs")
        assert (info.ready, info.leased) == (0, 2)


@pytest.mark.parametrize("dies", ["kill", "crash"])
@async_test
async def test_what_is_held_is_still_held_after_a_crash_and_a_commit_finishes_it_for_good(
    tmp_path: Path, dies: str
) -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await queue(broker, b"1", b"2")
        assert await hold(*await received(broker)) == []
        getattr(disk, dies)()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        assert (await received(broker))[1] == []
        state = await state_of(broker)
        assert state.held_transactions(Microseconds(clock.time_us() + 1)) == {ONE}
        await close(state, ONE, is_committed=True)
        getattr(disk, dies)()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        assert (await received(broker))[1] == []
        info = await broker.subscriptions.describe("jobs")
        assert (info.ready, info.leased, info.unseen) == (0, 0, 0)
        assert (await state_of(broker)).held_transactions(Microseconds(1 << 62)) == set()


@async_test
async def test_an_abort_wakes_who_waits_and_the_delivery_does_not_count(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, b"1", max_deliveries=1)
        subscription, portions = await received(broker)
        await hold(subscription, portions)
        waiting = asyncio.create_task(subscription.wait(20))
        await turns()
        assert not waiting.done()
        await close(await state_of(broker), ONE, is_committed=False)
        await turns()
        assert waiting.done()
        _, (again,) = await received(broker)
        assert list(again.taken.offsets) == [0]
        assert set(again.taken.deliveries) == {1}


@async_test
async def test_a_commit_lets_the_next_of_an_ordered_queue_go(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, ordering="partition")
        for payload in (b"1", b"2"):
            await publish(broker, "jobs", batch_of(payload))
        subscription = await broker.directory.get("jobs")
        subscription.heartbeat("ann")
        (portion,) = await subscription.receive(
            1, bytes_max=1 << 20, consumer="ann", visibility_s=None
        )
        await hold(subscription, [portion])
        waiting = asyncio.create_task(subscription.wait(20, "ann"))
        await turns()
        assert not waiting.done()
        await close(await state_of(broker), ONE, is_committed=True)
        await turns()
        assert waiting.done()
        assert offsets((await received(broker, consumer="ann"))[1]) == [1]


@async_test
async def test_every_subscription_of_the_partition_ends_the_transaction(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, b"1")
        copy = SubscriptionSettings(topics=["jobs"])
        await broker.subscriptions.create("copy", copy, start="earliest")
        for name in ("jobs", "copy"):
            await hold(*await received(broker, name))
        state = await state_of(broker)
        await close(state, OTHER, is_committed=True)
        assert state.held_transactions(Microseconds(1 << 62)) == {ONE}
        await close(state, ONE, is_committed=True)
        for machine in state.machines.values():
            assert machine.view.state_of(Offset(0)) == "finished"


@async_test
async def test_messages_count_as_acknowledged_when_the_transaction_is_committed(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, b"1", b"2")
        subscription, portions = await received(broker)
        (delivery,) = subscription.deliveries.values()
        counts = delivery._counts
        await hold(subscription, portions)
        assert counts.acked == 0
        await close(await state_of(broker), ONE, is_committed=True)
        assert counts.acked == 2
        assert sum(counts.time_in_queue.counts) == 2


@async_test
async def test_a_hold_is_confirmed_when_it_is_durable_and_again_no_sooner(tmp_path: Path) -> None:
    gate = Gate()
    async with open_broker(tmp_path, SimulatedDisk(1), gate=gate) as broker:
        await queue(broker, b"1")
        subscription, (portion,) = await received(broker)
        settlement = Settlement(subscription.settler.token(portion), portion.taken.offsets)
        await turns()
        gate.shut()
        for _ in range(2):
            stale, stored = subscription.settler.hold([settlement], ONE)
            await turns()
            assert stale == []
            assert [future.done() for future in stored] == [False]
        gate.open()
        await asyncio.gather(*stored)
        assert subscription.settler.hold([settlement], ONE) == ([], [])
        assert subscription.settler.hold([settlement], OTHER) == ([settlement], [])


@async_test
async def test_the_end_of_a_transaction_is_confirmed_when_it_is_durable_and_again_no_sooner(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with open_broker(tmp_path, SimulatedDisk(1), gate=gate) as broker:
        await queue(broker, b"1")
        await hold(*await received(broker))
        state = await state_of(broker)
        assert state.close_transactions({OTHER: True}) is None
        gate.shut()
        for _ in range(2):
            stored = state.close_transactions({ONE: True})
            await turns()
            assert stored is not None
            assert not stored.done()
        gate.open()
        await stored
        assert state.close_transactions({ONE: True}) is None


@async_test
async def test_a_state_that_cannot_record_the_end_of_a_transaction_does_not_change(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, b"1")
        await hold(*await received(broker))
        state = await state_of(broker)

        def refuse() -> None:
            raise NotEnoughReplicas("1 of 3 replicas are in sync")

        log: Any = state._log
        log.require_current = refuse
        with pytest.raises(NotEnoughReplicas):
            state.close_transactions({ONE: True})
        assert state.held_transactions(Microseconds(1 << 62)) == {ONE}
        assert state.close_transactions({OTHER: True}) is None
        del log.require_current
        state.is_open = False
        with pytest.raises(LogClosed):
            state.close_transactions({OTHER: True})


@async_test
async def test_a_subscription_that_delivers_at_most_once_refuses_with_a_reason(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, b"1", guarantee="at-most-once")
        subscription, portions = await received(broker)
        with pytest.raises(InvalidRequest, match="'jobs' delivers at most once"):
            await hold(subscription, portions)


@async_test
async def test_only_entries_that_an_earlier_quiver_cannot_read_have_another_version(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, b"1")
        await hold(*await received(broker))
        state = await state_of(broker)
        await close(state, ONE, is_committed=True)
        entries = await state._log.read(Offset(0), 1 << 20)
        versions = [int.from_bytes(bytes(entry.head[4:6]), "little") for entry in entries]
        assert versions == [TRANSACTION_VERSION, FORMAT_VERSION]


@async_test
async def test_a_purge_takes_what_is_held_and_an_abort_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await queue(broker, b"1", b"2")
        await hold(*await received(broker))
        assert await broker.directory.purge("jobs", None) == 2
        await close(await state_of(broker), ONE, is_committed=False)
        assert (await received(broker))[1] == []


@async_test
async def test_a_hold_with_a_lease_that_was_taken_over_is_stale(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        await queue(broker, b"1", visibility="5s", backoff={"min": 0})
        subscription, old = await received(broker)
        await clock.advance(6)
        _, new = await received(broker)
        assert offsets(new) == [0]
        (stale,) = await hold(subscription, old)
        assert stale.offsets == BitMap64([0])
        assert await hold(subscription, new) == []


# ---------------------------------------------------------------------- crashes


class TransactionWorld(World):
    """Acknowledges in transactions: of three, one is committed, one aborted, one left open."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.held: dict[tuple[int, TransactionId], set[int]] = {}
        """By subscription and transaction: what was confirmed to be held, and has not been ended."""

    async def work(self, state: DeliveryStateLog, number: int, count: int) -> None:
        machine = state.machines[number]
        await state.catch_up(machine, count)
        self.lease_id += 1
        lease, transaction = self.lease_id, TransactionId(self.lease_id)
        taken, records = machine.take(self.clock.time_us(), limit=count, lease_id=lease)
        await state.commit(number, records)
        if taken is None:
            return
        _, records = machine.hold(lease, taken.offsets, transaction, self.clock.time_us())
        self.tried[number] |= set(taken.offsets)
        await state.commit(number, records)
        if lease % 3 == 0:
            self.held[number, transaction] = set(taken.offsets)
            return
        stored = state.close_transactions({transaction: lease % 3 == 1})
        assert stored is not None
        await stored
        if lease % 3 == 1:
            self.acked[number] |= set(taken.offsets)
        else:
            self.tried[number] -= set(taken.offsets)

    async def check(self) -> None:
        partition, state = await self.open()
        for (number, transaction), offsets in self.held.items():
            assert transaction in state.held_transactions(Microseconds(1 << 62))
            machine = state.machines[number]
            assert {machine.view.state_of(Offset(one)) for one in offsets} == {"leased"}
            state.close_transactions({transaction: False})
            assert {machine.view.deliveries(Offset(one)) for one in offsets} == {0}
            self.tried[number] -= offsets
        self.held.clear()
        await partition.close()
        await super().check()


def test_a_crash_at_any_disk_operation_leaves_held_what_was_confirmed_to_be() -> None:
    async def lives(crash_at: int) -> tuple[bool, int]:
        world = TransactionWorld(crash_at)
        crashed = await _lose_power(world, crash_at)
        world.disk.crash()
        held = len(world.held)
        await world.check()
        return crashed, held

    crash_at, most = 1, 0
    while (one := run(lives(crash_at)))[0]:
        crash_at, most = crash_at + 1, max(most, one[1])
    assert crash_at > 50
    assert most > 1, "some were open in the end"
