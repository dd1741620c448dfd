"""Peers that mean harm, or are broken: each is answered or closed, counted, and noticed by nobody."""

from __future__ import annotations

import asyncio
import itertools
import resource
import struct
import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from quiver import protocol
from quiver.config import Address
from quiver.errors import InvalidBatch, ProtocolError, UnknownCall, UnsupportedProtocol
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.envelope import BATCH_BYTES_MAX, ProducerStamp, seal_batch
from quiver.model.ids import ProducerId, Sequence
from quiver.model.schema import PAYLOAD
from quiver.model.topic import Compression
from quiver.protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX, PREFACE, frame
from quiver.testing.disk import SimulatedDisk
from tests.integration.edge_node import Running, edge_test, running, until
from tests.integration.native_peer import Hangup, Peer, batch_of
from tests.unit.model.hostile_bodies import mutants

GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: quiver\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    b"\x00" * 64,
    b"\xff" * 64,
    PREFACE[:-1] + b"\x02",
    b"QUIVER\n\n" + PREFACE,
    Random(1).randbytes(4096),
]


async def _is_unharmed(run: Running, witness: Peer) -> None:
    """Whoever was connected all the while is served as before, and nothing went wrong inside."""
    await witness.ask(protocol.Ping(), expect=protocol.Done)
    await witness.store("witness", batch_of(b"still here"))
    assert run.errors("unavailable") == 0


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_is_not_the_protocol_is_told_so_and_closed(garbage: bytes, tmp_path: Path) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            witness = await run.peer()
            await witness.create("witness")
            stranger = await run.peer(greet=False)
            stranger.write(garbage)
            await stranger.hangup()
            assert run.closed(ProtocolError.code) == 1
            assert run.errors(ProtocolError.code) == 1
            await _is_unharmed(run, witness)

    check()


