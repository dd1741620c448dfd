"""The state of subscriptions over crashes: what was confirmed holds, what was not may come again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyroaring import BitMap64

from quiver.broker.broker import Broker
from quiver.broker.delivery import state_log
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.records import DeadLettered, DeadLetterPending
from quiver.broker.delivery.partition_delivery import Portion
from quiver.broker.delivery.state_log import SNAPSHOT, DeliveryStateLog
from quiver.broker.partition.partition import Partition
from quiver.broker.subscription.settlement import Settlement
from quiver.broker.subscription.subscription import Subscription
from quiver.errors import LogClosed, NotEnoughReplicas, QuiverError
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.guard import check_batch
from quiver.model.ids import Offset
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings
from quiver.model.topic import Durability, TopicSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedCrash, SimulatedDisk
from tests.aio import async_test, run, turns
from tests.unit.broker.broker_doubles import Gate, batch_of, open_broker, payloads, publish, until
from tests.unit.log.small_logs import effort

FOLDER = "/data/topic@1/0"
NUMBERS = (1, 2)
T = TypeVar("T")


class Power:
    """Runs disk work on the loop; when the power fails, the one who waits for that is told."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, call: Callable[[], T], /) -> T:
        try:
            return call()
        except SimulatedCrash:
            if not self.lost.done():
                self.lost.set_result(None)
            await asyncio.Event().wait()
            raise


class World:
    """What a consumer knows of a partition with two subscriptions, whatever happens to the node."""

    def __init__(self, seed: int, ordering: Ordering = Ordering.NONE) -> None:
        self.disk = SimulatedDisk(seed)
        self.disk.make_folder("/data")
        self.clock = ManualClock()
        self.settings = SubscriptionSettings(topics=["topic"], ordering=ordering)
        self.durability = Durability.FSYNC
        self.published = 0
        self.acked: dict[int, set[int]] = {number: set() for number in NUMBERS}
        self.tried: dict[int, set[int]] = {number: set() for number in NUMBERS}
        self.lease_id = 0

    async def open(self, power: Power | None = None) -> tuple[Partition, DeliveryStateLog]:
        partition = await Partition.open(
            FOLDER,
            LogSettings(durability=self.durability),
            disk=self.disk,
            clock=self.clock,
            run_blocking=power or Gate(),
        )
        blank = {number: DeliveryMachine(self.settings, Offset(0)) for number in NUMBERS}
        return partition, await partition.open_state(blank)

    async def publish(self, partition: Partition, count: int) -> None:
        batch = batch_of(*[b"p"] * count)
        placed = await partition.publish(batch, check_batch(batch, 1 << 20).rows)
        self.published = max(self.published, placed.base_offset + count)

    async def work(self, state: DeliveryStateLog, number: int, count: int) -> None:
        """Take some messages, acknowledge all but the last of them, give that back."""
        machine = state.machines[number]
        await state.catch_up(machine, count)
        self.lease_id += 1
        taken, records = machine.take(self.clock.time_us(), limit=count, lease_id=self.lease_id)
        await state.commit(number, records)
        if taken is None:
            return
        last = taken.offsets.max()
        done = taken.offsets - BitMap64([last])
        self.tried[number] |= set(done)
        _, records = machine.ack(taken.lease_id, done)
        _, more = machine.nack(taken.lease_id, taken.offsets, self.clock.time_us(), 0)
        await state.commit(number, [*records, *more])
        self.acked[number] |= set(done)

    async def live(self, power: Power) -> None:
        partition, state = await self.open(power)
        for turn in range(4):
            await self.publish(partition, 5)
            await asyncio.gather(*(self.work(state, number, 4) for number in NUMBERS))
            if turn % 2:
                await state._snapshot()
        await partition.close()
        partition, state = await self.open(power)
        await self.publish(partition, 3)
        await self.work(state, 1, 4)
        await partition.close()

    async def check(self) -> None:
        """Confirmed acknowledgements hold; whatever nobody acknowledged is there to be had."""
        partition, state = await self.open()
        for number, machine in state.machines.items():
            await state.catch_up(machine, 1000)
            standing = {o: machine.view.state_of(Offset(o)) for o in range(self.published)}
            assert all(standing[o] == "finished" for o in self.acked[number])
            lost = {o for o, where in standing.items() if where == "finished"} - self.tried[number]
            assert not lost, f"subscription {number} never saw {lost}"
        await self.publish(partition, 2)
        for number in NUMBERS:
            await self.work(state, number, 50)
        await partition.close()


