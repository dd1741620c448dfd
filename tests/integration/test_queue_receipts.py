"""Receipts that are forged, cut, of another queue or of another time do no harm."""

from __future__ import annotations

import base64
import time

import pyarrow as pa
import pytest

import quiver
from quiver.errors import InvalidReceipt, StaleReceipt


@pytest.fixture
def q(quiver_broker: quiver.Client) -> quiver.Client:
    for name in ("jobs", "others"):
        quiver_broker.create_queue(name, visibility="1h")
        quiver_broker.publish_many(name, [b"1", b"2", b"3"])
    return quiver_broker


def test_a_forged_receipt_settles_nothing_not_even_its_neighbours(q: quiver.Client) -> None:
    messages = q.receive("jobs")
    lease, offset = messages[0].receipt.split(".")
    raw = bytearray(base64.urlsafe_b64decode(lease + "=="))
    for position in range(len(raw)):
        wrong = raw.copy()
        wrong[position] ^= 1
        forged = base64.urlsafe_b64encode(bytes(wrong)).decode().rstrip("=") + "." + offset
        with pytest.raises(InvalidReceipt):
            q.ack("jobs", [messages[1].receipt, forged])
    assert q.describe_subscription("jobs").leased == 3
    q.ack("jobs", messages)


@pytest.mark.parametrize("receipt", ["", ".", "abc", "abc.1", "é.1", "a.b.c", "x" * 10_000])
def test_what_is_not_a_receipt_is_refused(q: quiver.Client, receipt: str) -> None:
    with pytest.raises(InvalidReceipt):
        q.ack("jobs", [receipt])
    with pytest.raises(InvalidReceipt):
        q.ack("jobs", pa.array([receipt]))


@pytest.mark.parametrize("offset", ["", "-1", "x", "1.5", str(1 << 64)])
def test_a_receipt_needs_a_proper_offset(q: quiver.Client, offset: str) -> None:
    lease = q.receive("jobs")[0].receipt.split(".")[0]
    with pytest.raises(InvalidReceipt):
        q.ack("jobs", [f"{lease}.{offset}"])


def test_a_receipt_that_was_cut_is_refused(q: quiver.Client) -> None:
    receipt = q.receive("jobs")[0].receipt
    for length in range(len(receipt)):
        with pytest.raises(InvalidReceipt):
            q.ack("jobs", [receipt[:length]])


def test_a_receipt_of_another_queue_is_refused(q: quiver.Client) -> None:
    messages = q.receive("others")
    with pytest.raises(InvalidReceipt, match="jobs"):
        q.ack("jobs", messages)
    assert q.describe_subscription("others").leased == 3


def test_a_receipt_of_a_deleted_queue_is_refused_by_a_new_one_of_its_name(
    q: quiver.Client,
) -> None:
    messages = q.receive("jobs")
    q.delete_subscription("jobs")
    q.create_queue("jobs")
    q.publish("jobs", b"new")
    with pytest.raises(InvalidReceipt):
        q.ack("jobs", messages)
    assert [m.payload for m in q.receive("jobs")] == [b"new"]


def test_a_lease_cannot_settle_messages_that_it_does_not_hold(q: quiver.Client) -> None:
    (mine,) = q.receive("jobs", 1)
    (theirs,) = q.receive("jobs", 1)
    lease = mine.receipt.split(".")[0]
    for offset in (theirs.offset, 2, 1_000_000, (1 << 64) - 1):
        with pytest.raises(StaleReceipt):
            q.ack("jobs", [f"{lease}.{offset}"])
    theirs.ack()
    mine.ack()
    assert q.describe_subscription("jobs").ready == 1


def test_the_good_ones_of_a_call_are_settled_beside_stale_ones(q: quiver.Client) -> None:
    first, second, third = q.receive("jobs")
    first.nack(delay="1h")
    with pytest.raises(StaleReceipt, match="the rest of this call is settled"):
        q.ack("jobs", [first, second, third])
    info = q.describe_subscription("jobs")
    assert (info.leased, info.ready, info.delayed) == (0, 0, 1)


def test_a_hundred_thousand_receipts_are_settled_in_one_call(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", visibility="1h")
    q.publish_many("jobs", pa.record_batch({"payload": [b"x"] * 100_000}))
    batches = [q.receive_batch("jobs", 10_000) for _ in range(10)]
    receipts = pa.concat_arrays([batch.column("receipt") for batch in batches])
    assert len(receipts) == 100_000
    begun = time.monotonic()
    q.ack("jobs", receipts)
    assert time.monotonic() - begun < 50
    info = q.describe_subscription("jobs")
    assert (info.ready, info.leased) == (0, 0)
