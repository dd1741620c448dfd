"""A data folder that an earlier version wrote is taken up by every later version, as it was left."""

from __future__ import annotations

import asyncio
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

import quiver
from quiver import AsyncClient
from quiver.config import Security
from quiver.errors import (
    PermissionDenied,
    StaleReceipt,
    TopicNotFound,
    Unauthenticated,
)
from quiver.model.ids import Microseconds
from quiver.model.message import time_us_of
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.golden.content_node_v1 import FAR, ID, KEYS, NUMBERED, opened
from tests.golden.described import described, missing
from tests.golden.generate_node_v1 import FOLDER, HOLD_S, Golden, node
from tests.integration.edge_node import edge_test, running

GOLDEN = msgspec.json.decode((FOLDER / "described.json").read_bytes(), type=Golden)
NOTES = GOLDEN.notes
DAY_US = 86_400 * 1_000_000
WORK = GOLDEN.described["subscriptions"]["work"]


@pytest.fixture(params=["stopped", "killed"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a node that closed in order, and of one that was killed."""
    with tarfile.open(FOLDER / f"{request.param}.tar.gz") as packed:
        packed.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


@pytest.fixture
def clock() -> ManualClock:
    """The time at which the folder was left."""
    return ManualClock(start_us=Microseconds(GOLDEN.time_us))


@async_test
async def test_everything_is_as_it_was(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        assert missing(GOLDEN.described, await described(client)) == []


@async_test
async def test_the_folder_says_from_now_on_which_version_uses_it(
    data: Path, clock: ManualClock
) -> None:
    assert not (data / "version.json").exists()
    async with node(data, clock) as client:
        assert await client.list_topics()
        found = msgspec.json.decode((data / "version.json").read_bytes())
    assert found["quiver"] == quiver.__version__
    assert set(found["formats"].values()) == {1}, "it may go back to the version that wrote it"


@async_test
async def test_everything_is_as_it_was_once_this_version_has_written_it(
    data: Path, clock: ManualClock
) -> None:
    for _ in range(2):
        async with node(data, clock) as client:
            await client.publish("last", b"new")
    async with node(data, clock) as client:
        await client.delete_topic("last")
        old = {**GOLDEN.described["topics"]}
        del old["last"]
        assert missing({**GOLDEN.described, "topics": old}, await described(client)) == []


@async_test
async def test_receipts_are_good_still(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        await client.ack("work", NOTES.held[:1])
        await client.nack("work", NOTES.held[1:], error="given up")
        await _reached(client, clock, (WORK["ready"] + 1, 2, 0))
        await client.ack("work", NOTES.acked)  # again: it changes nothing
        assert await _counts(client) == (WORK["ready"] + 1, 2, 0)


@async_test
async def test_leases_and_delays_end_when_they_were_to_end(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        ready = WORK["ready"]
        await _reached(client, clock, (ready, 2, 2))
        await clock.advance(HOLD_S)  # one lease, and the delay of the nack
        await _reached(client, clock, (ready + 2, 1, 1))
        await clock.advance(HOLD_S)  # the lease that was extended; what is left is scheduled
        await _reached(client, clock, (ready + 3, 1, 0))
        with pytest.raises(StaleReceipt):
            await client.ack("work", NOTES.held)
        messages = await client.receive("work", 100)
        assert messages[0].payload == b"urgent"
        counts = {message.payload.decode(): message.deliveries for message in messages}
        again = {"work-2": 2, "work-5": 2, "work-6": 2}
        assert counts == {"urgent": 1, "work-7": 1, "work-8": 1, "work-9": 1, **again}


@async_test
async def test_what_was_scheduled_is_delivered_and_what_was_cancelled_is_not(data: Path) -> None:
    later = ManualClock(start_us=Microseconds(time_us_of(FAR) + 1))
    async with node(data, later) as client:
        payloads = [message.payload for message in await client.receive("work", 100)]
        assert b"scheduled" in payloads
        assert b"cancelled" not in payloads
        status = await client.message_status("work", NOTES.cancelled)
        assert [one.state for one in status.subscriptions] == ["finished"], (
            "the log does not say how"
        )


@async_test
async def test_dead_letters_go_back_to_their_queue(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        (first, _) = await client.peek("work.dlq")
        assert first.payload == b"work-3"
        stored = {one.payload: one.id async for one in client.read("work").messages()}
        assert await client.redrive("work") == 2
        returned = {one.payload: one for one in await client.receive("work", 100)}
        for payload in (b"work-3", b"work-4"):
            assert returned[payload].identity == stored[payload] != returned[payload].id


@async_test
async def test_a_named_producer_goes_on_where_it_was(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        async with client.producer("divided", name="import") as producer:
            for number in range(NUMBERED + 5):
                await producer.send(b"%d" % number, key=KEYS[number % 16], sequence=number)
        stored = [
            int(message.payload)
            async for message in client.read("divided").messages()
            if message.payload != b"once"
        ]
        assert sorted(stored) == list(range(NUMBERED + 5))


@async_test
async def test_a_named_producer_fences_the_one_before(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        assert await opened(client) == (NOTES.producer_id, NOTES.producer_epoch + 1)


@async_test
async def test_a_message_with_a_known_id_is_not_stored_again(
    data: Path, clock: ManualClock
) -> None:
    ids = [f"id-{number}" for number in range(8)]
    async with node(data, clock) as client:
        again = await client.publish("orders", b"again", key="customer-1", dedup_id=ID)
        assert again.duplicate
        assert again.id in _ids("orders")
        assert all([(await client.publish("divided", b"2", dedup_id=one)).duplicate for one in ids])
    async with node(data, ManualClock(start_us=Microseconds(GOLDEN.time_us + DAY_US))) as client:
        new = await client.publish("orders", b"again", key="customer-1", dedup_id=ID)
        assert not new.duplicate


@async_test
async def test_a_group_goes_on_where_it_was(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        assert await client.heartbeat("billing", "eve") == ["orders/0", "orders/1", "orders/2"]
        first: dict[str, int] = {}
        while messages := await client.receive("billing", 100, consumer="eve"):
            for message in messages:
                name = f"orders/{message.partition}"
                first[name] = min(first.get(name, message.offset), message.offset)
            await client.ack("billing", messages)
        pending = GOLDEN.described["subscriptions"]["billing"]["pending"]
        assert first == {name: one["states"]["ready"][0] for name, one in pending.items()}


@async_test
async def test_keys_stay_in_order_over_the_splits(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        await clock.advance(HOLD_S)
        got: dict[bytes, list[int]] = defaultdict(list)
        while messages := await client.receive("by-key", 100):
            for message in messages:
                if message.key is not None:
                    got[message.key].append(int(message.payload))
            await client.ack("by-key", messages)
    assert got
    for numbers in got.values():
        assert numbers == sorted(numbers)
    partitions = GOLDEN.described["topics"]["divided"]["partitions"]
    numbered = [
        state["by-key"]["state"]
        for partition in partitions
        for key, state in zip(partition["columns"]["key"], partition["states"], strict=True)
        if key is not None
    ]
    assert sum(map(len, got.values())) == len(numbered) - numbered.count("acknowledged")


@async_test
async def test_what_is_made_now_gets_numbers_of_its_own(data: Path, clock: ManualClock) -> None:
    async with node(data, clock) as client:
        with pytest.raises(TopicNotFound):
            await client.describe_topic("gone")
        taken = {topic["number"] for topic in GOLDEN.described["topics"].values()}
        assert (await client.create_topic("gone")).number > max(taken)
        joined = await client.create_topic("later.on")
        await client.publish("later.on", b"x", priority=9, headers={"region": "eu"})
        messages = await client.receive("regional", 100)
        assert joined.number in {message.topic_number for message in messages}


@edge_test
async def test_tokens_count_or_do_not(data: Path, clock: ManualClock) -> None:
    async with running(data.parent, clock=clock, security=Security(authentication=True)) as run:
        url = f"quiver://{run.address}"
        async with AsyncClient(url, token=NOTES.token) as client:
            await client.publish("orders", b"new")
            assert await client.receive("work", 1)
            with pytest.raises(PermissionDenied):
                await client.publish("plain", b"new")
        async with AsyncClient(url, token=NOTES.revoked) as client:
            with pytest.raises(Unauthenticated):
                await client.publish("orders", b"new")
    assert not (data / "admin.token").exists(), "there are tokens: nobody needs a first one"


def test_a_node_that_starts_years_later_has_lost_nothing(data: Path) -> None:
    with quiver.open(data) as client:
        for name, topic in GOLDEN.described["topics"].items():
            found = [message.id for message in client.read(name).messages()]
            assert sorted(found) == sorted(_ids(name)), topic
        messages = client.receive("work", 100)
        assert len(messages) == WORK["ready"] + 3
        client.ack("work", messages)


async def _reached(client: AsyncClient, clock: ManualClock, counts: tuple[int, int, int]) -> None:
    """Wait until so many messages of ``work`` are ready, delayed and leased."""
    while await _counts(client) != counts:
        await clock.advance(1)
        await asyncio.sleep(0.01)


async def _counts(client: AsyncClient) -> tuple[int, int | None, int | None]:
    """How many messages of ``work`` are ready, delayed and leased."""
    info = await client.describe_subscription("work")
    return (info.ready or 0) + (info.unseen or 0), info.delayed, info.leased


def _ids(topic: str) -> list[Any]:
    partitions = GOLDEN.described["topics"][topic]["partitions"]
    return [one for partition in partitions for one in partition["ids"]]
