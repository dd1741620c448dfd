"""Frames: however the bytes arrive, the same frames come out, and memory follows the bytes."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.errors import ProtocolError
from quiver.protocol.frames import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    FrameAssembler,
    first_frame,
    frame,
)

Frame = tuple[bytes, bytes]


def _joined(frames: list[Frame]) -> bytes:
    return b"".join(b"".join(frame(header, [body])) for header, body in frames)


def _feed(assembler: FrameAssembler, data: bytes, chunks: list[int]) -> list[Frame]:
    """The frames that come out when the data arrives in pieces of these sizes, again and again."""
    found, place, turn = [], 0, 0
    while place < len(data):
        room = assembler.buffer()
        count = min(len(room), chunks[turn % len(chunks)], len(data) - place)
        room[:count] = data[place : place + count]
        found += [(bytes(header), bytes(body)) for header, body in assembler.received(count)]
        place, turn = place + count, turn + 1
    return found


headers = st.binary(max_size=200)
bodies = st.binary(max_size=300) | st.integers(0, 70_000).map(lambda size: b"\x5a" * size)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(headers, bodies), max_size=8),
    st.lists(st.integers(1, 5000), min_size=1, max_size=5),
)
def test_any_chunking_gives_the_same_frames(frames: list[Frame], chunks: list[int]) -> None:
    assembler = FrameAssembler(FRAME_BYTES_MAX)
    assert _feed(assembler, _joined(frames), chunks) == frames
    assert assembler.is_between_frames


def test_one_byte_at_a_time_gives_the_same_frames() -> None:
    frames = [(b"head", b"body"), (b"", b""), (b"x" * 17, b""), (b"big", b"y" * 20_000)]
    assert _feed(FrameAssembler(FRAME_BYTES_MAX), _joined(frames), [1]) == frames


@pytest.mark.parametrize("size", [(16 << 10) - 20, 16 << 10, 64 << 10, 300_000, 5 << 20])
def test_frames_of_every_size_class_arrive_whole(size: int) -> None:
    body = Random(size).randbytes(size)
    frames = [(b"before", b"a"), (b"large", body), (b"after", b"b")]
    assert _feed(FrameAssembler(FRAME_BYTES_MAX), _joined(frames), [1 << 16]) == frames


def test_a_body_begins_at_a_multiple_of_eight_bytes() -> None:
    for length in range(32):
        buffers = frame(b"h" * length, [b"body"])
        assert len(buffers[0]) % 8 == 0
        assert struct.unpack_from("<II", buffers[0]) == (len(b"".join(buffers)) - 4, length)


def test_frames_left_when_the_taker_stopped_are_there_when_it_goes_on() -> None:
    data = _joined([(b"1", b""), (b"2", b""), (b"3", b"")])
    assembler = FrameAssembler(FRAME_BYTES_MAX)
    assembler.buffer()[: len(data)] = data
    for header, _ in assembler.received(len(data)):
        assert bytes(header) == b"1"
        break
    assert not assembler.is_between_frames
    assert [bytes(header) for header, _ in assembler.received(0)] == [b"2", b"3"]
    assert assembler.is_between_frames


@pytest.mark.parametrize(
    ("size", "header_size"),
    [
        (0, 0),
        (3, 0),
        (0xFFFFFFFF, 0),
        (1000, 997),
        (1000, 0xFFFFFFFF),
        (4, 1),
        (FRAME_BYTES_MAX, 0),
        (HEADER_BYTES_MAX + 100, HEADER_BYTES_MAX + 1),
    ],
)
def test_a_prefix_that_makes_no_sense_is_refused(size: int, header_size: int) -> None:
    with pytest.raises(ProtocolError):
        _feed(
            FrameAssembler(FRAME_BYTES_MAX, HEADER_BYTES_MAX),
            struct.pack("<II", size, header_size),
            [8],
        )


def test_a_frame_of_exactly_the_allowed_size_is_taken() -> None:
    data = b"".join(frame(b"h", [b"b" * 1000]))
    assert len(_feed(FrameAssembler(len(data)), data, [4096])) == 1
    with pytest.raises(ProtocolError, match="more than the"):
        _feed(FrameAssembler(len(data) - 1), data, [4096])


def test_a_reply_may_have_a_header_larger_than_a_request_may() -> None:
    header = b"t" * (HEADER_BYTES_MAX + 1)
    frames = _feed(FrameAssembler(FRAME_BYTES_MAX), b"".join(frame(header)), [1 << 16])
    assert frames == [(header, b"")]


def test_a_huge_declared_length_takes_no_memory_until_the_bytes_come() -> None:
    assembler = FrameAssembler(FRAME_BYTES_MAX)
    prefix = struct.pack("<II", FRAME_BYTES_MAX - 4, 8)
    tracemalloc.start()
    try:
        assert _feed(assembler, prefix, [8]) == []
        assembler.buffer()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_an_assembler_at_rest_holds_no_memory_for_receiving() -> None:
    tracemalloc.start()
    try:
        assembler = FrameAssembler(FRAME_BYTES_MAX)
        _feed(assembler, _joined([(b"h", b"b")]), [100])
        assembler.rest()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 64 << 10
    assert _feed(assembler, _joined([(b"again", b"")]), [100]) == [(b"again", b"")]


def test_an_assembler_does_not_rest_on_half_a_frame() -> None:
    data = _joined([(b"header", b"body")])
    assembler = FrameAssembler(FRAME_BYTES_MAX)
    assert _feed(assembler, data[:10], [100]) == []
    assembler.rest()
    assert _feed(assembler, data[10:], [100]) == [(b"header", b"body")]


@pytest.mark.parametrize("come", [10, 400_000], ids=["small", "large"])
def test_an_assembler_whose_connection_is_lost_holds_no_half_frame(come: int) -> None:
    data = _joined([(b"header", bytes(20 if come == 10 else 1 << 20))])
    tracemalloc.start()
    try:
        assembler = FrameAssembler(FRAME_BYTES_MAX)
        assert _feed(assembler, data[:come], [100_000]) == []
        assembler.drop()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 16 << 10


def test_who_keeps_a_small_body_does_not_keep_its_large_header() -> None:
    data = b"".join(frame(b"h" * HEADER_BYTES_MAX, [b"small body"]))
    kept = []
    assembler = FrameAssembler(FRAME_BYTES_MAX)
    tracemalloc.start()
    try:
        for _ in range(10):
            place = 0
            while place < len(data):
                room = assembler.buffer()
                count = min(len(room), len(data) - place)
                room[:count] = data[place : place + count]
                kept += [body for _, body in assembler.received(count)]
                place += count
        del room
        assembler.rest()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [bytes(body) for body in kept] == [b"small body"] * 10
    assert held < HEADER_BYTES_MAX


def test_the_first_frame_is_known_once_it_is_whole() -> None:
    whole = b"".join(frame(b"head", [b"body"]))
    data = whole + b"next"
    assert all(first_frame(data[:size], 1024) is None for size in range(len(whole)))
    found = first_frame(data, 1024)
    assert found is not None
    assert [bytes(part) for part in found] == [b"head", b"next"]


@pytest.mark.parametrize("prefix", [(2000, 4), (8, 9), (2, 0)])
def test_a_first_frame_that_cannot_be_one_is_refused(prefix: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError):
        first_frame(struct.pack("<II", *prefix), 1024)
