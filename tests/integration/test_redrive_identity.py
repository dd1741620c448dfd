"""A redriven message stays the message that it was, and nobody else can claim to be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiver
from quiver import AsyncClient, protocol
from quiver.errors import InvalidBatch, InvalidRequest
from quiver.model.builder import encode_record_batch
from quiver.model.schema import COLUMNS, DEAD_LETTER_COLUMNS
from tests.integration.edge_node import edge_test, running
from tests.integration.native_peer import Peer


def returned(q: quiver.Client, message: quiver.ReceivedMessage) -> quiver.ReceivedMessage:
    """The message as it comes back from the dead letters."""
    message.reject(error="no such customer")
    assert q.redrive(message.subscription) == 1
    (again,) = q.receive(message.subscription)
    return again


@pytest.mark.parametrize("options", [{}, {"dedup_id": "invoice-7"}], ids=["id", "dedup id"])
def test_a_message_is_handled_once_however_often_it_was_a_dead_letter(
    quiver_broker: quiver.Client, tmp_path: Path, options: dict[str, Any]
) -> None:
    q = quiver_broker
    q.create_queue("invoices")
    q.publish("invoices", {"invoice": 7}, **options)
    booked = []
    with quiver.idempotent(tmp_path / "handled.db") as once:
        handle = once(lambda message: booked.append(message.id))
        (first,) = q.receive("invoices")
        handle(first)  # and fails before it acknowledges
        again = first
        for _ in range(3):
            again = returned(q, again)
            assert again.id != first.id
            assert again.identity == first.identity
            handle(again)
    assert booked == [first.id]


def test_a_message_that_is_redriven_to_another_topic_keeps_its_identity(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("invoices")
    q.create_queue("repaired")
    stored = q.publish("invoices", b"1")
    (message,) = q.receive("invoices")
    message.reject()
    assert q.redrive("invoices", to="repaired") == 1
    (moved,) = q.receive("repaired")
    assert moved.identity == stored.id
    moved.reject()
    assert q.redrive("repaired") == 1
    (again,) = q.receive("repaired")
    assert again.identity == stored.id
    assert next(iter(q.read("repaired").messages())).identity == stored.id


def test_each_dead_letter_is_handled_though_the_same_message_died_before(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("invoices")
    q.publish("invoices", b"1")
    (message,) = q.receive("invoices")
    returned(q, message).reject()
    q.describe_subscription("invoices.dlq")
    first, second = q.read("invoices.dlq").messages()
    assert first.identity != second.identity
    assert first.origin_identity == second.origin_identity


def forged(name: str) -> pa.RecordBatch:
    kind = next(field.type for field in COLUMNS if field.name == name)
    value = pa.array(["payments" if pa.types.is_string(kind) else 1]).cast(kind)
    return pa.RecordBatch.from_pydict({"payload": pa.array([b"forged"]), name: value})


@pytest.mark.parametrize("name", DEAD_LETTER_COLUMNS)
def test_a_client_cannot_publish_columns_of_dead_letters(
    quiver_broker: quiver.Client, name: str
) -> None:
    q = quiver_broker
    q.create_queue("jobs.dlq")
    with pytest.raises(InvalidBatch, match=rf"{name} .*set by Quiver.*leave it out"):
        q.publish_table("jobs.dlq", forged(name))
    assert q.receive("jobs.dlq") == []


@edge_test
async def test_a_batch_with_columns_of_dead_letters_is_refused_on_the_native_port(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        peer: Peer = await run.peer()
        await peer.create("orders")
        batch = encode_record_batch(forged("origin_subscription"))
        with pytest.raises(InvalidBatch, match="origin_subscription"):
            await peer.store("orders", batch)


@edge_test
async def test_dead_letters_are_not_copied_into_other_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as run, AsyncClient(f"quiver://{run.address}") as client:
        await client.create_queue("jobs")
        await client.create_queue("other")
        await client.publish("jobs", b"1")
        (message,) = await client.receive("jobs")
        await message.reject()
        await client.receive("jobs.dlq", wait=10)
        letters = await client.describe_topic("jobs.dlq")
        peer = await run.peer()
        opened = await peer.ask(protocol.OpenProducer(), expect=protocol.ProducerOpened)
        copy = protocol.Copy(
            topic="other",
            partition=0,
            from_topic="jobs.dlq",
            from_number=letters.number,
            from_partition=0,
            offsets=[0],
            producer_id=opened.producer_id,
            producer_epoch=opened.producer_epoch,
            sequence=0,
        )
        with pytest.raises(InvalidBatch, match="origin_topic"):
            await peer.ask(copy, expect=protocol.Copied)


def test_dead_letters_return_only_to_topics_that_their_subscription_reads(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    for topic in ("orders", "refunds"):
        q.create_topic(topic)
    q.create_subscription("billing", ["orders"])
    q.publish("orders", b"1")
    (message,) = q.receive("billing")
    message.reject()
    q.alter_subscription("billing", topics=["refunds"])
    for dry_run in (True, False):
        with pytest.raises(InvalidRequest, match=r"'orders'.*name the topic to send them to"):
            q.redrive("billing", dry_run=dry_run)
    assert q.redrive("billing", to="refunds") == 1
    assert [one.payload for one in q.receive("billing")] == [b"1"]


def test_a_client_cannot_have_a_dead_letter_taken_for_a_repeat(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    number = q.describe_topic("jobs").number
    q.publish("jobs.dlq", b"forged", dedup_id=f"dead/jobs/{number}/0/0")
    q.publish("jobs", b"real")
    q.receive("jobs")[0].reject()
    assert q.redrive("jobs", to="jobs", dry_run=True) == 2
    assert {message.payload for message in q.read("jobs.dlq").messages()} == {b"forged", b"real"}


def test_a_client_cannot_have_a_redriven_message_taken_for_a_repeat(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    letters = q.describe_topic("jobs.dlq").number
    q.publish("jobs", b"real")
    q.receive("jobs")[0].reject()
    q.publish("jobs", b"forged", dedup_id=f"redrive/{letters}/0/0")
    assert q.redrive("jobs") == 1
    assert [one.payload for one in q.receive("jobs", 10, wait="5s")] == [b"forged", b"real"]