@edge_test
async def test_the_last_thing_a_stranger_hears_is_what_was_wrong(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        stranger = await run.peer(greet=False)
        stranger.write(b"EHLO there\r\n"[:8])
        reply, _ = await stranger.reply()
        assert isinstance(reply, protocol.Failed)
        assert (reply.id, reply.code) == (0, ProtocolError.code)
        await stranger.hangup()


@pytest.mark.parametrize("length", [1, 4, 7])
def test_half_a_preface_is_counted_as_cut(length: int, tmp_path: Path) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            stranger = await run.peer(greet=False)
            stranger.write(PREFACE[:length])
            await stranger.drain()
            await until(lambda: len(run.connections) == 1)
            await stranger.close()
            await until(lambda: run.closed("cut_frame") == 1)

    check()


@pytest.mark.parametrize("left", [1, 4, 8, 9, 30, -1])
def test_half_a_frame_is_counted_as_cut(left: int, tmp_path: Path) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            witness = await run.peer()
            await witness.create("witness")
            cutter = await run.peer()
            batch = batch_of(b"x" * 100)
            request = protocol.Publish(topic="witness", partition=0, id=2)
            data = b"".join(frame(protocol.encode(request), [batch.head, batch.body]))
            cutter.write(data[:left])
            await cutter.drain()
            await cutter.close()
            await until(lambda: run.closed("cut_frame") == 1)
            await _is_unharmed(run, witness)
            assert await witness.payloads("witness") == [b"still here"]

    check()


@edge_test
async def test_a_peer_that_leaves_between_frames_is_counted_as_such(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        await (await run.peer()).close()
        await until(lambda: run.closed("client") == 1)
        await (await run.peer()).reset()
        await until(lambda: run.closed("lost") + run.closed("client") == 2)
        assert run.connections == []


@pytest.mark.parametrize(
    ("size", "header_size"),
    [
        (0xFFFFFFFF, 10),
        (FRAME_BYTES_MAX - 3, 10),
        (3, 0),
        (100, 97),
        (100, 0xFFFFFFFF),
        (2 << 20, HEADER_BYTES_MAX + 1),
    ],
)
def test_a_length_that_makes_no_sense_ends_the_connection(
    size: int, header_size: int, tmp_path: Path
) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            peer = await run.peer()
            peer.write(struct.pack("<II", size, header_size))
            await peer.hangup()
            assert run.closed(ProtocolError.code) == 1

    check()


@edge_test
async def test_a_greeting_may_not_be_large(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer(greet=False)
        peer.write(PREFACE, struct.pack("<II", 1 << 20, 10))
        await peer.hangup()
        assert run.closed(ProtocolError.code) == 1


@edge_test
async def test_huge_frames_that_never_come_cost_no_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(50):
            peer = await run.peer()
            peer.write(struct.pack("<II", FRAME_BYTES_MAX - 4, 100))
            await peer.drain()
        await until(lambda: sum(not c._frames.is_between_frames for c in run.connections) == 50)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 200 << 10, f"{grown} KiB"


@edge_test
async def test_an_unknown_call_is_answered_and_the_conversation_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        peer.write(*frame(msgspec.msgpack.encode({"call": "fly", "id": 77})))
        assert type(await peer.refusal(77)) is UnknownCall
        await peer.ask(protocol.Ping(), expect=protocol.Done)
        assert run.errors(UnknownCall.code) == 1


@pytest.mark.parametrize("versions", [[], [0], [2, 3], [-1], list(range(2, 5000))])
def test_a_version_that_is_not_spoken_is_refused_under_the_hello_s_id(
    versions: list[int], tmp_path: Path
) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            peer = await run.peer(greet=False)
            peer.write(PREFACE)
            error = await peer.refusal(peer.request(protocol.Hello(versions=versions)))
            assert type(error) is UnsupportedProtocol
            assert len(error.message) < 200
            await peer.hangup()
            assert run.closed(UnsupportedProtocol.code) == 1

    check()


@pytest.mark.parametrize(
    "header",
    [
        protocol.encode(protocol.Ping(id=1)),
        protocol.encode(protocol.ListTopics(id=1)),
        msgspec.msgpack.encode({"call": "fly", "id": 1}),
        msgspec.msgpack.encode({"call": "hello", "id": 1}),
        b"\xc1",
        b"",
    ],
)
def test_who_does_not_greet_first_is_closed(header: bytes, tmp_path: Path) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run:
            peer = await run.peer(greet=False)
            peer.write(PREFACE, *frame(header))
            reply, _ = await peer.reply()
            assert isinstance(reply, protocol.Failed)
            await peer.hangup()

    check()


@edge_test
async def test_an_id_that_is_still_unanswered_may_not_be_used_again(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        waiting = protocol.encode(
            protocol.Fetch(topic="orders", partition=0, offset=0, wait_ms=20_000, id=9)
        )
        peer.write(*frame(waiting), *frame(waiting))
        await peer.hangup()
        assert run.closed(ProtocolError.code) == 1


@edge_test
async def test_a_publish_with_a_huge_header_does_not_stay_in_memory(tmp_path: Path) -> None:
    async with running(tmp_path, disk=SimulatedDisk(1)) as run:
        peer = await run.peer()
        await peer.create("orders")
        batch = batch_of(b"p")
        publish = msgspec.msgpack.encode(
            {"call": "publish", "topic": "orders", "partition": 0, "junk": b"j" * 900_000, "id": 7}
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(200):
            peer.write(*frame(publish, [batch.head, batch.body]))
            await peer.expect(7, protocol.Published)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 100 << 10, f"{grown} KiB"


# ---------------------------------------------------------------------- hostile batches


def _hostile_batches() -> dict[str, UnstoredBatch]:
    batch = batch_of(b"abcd")
    body = bytes(batch.body)
    zeros = pa.record_batch({"payload": [bytes(BATCH_BYTES_MAX)]})
    lying = bytearray(encode_record_batch(zeros.slice(0, 1), Compression.ZSTD).body)
    return {
        "nothing": seal_batch(b"", 1, PAYLOAD),
        "end of stream": seal_batch(b"\xff\xff\xff\xff\0\0\0\0", 1, PAYLOAD),
        "a schema": seal_batch(
            bytes(pa.schema([("payload", pa.binary())]).serialize()), 1, PAYLOAD
        ),
        "garbage": seal_batch(Random(1).randbytes(1000), 1, PAYLOAD),
        "cut": seal_batch(body[:-8], 1, PAYLOAD),
        "wrong count": seal_batch(body, 2, PAYLOAD),
        "wrong columns": seal_batch(body, 1, PAYLOAD | 1),
        "a bomb": seal_batch(bytes(lying), 1, PAYLOAD),
        "offsets": seal_batch(body.replace(struct.pack("<ii", 0, 4), b"\xff" * 8), 1, PAYLOAD),
        "negative sequence": seal_batch(
            body, 1, PAYLOAD, ProducerStamp(ProducerId(1), sequence=Sequence(-1))
        ),
        "negative producer": seal_batch(body, 1, PAYLOAD, ProducerStamp(ProducerId(-1))),
    }


@edge_test
async def test_hostile_batches_are_refused_and_the_conversation_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        witness, peer = await run.peer(), await run.peer()
        await witness.create("witness")
        for name, batch in _hostile_batches().items():
            error = await peer.refusal(peer.publish("witness", batch))
            assert type(error) is InvalidBatch, name
        torn = batch_of(b"torn")
        request = protocol.Publish(topic="witness", partition=0)
        for body in (
            b"",
            b"\0" * 35,
            torn.head,
            torn.head + bytes(torn.body)[:-1],
            torn.head[::-1],
        ):
            error = await peer.refusal(peer.request(request, [body]))
            assert type(error) is InvalidBatch
        assert run.errors(InvalidBatch.code) == len(_hostile_batches()) + 5
        await _is_unharmed(run, witness)
        assert await witness.payloads("witness") == [b"still here"]


@edge_test
async def test_many_batches_that_unpack_to_much_hold_nobody_else_up(tmp_path: Path) -> None:
    """Each is 2 KB and 60 MiB unpacked: it takes 10 ms and more to see that it is too large."""
    zeros = encode_record_batch(pa.record_batch({"payload": [bytes(60 << 20)]}), Compression.ZSTD)
    async with running(tmp_path) as run:
        witness, bomber = await run.peer(), await run.peer()
        await witness.create("witness")
        await witness.store("witness", batch_of(b"first"))
        sent = [bomber.publish("witness", zeros) for _ in range(20)]
        stored = 0
        bombs = asyncio.create_task(_refusals(bomber, sent))
        while not bombs.done():
            await witness.store("witness", batch_of(b"p"))
            stored += 1
        assert await bombs == ["message_too_large"] * 20
        assert stored >= 5, "others had their turn between them"
        await _is_unharmed(run, witness)


async def _refusals(peer: Peer, sent: list[int]) -> list[str]:
    return [(await peer.refusal(request_id)).code for request_id in sent]


# ---------------------------------------------------------------------- chance


class Fuzzer:
    """Frames that are nearly right, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._ids = itertools.count(1)
        self._bodies = itertools.cycle(list(mutants(seed, 400)))

    def frame(self) -> bytes:
        """A whole frame: its lengths are right, what is in it need not be."""
        random = self._random
        body: list[Any] = []
        if random.random() < 0.4:
            header = self._header(
                "publish", {"topic": "fuzz", "partition": random.choice((0, 1, 7))}
            )
            batch = next(self._bodies)
            body = [batch.head, batch.body]
            if random.random() < 0.2:
                body = [self._mutated(b"".join(map(bytes, body)))]
        else:
            header = self._header(random.choice(_CALLS), self._fields())
        if random.random() < 0.05:
            header = self._mutated(header)
        return b"".join(frame(header, body))

    def broken_frame(self) -> bytes:
        """Bytes that are no frame: to be sent last, for the node may wait for more."""
        data = bytearray(self.frame())
        struct.pack_into("<I", data, self._random.choice((0, 4)), self._random.randrange(1 << 32))
        return bytes(data[: self._random.randrange(1, len(data) + 1)])

    def _header(self, call: str, fields: dict[str, Any]) -> bytes:
        return msgspec.msgpack.encode({"call": call, "id": next(self._ids), **fields})

    def _fields(self) -> dict[str, Any]:
        random = self._random
        return {
            name: random.choice(_VALUES)
            for name in random.sample(_NAMES, random.randrange(len(_NAMES)))
        }

    def _mutated(self, data: bytes) -> bytes:
        random, changed = self._random, bytearray(data)
        for _ in range(random.choice((1, 1, 2, 5))):
            place = random.randrange(len(changed) + 1)
            kind = random.randrange(4)
            if kind == 0 and place < len(changed):
                changed[place] = random.randrange(256)
            elif kind == 1:
                changed[place:place] = random.randbytes(random.choice((1, 4, 50)))
            elif kind == 2:
                del changed[place : place + random.choice((1, 4, 50))]
            else:
                changed += changed[:place]
        return bytes(changed)


_CALLS = [*sorted(protocol.CALLS - {"delete_topic", "create_topic"}), "describe_topic", "fly", ""]
_NAMES = ["topic", "name", "partition", "offset", "bytes_max", "at", "time_us", "changes"]
_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 7, 1 << 31, 1 << 63, (1 << 64) - 1, -(1 << 63), 1.5, float("nan")),
    *("", "fuzz", "fuzz", "fuzz", "earliest", "latest", "__x", "../x", "\0", "x" * 300, b"fuzz"),
    *([], [1, [2, [3]]], {}, {"a": {"b": None}}, {"retention": {"age": "1h"}}, {1: 2}),
    *({"retention": {"bytes": "9" * 400}}, {"partitions": 3}, {"message_bytes_max": 1000}),
]


async def _consumed(peer: Peer, fuzzer: Fuzzer, count: int) -> int:
    """Send frames until that many are answered or the node hangs up; how many were answered."""
    for _ in range(count):
        peer.write(fuzzer.frame())
    answered = 0
    try:
        for _ in range(count):
            await peer.reply()
            answered += 1
    except Hangup:
        pass
    return answered


@pytest.mark.parametrize("seed", [1, 2])
def test_ten_thousand_frames_of_chance_are_each_answered_and_harm_nobody(
    seed: int, tmp_path: Path
) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path, disk=SimulatedDisk(seed)) as run:
            witness = await run.peer()
            await witness.create("witness")
            await witness.create("fuzz", partitions=2)
            fuzzer, answered, connections = Fuzzer(seed), 0, 0
            while answered < 10_000:
                peer = await Peer.connect(run.address)
                answered += await _consumed(peer, fuzzer, 40)
                connections += 1
                peer.write(fuzzer.broken_frame())
                await peer.reset()
                if connections % 20 == 0:
                    await _is_unharmed(run, witness)
            await _is_unharmed(run, witness)
            await until(lambda: len(run.connections) == 1)
            for partition in range(2):  # what passed can be read to the last value
                for entry in await witness.entries("fuzz", 0, partition, bytes_max=1 << 30):
                    assert len(entry.record_batch().to_pylist()) == entry.count

    check()


@edge_test
async def test_calls_that_change_topics_stand_chance_too(tmp_path: Path) -> None:
    random = Random(5)
    async with running(tmp_path, disk=SimulatedDisk(5)) as run:
        witness, peer = await run.peer(), await run.peer()
        await witness.create("witness")
        names = ["a", "b", "..", "__a", "x" * 201, ""]
        sent = []
        for number in range(150):
            name = random.choice(names)
            settings = {"partitions": random.choice((0, 1, 2, 1 << 40))}
            fields = random.choice(
                [
                    {"call": "create_topic", "name": name, "settings": settings},
                    {"call": "delete_topic", "name": name},
                    {"call": "alter_topic", "name": name, "changes": {"segment_age_s": number}},
                ]
            )
            peer.write(*frame(msgspec.msgpack.encode({**fields, "id": 1000 + number})))
            sent.append(1000 + number)
        replies = [(await peer.answer(request_id))[0] for request_id in sent]
        codes = {reply.code for reply in replies if isinstance(reply, protocol.Failed)}
        assert codes <= {"topic_exists", "topic_not_found", "invalid_setting"}
        await _is_unharmed(run, witness)


# ---------------------------------------------------------------------- many connections


_OPEN_AND_DROP = """
import socket, struct, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    with socket.create_connection((host, port)) as connection:
        if number % 3:
            connection.sendall(b"QUIVER\\0\\1" if number % 3 == 1 else b"garbage!")
        # Reset, so that the ports can be used again at once.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""


async def _open_and_drop(address: Address, count: int) -> None:
    """Connect and break off, again and again, from another process."""
    arguments = (_OPEN_AND_DROP, address.host, str(address.port), str(count))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", *arguments)
    assert await process.wait() == 0


@pytest.mark.process
@edge_test
async def test_twenty_thousand_connections_opened_and_dropped_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        witness = await run.peer()
        await witness.create("witness")
        await _open_and_drop(run.address, 1000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        storm = asyncio.create_task(_open_and_drop(run.address, 19_000))
        while not storm.done():
            await witness.ask(protocol.Ping(), expect=protocol.Done)
            await asyncio.sleep(0.01)
        await storm
        await until(lambda: len(run.connections) == 1)
        opened = run.counter("quiver_connections_opened_total")
        ended = sum(
            value
            for name, value in run.node.services.metrics.values().items()  # type: ignore[union-attr]
            if name.startswith("quiver_connections_closed_total")
        )
        assert opened == ended + 1
        assert opened == 20_001
        assert run.counter("quiver_connections") == 1
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 50 << 10, f"{grown} KiB"
        await _is_unharmed(run, witness)
