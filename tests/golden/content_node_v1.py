"""What is in ``node-v1`` and ``cluster-v1``: topics, queues, subscriptions, producers and tokens.

Every kind of change that a node writes down is in here once: messages in each state of a queue, a
group, a split, a named producer, ids of messages, settings that were altered, things that were
deleted. Times are far away or none, so that neither retention nor a schedule changes anything later.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from quiver import AsyncClient, Retention
from quiver.client.consumer.received import ReceivedMessage
from quiver.model.schema import COLUMNS
from quiver.protocol.publish import OpenProducer, ProducerOpened

FAR = datetime(2200, 1, 1, tzinfo=UTC)
DAY = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
FOR_EVER = Retention(age=None)
KEYS = [f"key-{number}" for number in range(16)]
NUMBERED = 48
"""How many messages the producer named ``import`` has sent, numbered from 0."""
ID = "order-1"
"""The dedup id of a message in ``orders``; those in ``divided`` are ``id-0`` to ``id-7``."""


class Notes(msgspec.Struct):
    """What only whoever wrote the data knows: receipts, tokens, ids."""

    held: list[str] = []
    """Receipts of messages of ``work`` that are leased to ``ann``."""
    acked: list[str] = []
    """Receipts of messages of ``work`` that were acknowledged."""
    token: str = ""
    """May publish to ``orders`` and consume from ``work``."""
    revoked: str = ""
    """A token that counts no more."""
    cancelled: str = ""
    """The id of a scheduled message of ``work`` that is never to be delivered."""
    producer_id: int = 0
    producer_epoch: int = 0
    """Of whoever was the producer named ``import`` last."""
    number: int = 0
    """Of the topic that was made last."""


async def fill(client: AsyncClient, hold_s: float) -> Notes:
    """Write all of it. Leases, and delays after a nack, last ``hold_s``."""
    notes = Notes()
    await _orders(client)
    await _divided(client, hold_s)
    await _work(client, notes, hold_s)
    await _plain(client)
    await _tokens(client, notes)
    notes.producer_id, notes.producer_epoch = await opened(client)
    notes.number = (await client.create_topic("last", retention=FOR_EVER)).number
    return notes


async def opened(client: AsyncClient) -> tuple[int, int]:
    """Become the producer named ``import``: its id and epoch."""
    _, (reply, _) = await client.cluster.call(OpenProducer(name="import"), repeatable=False)
    assert isinstance(reply, ProducerOpened)
    return reply.producer_id, reply.producer_epoch


async def _orders(client: AsyncClient) -> None:
    """A topic with every setting and every column, and subscriptions with every setting."""
    await client.create_topic(
        "orders",
        partitions=3,
        durability="interval",
        sync_interval_ms=20,
        retention=Retention(age=None, bytes=1 << 40, messages=1_000_000),
        compression="zstd",
        message_bytes_max=100_000,
        acks="leader",
        segment_bytes=1 << 20,
        segment_age_s=3600,
        dedup_window="1d",
    )
    await client.create_subscription(
        "billing",
        ["orders"],
        start="earliest",
        ordering="partition",
        session_timeout="20s",
        visibility="5m",
    )
    await client.create_subscription(
        "regional",
        ["o*", "later.*"],
        start="earliest",
        filter="headers.region = 'eu' and priority >= 5",
        guarantee="at-most-once",
    )
    await client.create_subscription(
        "fair",
        ["orders"],
        start="earliest",
        fairness="headers.region",
        ageing="5m",
        max_deliveries=7,
        dead_letter="graveyard",
        backoff={"min": "1s", "max": "1m", "factor": 3.0},
        on_disconnect="keep",
        guarantee="exactly-once",
    )
    await client.publish_many("orders", _order_rows())
    await client.publish("orders", {"id": 99}, key="customer-1")
    for member in ("ann", "bob"):
        await client.heartbeat("billing", member)
    for member in ("ann", "bob"):
        await client.ack("billing", await client.receive("billing", 2, consumer=member))
    await client.receive("regional", 1)
    await client.alter_subscription("billing", visibility="10m")
    await client.alter_topic("orders", retention={"bytes": 1 << 41}, segment_age_s=7200)


def _order_rows() -> pa.RecordBatch:
    rows = 12
    columns = {
        "key": [b"customer-%d" % (row % 5) for row in range(rows)],
        "payload": [b'{"id": %d}' % row for row in range(rows - 1)] + [b"\x00\xff"],
        "headers": [[("region", "eu" if row % 2 else "us"), ("empty", "")] for row in range(rows)],
        "event_time": [DAY.replace(minute=row) for row in range(rows)],
        "priority": [row % 10 for row in range(rows)],
        "deliver_at": [None] * (rows - 1) + [FAR],
        "expires_at": [FAR] + [None] * (rows - 1),
        "dedup_id": [None, ID] + ["ünïcode ✓"] + [None] * (rows - 3),
    }
    schema = pa.schema([field for field in COLUMNS if field.name in columns])
    return pa.RecordBatch.from_pydict(columns, schema=schema)


async def _divided(client: AsyncClient, hold_s: float) -> None:
    """A topic that was split twice, a producer that numbers its messages, and leases on keys."""
    await client.create_topic("divided", partitions=2, retention=FOR_EVER, dedup_window="1d")
    await client.create_subscription(
        "by-key", ["divided"], start="earliest", ordering="key", visibility=hold_s
    )
    for number in range(8):
        await client.publish("divided", b"once", dedup_id=f"id-{number}")
    await _numbered(client, 0, NUMBERED // 2)
    child = await client.split_partition("divided", 0)
    await client.split_partition("divided", child.index)
    await _numbered(client, NUMBERED // 2, NUMBERED)
    await client.ack("by-key", await client.receive("by-key", 6, consumer="ann"))
    assert len(await client.receive("by-key", 2, consumer="bob")) == 2


async def _numbered(client: AsyncClient, first: int, end: int) -> None:
    async with client.producer("divided", name="import") as producer:
        for number in range(first, end):
            await producer.send(b"%d" % number, key=KEYS[number % 16], sequence=number)


async def _work(client: AsyncClient, notes: Notes, hold_s: float) -> None:
    """A queue with messages in every state."""
    await client.create_queue(
        "work",
        retention=FOR_EVER,
        visibility=hold_s,
        max_deliveries=2,
        backoff={"min": 0},
    )
    for number in range(7):
        await client.publish("work", b"work-%d" % number, headers={"number": str(number)})
    done, done_too, tried, *failing, held, held_longer = await _received(client, 7)
    await client.ack("work", [done, done_too])
    await tried.nack(delay=hold_s, error="not today")
    await client.extend("work", [held_longer], 2 * hold_s)
    notes.acked = [done.receipt, done_too.receipt]
    notes.held = [held.receipt, held_longer.receipt]
    await client.nack("work", failing, error="it is broken")
    await client.nack("work", await _received(client, 2), error="it is still broken")
    for number in range(7, 10):
        await client.publish("work", b"work-%d" % number, headers={"number": str(number)})
    await client.publish("work", b"urgent", priority=9)
    await client.give_back("work", await _received(client, 1))
    rows = {"payload": [b"scheduled", b"cancelled"], "deliver_at": [FAR, FAR]}
    scheduled = await client.publish_many("work", pa.RecordBatch.from_pydict(rows))
    assert scheduled[1].id is not None
    notes.cancelled = scheduled[1].id
    assert await client.cancel("work", notes.cancelled) == 1
    while (await client.describe_subscription("work")).dead != 2:  # noqa: ASYNC110 - a node's doing
        await asyncio.sleep(0.01)
    await client.alter_topic("work.dlq", retention={"age": None})


async def _received(client: AsyncClient, count: int) -> list[ReceivedMessage]:
    messages = await client.receive("work", count, consumer="ann")
    assert len(messages) == count
    return messages


async def _plain(client: AsyncClient) -> None:
    """Subscriptions that were moved about, and what was deleted."""
    await client.create_topic("plain", retention=FOR_EVER)
    for name in ("replayed", "purged", "ended"):
        await client.create_subscription(name, ["plain"], start="earliest")
    for number in range(6):
        await client.publish("plain", b"plain-%d" % number, headers={"number": str(number)})
    await client.ack("replayed", await client.receive("replayed", 6))
    await client.seek("replayed", 2)
    assert await client.purge("purged", filter="headers.number = '3'") == 1
    await client.delete_subscription("ended")
    await client.create_topic("gone")
    await client.publish("gone", b"gone")
    await client.delete_topic("gone")


async def _tokens(client: AsyncClient, notes: Notes) -> None:
    _, token = await client.create_token("shop", ["publish:orders", "consume:queue:work"])
    assert token is not None
    notes.token = token
    info, revoked = await client.create_token("old", ["publish:*", "consume:*", "admin:*"])
    assert revoked is not None
    notes.revoked = revoked
    await client.revoke_token(info.id)
    await client.create_token("robot", ["consume:orders"], certificate=True)
