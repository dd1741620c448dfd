"""A redrive whose caller leaves: a letter that is being sent is also acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quiver.broker.broker import Broker
from quiver.broker.subscription.subscription import Subscription
from quiver.model.topic import TopicSettings
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import Gate, batch_of, open_broker, payloads, publish, until


@async_test
async def test_a_letter_that_is_being_sent_when_the_caller_leaves_is_acknowledged(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with open_broker(tmp_path, SimulatedDisk(0), gate=gate) as broker:
        await _with_one_letter(broker)
        redrive = await _begin(broker, gate)
        redrive.cancel()
        with pytest.raises(asyncio.CancelledError):
            await redrive
        gate.open()
        letters = await broker.directory.get("jobs.dlq")
        await until(lambda: not _left(letters))
        assert await payloads(broker, "again") == [b"letter"]


def _left(letters: Subscription) -> int:
    return letters.unseen + letters.depth.ready + letters.depth.leased


async def _with_one_letter(broker: Broker) -> None:
    await broker.topics.create("again", TopicSettings())
    await broker.subscriptions.create_queue("jobs", TopicSettings(), {}, exist_ok=False)
    await publish(broker, "jobs.dlq", batch_of(b"letter"))


async def _begin(broker: Broker, gate: Gate) -> asyncio.Task[object]:
    """A redrive that has taken the letter and waits for the disk."""
    await broker.directory.get("jobs")
    await broker.publisher.partition("again", 0)
    letters = await broker.directory.get("jobs.dlq")
    gate.shut()
    redrive: asyncio.Task[object] = asyncio.create_task(
        broker.dead_letters.redrive(
            "jobs", to="again", condition=None, dry_run=False, messages_max=10
        )
    )
    await until(lambda: gate.waiting > 0 and letters.depth.leased == 1)
    return redrive
