"""Entries of one partition copied into another by the node that leads both, over a real socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from quiver import protocol
from quiver.errors import (
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    PartitionNotFound,
    QuiverError,
    SequenceGap,
    TopicNotFound,
)
from tests.integration.edge_node import edge_test, running
from tests.integration.native_peer import Peer, batch_of


async def _staged(peer: Peer, **target: Any) -> protocol.Copy:
    """Three entries in one topic, and the request that copies the first and the last of them."""
    staging = await peer.create("staging", partitions=2)
    await peer.create("orders", **target)
    for some in ([b"a", b"b"], [b"left out"], [b"c"]):
        await peer.store("staging", batch_of(*some), partition=1)
    opened = await peer.ask(protocol.OpenProducer(), expect=protocol.ProducerOpened)
    return protocol.Copy(
        topic="orders",
        partition=0,
        from_topic="staging",
        from_number=staging.number,
        from_partition=1,
        offsets=[0, 3],
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        sequence=0,
    )


@edge_test
async def test_entries_are_copied_in_the_order_asked_for_under_the_producers_sequences(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        copied = await peer.ask(await _staged(peer), expect=protocol.Copied)
        assert (copied.entries, copied.messages) == (2, 3)
        entries = await peer.entries("orders")
        assert [(one.base_offset, one.sequence, one.count) for one in entries] == [
            (0, 0, 2),
            (2, 2, 1),
        ]
        source = await peer.entries("staging", partition=1)
        assert [bytes(one.body) for one in entries] == [
            bytes(source[0].body),
            bytes(source[2].body),
        ]


@edge_test
async def test_a_copy_that_is_repeated_adds_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        request = await _staged(peer)
        half = msgspec.structs.replace(request, offsets=[0])
        await peer.ask(half, expect=protocol.Copied)
        for _ in range(2):
            copied = await peer.ask(request, expect=protocol.Copied)
            assert copied.entries == 2
        assert await peer.payloads("orders") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"offsets": []}, InvalidRequest),
        ({"offsets": [0] * 1025}, InvalidRequest),
        ({"offsets": [1]}, OffsetOutOfRange),
        ({"offsets": [4]}, OffsetOutOfRange),
        ({"offsets": [-1]}, InvalidRequest),
        ({"from_number": 99}, TopicNotFound),
        ({"from_topic": "none"}, TopicNotFound),
        ({"topic": "none"}, TopicNotFound),
        ({"partition": 7}, PartitionNotFound),
        ({"sequence": 5}, SequenceGap),
        ({"topic": "quiver.audit"}, QuiverError),
    ],
)
@edge_test
async def test_what_cannot_be_copied_is_refused_and_nothing_of_it_stored(
    tmp_path: Path, changes: dict[str, Any], expected: type[QuiverError]
) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        request = await _staged(peer)
        for name, value in changes.items():
            setattr(request, name, value)
        error = await peer.refusal(peer.request(request))
        assert isinstance(error, expected)
        assert await peer.payloads("orders") == []


@edge_test
async def test_messages_too_large_for_the_other_topic_are_not_copied(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        request = await _staged(peer, message_bytes_max=1024)
        await peer.store("staging", batch_of(b"x" * 2000), partition=1)
        request.offsets.append(4)
        error = await peer.refusal(peer.request(request))
        assert isinstance(error, MessageTooLarge)
        assert await peer.payloads("orders") == [b"a", b"b", b"c"]