async def _lose_power(world: World, crash_at: int) -> bool:
    power = Power()
    world.disk.crash_at(world.disk.operation_count + crash_at)
    life = asyncio.create_task(world.live(power))
    await asyncio.wait([life, power.lost], return_when=asyncio.FIRST_COMPLETED)
    if not power.lost.done():
        life.result()
        return False
    life.cancel()
    await asyncio.wait([life])
    return True


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.KEY])
def test_a_crash_at_any_disk_operation_keeps_what_was_confirmed(ordering: Ordering) -> None:
    async def lives(crash_at: int, seed: int) -> bool:
        world = World(1000 * seed + crash_at, ordering)
        crashed = await _lose_power(world, crash_at)
        world.disk.crash()
        await world.check()
        return crashed

    for seed in range(effort()):
        crash_at = 1
        while run(lives(crash_at, seed)):
            crash_at += 1
        assert crash_at > 50


@async_test
async def test_opening_reads_the_snapshot_and_the_records_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_log, "_HISTORY_BYTES_MAX", 0)
    world = World(1)
    partition, state = await world.open()
    await world.publish(partition, 20)
    await world.work(state, 1, 5)
    await state._snapshot()
    assert state._log.start_offset == state._log.next_offset, "records before a snapshot are gone"
    await world.work(state, 1, 5)
    before = state.machines[1].view.depth
    world.disk.kill()
    partition, state = await world.open()
    assert state._log.start_offset < state._log.next_offset
    assert state.machines[1].view.depth == before
    assert state.machines[1].view.deliveries(Offset(8)) == 1
    await partition.close()


@async_test
async def test_a_snapshot_is_taken_by_itself_once_there_are_many_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_log, "_SNAPSHOT_BYTES", 2000)
    monkeypatch.setattr(state_log, "_HISTORY_BYTES_MAX", 0)
    world = World(1)
    partition, state = await world.open()
    await world.publish(partition, 500)
    for _ in range(60):
        await world.work(state, 1, 3)
    await turns()
    assert world.disk.exists(f"{FOLDER}/state/{SNAPSHOT}")
    assert state._log.start_offset > 0
    await partition.close()
    await world.check()


@async_test
async def test_records_stay_for_as_long_as_the_messages_that_they_tell_of() -> None:
    world = World(1)
    partition, state = await world.open()
    await world.publish(partition, 20)
    await world.work(state, 1, 5)
    await state._snapshot()
    assert state._log.start_offset == 0
    await partition.log.retain(RetentionLimits(messages=0))
    await world.clock.advance(1)
    await world.publish(partition, 1)
    await state._snapshot()
    assert state._log.start_offset == state._log.next_offset
    await partition.close()


@async_test
async def test_a_subscription_that_begins_before_the_log_keeps_no_other_from_its_messages() -> None:
    """As one whose pattern matches a topic that was restored: its log does not begin at 0."""
    world = World(1)
    partition, state = await world.open()
    await world.publish(partition, 5)
    await partition.log.retain(RetentionLimits(messages=0))
    assert partition.log.start_offset == 5
    state.add({3: DeliveryMachine(world.settings, Offset(0))})
    told: list[int] = []
    state.on_messages = {number: partial(told.append, number) for number in (*NUMBERS, 3)}
    await world.publish(partition, 2)
    await turns(5)
    assert set(told) == {*NUMBERS, 3}
    world.tried[3], world.acked[3] = set(), set()
    await world.work(state, 3, 2)
    assert world.acked[3] == {5}
    await partition.close()


@async_test
async def test_states_of_a_mirror_that_cannot_be_stored_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the records that follow do not fit what the log has, and nobody could open it again."""
    world = World(1)
    partition, state = await world.open()
    await world.publish(partition, 5)
    await state.catch_up(state.machines[1], 3)
    taken, records = state.machines[1].take(world.clock.time_us(), limit=3, lease_id=1)
    assert taken is not None
    await state.commit(1, records)

    async def refuse(*_: object) -> None:
        raise NotEnoughReplicas("1 of 2 replicas are in sync")

    with monkeypatch.context() as patch:
        patch.setattr(state._snapshots, "save", refuse)
        with pytest.raises(NotEnoughReplicas):
            await state.replace({1: DeliveryMachine(world.settings, Offset(0))}, lambda: True)

    blank = {number: DeliveryMachine(world.settings, Offset(0)) for number in NUMBERS}
    again = await partition.open_state(blank)
    world.lease_id = 1
    await world.work(again, 1, 5)
    assert world.tried[1] == {3}, "the first three are leased, and the last is given back"
    await partition.close()
    partition, state = await world.open()
    assert state.machines[1].view.state_of(Offset(0)) == again.machines[1].view.state_of(Offset(0))
    await partition.close()


@async_test
async def test_a_damaged_snapshot_is_made_good_from_the_records_that_stayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_log, "_WORTH_BYTES", 0)
    world = World(1)
    partition, state = await world.open()
    await world.publish(partition, 20)
    await world.work(state, 1, 5)
    before = state.machines[1].view.depth
    await partition.close()
    world.disk.flip_bit(f"{FOLDER}/state/{SNAPSHOT}", 9, 1)
    partition, state = await world.open()
    await state.catch_up_to(state.machines[1], Offset(20))
    assert state.machines[1].view.depth == before
    await partition.close()


@async_test
async def test_a_damaged_snapshot_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "_HISTORY_BYTES_MAX", 0)
    monkeypatch.setattr(state_log, "_WORTH_BYTES", 0)
    world = World(1)
    partition, state = await world.open()
    await world.publish(partition, 5)
    await world.work(state, 1, 5)
    await partition.close()
    world.disk.flip_bit(f"{FOLDER}/state/{SNAPSHOT}", 9, 1)
    partition, state = await world.open()
    await state.catch_up(state.machines[1], 5)
    assert state.machines[1].view.depth.ready == 5, "messages come again rather than get lost"
    await partition.close()


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.KEY])
@pytest.mark.parametrize("snapshot", [False, True])
@async_test
async def test_records_of_lost_messages_do_not_touch_those_that_take_their_offsets(
    ordering: Ordering, snapshot: bool
) -> None:
    lost = 0
    for seed in range(10):
        world = World(seed, ordering)
        world.durability = Durability.OS
        partition, state = await world.open()
        for _ in range(5):
            await world.publish(partition, 4)
        await world.work(state, 1, 20)
        if snapshot:
            await state._snapshot()
        world.disk.crash()
        partition, state = await world.open()
        end = partition.log.next_offset
        lost += 20 - end
        while partition.log.next_offset < 30:
            await world.publish(partition, 4)
        machine = state.machines[1]
        await state.catch_up(machine, 100)
        fresh = range(end, partition.log.next_offset)
        assert {machine.view.state_of(Offset(offset)) for offset in fresh} == {"ready"}
        assert {machine.view.deliveries(Offset(offset)) for offset in fresh} == {0}
        world.disk.kill()
        partition, state = await world.open()
        await state.catch_up(state.machines[1], 100)
        assert {state.machines[1].view.state_of(Offset(offset)) for offset in fresh} == {"ready"}
        await partition.close()
    assert lost, "some of these crashes lose messages"


# ---------------------------------------------------------------------- through the broker


async def received(broker: Broker, name: str = "jobs") -> tuple[Subscription, list[Portion]]:
    subscription = await broker.directory.get(name)
    portions = await subscription.receive(100, bytes_max=1 << 20, consumer="", visibility_s=None)
    return subscription, portions


async def ack(subscription: Subscription, portions: list[Portion]) -> list[Settlement]:
    stale, stored = subscription.settler.ack(
        [Settlement(subscription.settler.token(one), one.taken.offsets) for one in portions]
    )
    await asyncio.gather(*map(asyncio.shield, stored))
    return stale


def count(portions: list[Portion]) -> int:
    return sum(len(portion.taken.offsets) for portion in portions)


@async_test
async def test_messages_published_before_the_queue_is_used_again_are_all_delivered(
    tmp_path: Path,
) -> None:
    lost = 0
    for seed in range(8):
        disk, folder = SimulatedDisk(seed), tmp_path / str(seed)
        folder.mkdir()
        async with open_broker(folder, disk) as broker:
            settings = TopicSettings(durability=Durability.OS)
            await broker.subscriptions.create_queue("jobs", settings, {}, exist_ok=False)
            for _ in range(5):
                await publish(broker, "jobs", batch_of(b"old"))
            assert not await ack(*await received(broker))
            disk.crash()
        async with open_broker(folder, disk) as broker:
            for _ in range(5):
                await publish(broker, "jobs", batch_of(b"new"))
            disk.kill()
        async with open_broker(folder, disk) as broker:
            _, portions = await received(broker)
            stored = await payloads(broker, "jobs")
            lost += 5 - stored.count(b"old")
            assert count(portions) == 5
    assert lost


class PoweredGate(Gate):
    """A disk without power fails, to those who wait for it."""

    async def __call__(self, call: Callable[[], T], /) -> T:
        try:
            return await super().__call__(call)
        except SimulatedCrash as crash:
            raise OSError(errno.EIO, str(crash)) from crash


async def first_life(folder: Path, disk: SimulatedDisk, crash_after: int) -> list[str]:
    """A queue is used for the first time, and power is lost; what it had confirmed by then."""
    confirmed: list[str] = []
    with suppress(QuiverError, OSError, SimulatedCrash):
        async with open_broker(folder, disk, gate=PoweredGate()) as broker:
            await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
            disk.crash_at(disk.operation_count + crash_after)
            await publish(broker, "jobs", batch_of(b"one"))
            confirmed.append("one")
            assert not await ack(*await received(broker))
            confirmed.append("ack")
            await publish(broker, "jobs", batch_of(b"two"))
            confirmed.append("two")
    disk.crash()
    return confirmed


@pytest.mark.parametrize("seed", range(2 * effort()))
@async_test
async def test_a_queue_whose_power_is_cut_in_its_first_life_keeps_what_it_confirmed(
    tmp_path: Path, seed: int
) -> None:
    crash_after, confirmed, seen = 0, [""], set()
    while "two" not in confirmed:
        crash_after += 1
        folder, disk = tmp_path / str(crash_after), SimulatedDisk(1000 * crash_after + seed)
        folder.mkdir()
        confirmed = await first_life(folder, disk, crash_after)
        seen.add(len(confirmed))
        for _ in range(2):
            async with open_broker(folder, disk) as broker:
                stored = await payloads(broker, "jobs")
                assert {b"one", b"two"} & {one.encode() for one in confirmed} <= set(stored)
                info = await broker.subscriptions.describe("jobs")
                unfinished = info.ready + info.leased
                assert unfinished in {len(stored) - 1, len(stored)}
                assert "ack" not in confirmed or unfinished == len(stored) - 1
            disk.crash()
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("path", ["*/state/*", "*/0/0*"])
@async_test
async def test_a_queue_goes_on_after_a_failed_write(tmp_path: Path, path: str) -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        durable_leases = {"guarantee": "exactly-once"}
        await broker.subscriptions.create_queue(
            "jobs", TopicSettings(), durable_leases, exist_ok=False
        )
        await publish(broker, "jobs", batch_of(b"1", b"2", b"3"))
        subscription, portions = await received(broker)
        partition = await broker.publisher.partition("jobs", 0)
        fault = disk.fail("append", errno.ENOSPC, path=path, times=1)
        failing = (
            ack(subscription, portions)
            if "state" in path
            else publish(broker, "jobs", batch_of(b"4"))
        )
        with pytest.raises(QuiverError):
            await failing
        assert fault.hits == 1
        waiting = asyncio.create_task(subscription.wait(20))
        for _ in range(3):
            await clock.advance(1)
            await turns()
        await asyncio.wait_for(waiting, 30)
        await publish(broker, "jobs", batch_of(b"5"))
        again, more = await received(broker)
        assert again is subscription
        kept = await broker.publisher.partition("jobs", 0) is partition
        assert kept == ("state" in path), "a good log is never opened twice"
        assert count(more) == 1
        assert await ack(again, portions + more) == []
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        assert count((await received(broker))[1]) == 0


@async_test
async def test_a_lease_shares_the_sync_of_the_ack_that_follows(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
        await publish(broker, "jobs", batch_of(b"1", b"2"))
        subscription, portions = await received(broker)
        state = (await broker.publisher.partition("jobs", 0)).state
        assert state is not None
        before = state._log.staged_offset
        await ack(subscription, portions)
        assert state._log.next_offset == before + 1


@async_test
async def test_a_lease_that_nothing_follows_is_stored_all_the_same(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
        await publish(broker, "jobs", batch_of(b"1"))
        await received(broker)
        state = (await broker.publisher.partition("jobs", 0)).state
        assert state is not None
        await until(lambda: state._log.next_offset == 1)


@async_test
async def test_condemned_messages_are_buried_after_a_restart(tmp_path: Path) -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await broker.subscriptions.create_queue(
            "jobs", TopicSettings(), {"max_deliveries": 1}, exist_ok=False
        )
        await publish(broker, "jobs", batch_of(b"1"))
        subscription, (portion,) = await received(broker)
        disk.fail("create", errno.EIO, path="*dlq*", times=None)
        disk.fail("make_folder", errno.EIO, path="*dlq*", times=None)
        settlement = Settlement(subscription.settler.token(portion), portion.taken.offsets)
        await subscription.settler.nack([settlement], delay_s=None, error="bad")
        await turns()
        assert (await broker.subscriptions.describe("jobs")).dead == 1
    disk.heal()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await received(broker)
        await broker.directory.close()
        assert await payloads(broker, "jobs.dlq") == [b"1"]


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE])
@async_test
async def test_a_receive_that_is_cancelled_gives_everything_back(
    tmp_path: Path, guarantee: Guarantee
) -> None:
    gate = Gate()
    async with open_broker(tmp_path, SimulatedDisk(1), gate=gate) as broker:
        settings = TopicSettings(partitions=3)
        await broker.subscriptions.create_queue(
            "jobs", settings, {"guarantee": guarantee.value}, exist_ok=False
        )
        for index in range(3):
            await publish(broker, "jobs", batch_of(b"1", b"2"), index)
        subscription = await broker.directory.get("jobs")
        for steps in range(12):
            receiving = asyncio.create_task(
                subscription.receive(100, bytes_max=1 << 20, consumer="", visibility_s=None)
            )
            if steps % 2:
                gate.shut()
            for _ in range(steps):
                await asyncio.sleep(0)
            receiving.cancel()
            gate.open()
            with suppress(asyncio.CancelledError):
                subscription.requeue(await receiving)
            _, portions = await received(broker)
            assert count(portions) == 6
            assert all(set(portion.taken.deliveries) == {1} for portion in portions)
            subscription.requeue(portions)


@async_test
async def test_one_settlement_that_is_cancelled_leaves_the_others_alone(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with open_broker(tmp_path, SimulatedDisk(1), gate=gate) as broker:
        await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
        await publish(broker, "jobs", batch_of(b"1", b"2"))
        subscription, (portion,) = await received(broker)
        token = subscription.settler.token(portion)
        await turns()
        gate.shut()
        one, other = (
            asyncio.create_task(
                subscription.settler.extend(
                    [Settlement(token, BitMap64([offset]))], visibility_s=60
                )
            )
            for offset in (0, 1)
        )
        await turns()
        one.cancel()
        await turns()
        gate.open()
        assert await other == []


@async_test
async def test_an_ack_that_is_repeated_is_confirmed_no_sooner_than_the_first(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with open_broker(tmp_path, SimulatedDisk(1), gate=gate) as broker:
        await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
        await publish(broker, "jobs", batch_of(b"1"))
        subscription, (portion,) = await received(broker)
        settlement = Settlement(subscription.settler.token(portion), portion.taken.offsets)
        await turns()
        gate.shut()
        for _ in range(2):
            stale, stored = subscription.settler.ack([settlement])
            await turns()
            assert stale == []
            assert [future.done() for future in stored] == [False]
        gate.open()
        await asyncio.gather(*stored)
        assert subscription.settler.ack([settlement]) == ([], [])


@async_test
async def test_what_follows_on_the_disk_is_at_hand_before_it_is_asked_for(tmp_path: Path) -> None:
    disk, gate = SimulatedDisk(1), Gate()
    async with open_broker(tmp_path, disk) as broker:
        await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
        for _ in range(2):
            await publish(broker, "jobs", batch_of(*[bytes(700_000)] * 2))
    async with open_broker(tmp_path, disk, gate=gate) as broker:
        subscription = await broker.directory.get("jobs")
        for offset in range(2):
            (portion,) = await _receive_one(subscription)
            assert list(portion.taken.offsets) == [offset]
            await turns()
        gate.shut()
        receiving = asyncio.create_task(_receive_one(subscription))
        await turns()
        assert receiving.done(), "the disk is not asked"
        (portion,) = await receiving
        assert list(portion.taken.offsets) == [2]


async def _receive_one(subscription: Subscription) -> list[Portion]:
    return await subscription.receive(1, bytes_max=1 << 20, consumer="", visibility_s=None)


@pytest.mark.parametrize("how", ["nack", "reject"])
@async_test
async def test_nothing_is_a_dead_letter_before_that_is_durable(tmp_path: Path, how: str) -> None:
    """Until then another leader may deliver it again, and a consumer may finish it."""
    gate = Gate()
    async with open_broker(tmp_path, SimulatedDisk(1), gate=gate) as broker:
        await broker.subscriptions.create_queue(
            "jobs", TopicSettings(), {"max_deliveries": 1}, exist_ok=False
        )
        await publish(broker, "jobs", batch_of(b"1"))
        subscription, (portion,) = await received(broker)
        (delivery,) = subscription.deliveries.values()
        bury, buried = delivery._bury, []

        async def seen(*what: Any) -> None:
            buried.append(what)
            await bury(*what)

        delivery._bury = seen
        await turns()
        gate.shut()
        settlement = Settlement(subscription.settler.token(portion), portion.taken.offsets)
        settled = asyncio.ensure_future(
            subscription.settler.reject([settlement], error="bad")
            if how == "reject"
            else subscription.settler.nack([settlement], delay_s=None, error="bad")
        )
        await turns()
        assert buried == []
        assert not settled.done()
        gate.open()
        await settled
        assert (await broker.subscriptions.describe("jobs")).leased == 0
        await broker.directory.close()
        assert await payloads(broker, "jobs.dlq") == [b"1"]
        assert len(buried) == 1


async def used_state(broker: Broker) -> tuple[DeliveryStateLog, int]:
    """The state of a queue's partition, and the number of the subscription that uses it."""
    await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
    await publish(broker, "jobs", batch_of(b"1"))
    await received(broker)
    state = (await broker.publisher.partition("jobs", 0)).state
    assert state is not None
    (number,) = state.machines
    return state, number


@async_test
async def test_a_state_that_the_log_refused_once_records_nothing_more(tmp_path: Path) -> None:
    """What it knows is not in the log: what follows from that must not be there either."""
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        state, number = await used_state(broker)
        log: Any = state._log
        submit = log.submit

        def refuse(*_: Any, **__: Any) -> Any:
            raise NotEnoughReplicas("1 of 3 replicas are in sync")

        log.submit = refuse
        with pytest.raises(NotEnoughReplicas):
            await state.commit(number, [DeadLetterPending(BitMap64([0]).serialize(), 1, "bad")])
        log.submit = submit
        end = log.staged_offset
        with pytest.raises(LogClosed):
            await state.commit(number, [DeadLettered(BitMap64([0]).serialize())])
        assert log.staged_offset == end


@async_test
async def test_a_state_that_was_closed_records_nothing_more(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        state, number = await used_state(broker)
        log: Any = state._log

        async def stays_open() -> None:
            """As a replicated log does, which is the replica's to close."""

        closed, log.close = log.close, stays_open
        await state.close()
        end = log.staged_offset
        with pytest.raises(LogClosed):
            await state.commit(number, [DeadLettered(BitMap64([0]).serialize())])
        assert log.staged_offset == end
        await closed()
