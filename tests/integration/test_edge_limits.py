"""Bounds of a connection: what it may keep waiting, and for how long; others go on meanwhile."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from quiver import protocol
from quiver.errors import Overloaded, RequestTimeout
from quiver.model.topic import Acks
from quiver.protocol.frames import PREFACE, frame
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.integration.edge_node import GatedDisk, Running, edge_test, running, until
from tests.integration.native_peer import Hangup, Peer, batch_of

_MIB = 1 << 20


async def _settled(run: Running, call: str, count: int) -> None:
    """Wait until so many requests were taken, and see that no more are."""
    name = f"quiver_requests_total{{call={call}}}"
    await until(lambda: run.counter(name) >= count)
    for _ in range(20):
        await asyncio.sleep(0.002)
        assert run.counter(name) == count


# ---------------------------------------------------------------------- time to say something


@pytest.mark.parametrize("sent", [b"", PREFACE[:3], PREFACE, PREFACE + b"\x20\0\0\0\x18\0\0\0"])
def test_who_does_not_greet_in_time_is_closed(sent: bytes, tmp_path: Path) -> None:
    @edge_test
    async def check() -> None:
        clock = ManualClock()
        async with running(tmp_path, clock=clock, handshake_timeout_s=5) as run:
            peer = await run.peer(greet=False)
            peer.write(sent)
            await until(lambda: len(run.connections) == 1)
            await clock.advance(4.5)
            assert run.closed("handshake_timeout") == 0
            await clock.advance(2)
            await peer.hangup()
            assert run.closed("handshake_timeout") == 1

    check()


@edge_test
async def test_one_byte_a_second_is_too_slow_for_a_frame(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, frame_timeout_s=10) as run:
        witness, slow = await run.peer(), await run.peer()
        await witness.create("witness")
        data = b"".join(frame(protocol.encode(protocol.ListTopics(id=5)), [bytes(100)]))
        seconds = 0
        while run.closed("slow_frame") == 0:
            slow.write(data[seconds : seconds + 1])
            await slow.drain()
            await until(lambda: run.unsent_bytes == 0)
            await clock.advance(1)
            await witness.ask(protocol.Ping(), expect=protocol.Done)
            seconds += 1
            assert seconds < 20
        assert seconds >= 10
        await slow.hangup()


@edge_test
async def test_one_byte_a_second_is_too_slow_for_a_greeting(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, handshake_timeout_s=5) as run:
        slow = await run.peer(greet=False)
        for place in range(20):
            slow.write((PREFACE + bytes(20))[place : place + 1])
            await slow.drain()
            await clock.advance(1)
            if run.closed("handshake_timeout"):
                break
        assert run.closed("handshake_timeout") == 1
        await slow.hangup()


@edge_test
async def test_a_frame_may_take_its_time_while_the_node_does_not_read(tmp_path: Path) -> None:
    """The client cannot help it: only what it keeps back itself is held against it."""
    clock, disk = ManualClock(), GatedDisk()
    async with running(tmp_path, clock=clock, disk=disk, requests_max=1, frame_timeout_s=5) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"first"))
        disk.shut()
        first = peer.publish("orders", batch_of(b"a"), timeout_ms=300_000)
        second = batch_of(b"b" * 500_000)
        data = b"".join(
            frame(
                protocol.encode(protocol.Publish(topic="orders", partition=0, id=900)),
                [second.head, second.body],
            )
        )
        peer.write(data[:-10])
        await _settled(run, "publish", 2)
        await clock.advance(60)
        disk.open()
        await peer.expect(first, protocol.Published)
        await clock.advance(3)
        peer.write(data[-10:])
        await peer.expect(900, protocol.Published)
        assert run.closed("slow_frame") == 0


@edge_test
async def test_a_connection_that_asks_nothing_is_closed_in_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, idle_timeout_s=100) as run:
        idle, busy = await run.peer(), await run.peer()
        for _ in range(4):
            await clock.advance(30)
            await busy.ask(protocol.Ping(), expect=protocol.Done)
        await idle.hangup()
        assert run.closed("idle") == 1
        await busy.ask(protocol.Ping(), expect=protocol.Done)


@edge_test
async def test_a_connection_whose_fetch_waits_is_not_idle(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, idle_timeout_s=5) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"p"))
        fetch = protocol.Fetch(topic="orders", partition=0, offset=1, wait_ms=20_000)
        waiting = peer.request(fetch)
        await _settled(run, "fetch", 1)
        await clock.advance(15)
        assert run.closed("idle") == 0
        await clock.advance(10)
        await peer.expect(waiting, protocol.Fetched)


@edge_test
async def test_an_idle_connection_holds_no_memory_for_receiving(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as run:
        peer = await run.peer()
        (connection,) = run.connections
        assert len(connection._frames._shared) > 0
        await clock.advance(3)
        assert len(connection._frames._shared) == 0
        await peer.ask(protocol.Ping(), expect=protocol.Done)


# ---------------------------------------------------------------------- how many


@edge_test
async def test_connections_beyond_the_limit_are_told_so_and_closed(tmp_path: Path) -> None:
    async with running(tmp_path, connections_max=3) as run:
        peers = [await run.peer() for _ in range(3)]
        for _ in range(5):
            late = await run.peer(greet=False)
            reply, _ = await late.reply()
            assert isinstance(reply, protocol.Failed)
            assert (reply.code, reply.retryable) == (Overloaded.code, True)
            await late.hangup()
        assert run.closed(Overloaded.code) == 5
        for peer in peers:
            await peer.ask(protocol.Ping(), expect=protocol.Done)
        await peers[0].close()
        await until(lambda: len(run.connections) == 2)
        await (await run.peer()).ask(protocol.Ping(), expect=protocol.Done)


@edge_test
async def test_no_more_requests_are_taken_than_may_be_unanswered(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with running(tmp_path, disk=disk, requests_max=3) as run:
        peer, other = await run.peer(), await run.peer()
        await peer.create("orders")
        await peer.create("other")
        await peer.store("orders", batch_of(b"first"))
        disk.shut()
        sent = [peer.publish("orders", batch_of(b"%d" % number)) for number in range(50)]
        await _settled(run, "publish", 1 + 3)
        await other.ask(protocol.ListTopics(), expect=protocol.Topics)
        disk.open()
        stored = [await peer.expect(request_id, protocol.Published) for request_id in sent]
        assert [place.base_offset for place in stored] == list(range(1, 51))


@edge_test
async def test_no_more_bytes_are_taken_than_may_be_unanswered(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with running(tmp_path, disk=disk, inflight_bytes_max=_MIB) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"first"))
        disk.shut()
        sent = [peer.publish("orders", batch_of(bytes(200_000))) for _ in range(30)]
        await _settled(run, "publish", 1 + 6)
        disk.open()
        for request_id in sent:
            await peer.expect(request_id, protocol.Published)


@edge_test
async def test_large_headers_count_as_bytes_that_are_unanswered(tmp_path: Path) -> None:
    async with running(tmp_path, inflight_bytes_max=_MIB) as run:
        peer = await run.peer()
        await peer.create("orders")
        header = {
            "call": "fetch",
            "topic": "orders",
            "partition": 0,
            "offset": 0,
            "wait_ms": 20_000,
        }
        for number in range(10):
            junk = header | {"id": 100 + number, "junk": b"j" * 300_000}
            peer.write(*frame(protocol.encode(junk)))
        await _settled(run, "fetch", 4)
        await (await run.peer()).store("orders", batch_of(b"p"))
        for number in range(10):
            await peer.expect(100 + number, protocol.Fetched)


@edge_test
async def test_requests_that_came_in_one_piece_are_taken_no_faster(tmp_path: Path) -> None:
    async with running(tmp_path, requests_max=10) as run:
        peer = await run.peer()
        await peer.create("orders")
        fetches = [
            protocol.Fetch(topic="orders", partition=0, offset=0, wait_ms=20_000, id=1000 + number)
            for number in range(500)
        ]
        peer.write(b"".join(b"".join(frame(protocol.encode(fetch))) for fetch in fetches))
        await _settled(run, "fetch", 10)
        await (await run.peer()).store("orders", batch_of(b"p"))
        for fetch in fetches:
            await peer.expect(fetch.id, protocol.Fetched)


# ---------------------------------------------------------------------- replies that nobody reads


async def _deaf(run: Running) -> Peer:
    """A peer that takes next to nothing in: it does not read, and its buffers are small."""
    peer = await run.peer()
    sock = peer._writer.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.stop_reading()
    return peer


FLOODS: dict[str, tuple[int, dict[str, Any]]] = {
    "list_topics": (5000, {}),
    "describe_topic": (20_000, {"name": "large"}),
    "fetch": (20_000, {"topic": "large", "partition": 0, "offset": 0, "bytes_max": _MIB}),
    "fly" * 20: (100_000, {}),
}
"""How many requests, and which: answered all at once, they are far more than anybody should hold."""


@pytest.mark.parametrize("call", FLOODS)
def test_replies_that_nobody_reads_cost_bounded_memory_and_end_the_connection(
    call: str, tmp_path: Path
) -> None:
    @edge_test
    async def check() -> None:
        clock = ManualClock()
        async with running(tmp_path, clock=clock, disk=SimulatedDisk(1), write_timeout_s=20) as run:
            witness = await run.peer()
            await witness.create("large", partitions=64)
            for number in range(10):
                await witness.create(f"topic-{number}", partitions=1024)
            for _ in range(8):
                await witness.store("large", batch_of(bytes(500_000)))
            deaf = await _deaf(run)
            count, fields = FLOODS[call]
            deaf.write(
                b"".join(
                    b"".join(frame(protocol.encode({"call": call, "id": 1000 + number, **fields})))
                    for number in range(count)
                )
            )
            await until(lambda: run.unsent_bytes > 4 * _MIB)
            before = -1
            while before != deaf.unsent_bytes:  # until the node takes no more
                before = deaf.unsent_bytes
                await asyncio.sleep(0.05)
                assert run.unsent_bytes < 12 * _MIB
            await witness.store("large", batch_of(b"others go on"))
            await clock.advance(25)
            await until(lambda: len(run.connections) == 1)
            assert run.closed("unread_replies") == 1
            assert run.unsent_bytes == 0
            await witness.store("large", batch_of(b"and on"))
            await deaf.reset()

    check()


@edge_test
async def test_a_reader_that_comes_back_gets_everything(tmp_path: Path) -> None:
    async with running(tmp_path, disk=SimulatedDisk(1)) as run:
        writer, reader = await run.peer(), await run.peer()
        await writer.create("orders")
        for _ in range(8):
            await writer.store("orders", batch_of(bytes(900_000)))
        reader.stop_reading()
        sent = [
            reader.request(protocol.Fetch(topic="orders", partition=0, offset=offset % 8))
            for offset in range(40)
        ]
        await until(lambda: run.unsent_bytes > 4 * _MIB)
        reader._writer.transport.resume_reading()
        for request_id in sent:
            await reader.expect(request_id, protocol.Fetched)


@edge_test
async def test_a_refused_peer_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    """Hanging up politely means to wait for the other side; that has an end too."""
    clock = ManualClock()
    async with running(tmp_path, clock=clock, disk=SimulatedDisk(1), write_timeout_s=20) as run:
        witness = await run.peer()
        await witness.create("large")
        for _ in range(8):
            await witness.store("large", batch_of(bytes(900_000)))
        deaf = await _deaf(run)
        for _ in range(3):
            deaf.request(protocol.Fetch(topic="large", partition=0, offset=0, bytes_max=3 * _MIB))
        await until(lambda: run.unsent_bytes > _MIB)
        deaf.write(b"\xff" * 8)
        await until(lambda: run.closed("protocol_error") == 1 or run.unsent_bytes > 4 * _MIB)
        await clock.advance(30)
        await until(lambda: len(run.connections) == 1)
        await witness.store("large", batch_of(b"still here"))
        assert len(run.connections) == 1
        await deaf.reset()


# ---------------------------------------------------------------------- requests that take too long


@edge_test
async def test_a_publish_that_the_disk_holds_up_times_out(tmp_path: Path) -> None:
    clock, disk = ManualClock(), GatedDisk()
    async with running(tmp_path, clock=clock, disk=disk) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"first"))
        disk.shut()
        short = peer.publish("orders", batch_of(b"a"), timeout_ms=2000)
        long = peer.publish("orders", batch_of(b"b"), timeout_ms=60_000)
        await _settled(run, "publish", 3)
        await clock.advance(4)
        error = await peer.refusal(short)
        assert type(error) is RequestTimeout
        disk.open()
        assert (await peer.expect(long, protocol.Published)).base_offset == 2
        await peer.ask(protocol.Ping(), expect=protocol.Done)
        assert run.errors(RequestTimeout.code) == 1


@pytest.mark.parametrize("timeout_ms", [-(1 << 63), -1, 0, 1])
def test_a_timeout_of_nothing_is_a_short_one(timeout_ms: int, tmp_path: Path) -> None:
    @edge_test
    async def check() -> None:
        clock, disk = ManualClock(), GatedDisk()
        async with running(tmp_path, clock=clock, disk=disk) as run:
            peer = await run.peer()
            await peer.create("orders")
            await peer.store("orders", batch_of(b"first"))
            disk.shut()
            sent = peer.publish("orders", batch_of(b"a"), timeout_ms=timeout_ms)
            await _settled(run, "publish", 2)
            await clock.advance(1.5)
            assert type(await peer.refusal(sent)) is RequestTimeout
            disk.open()

    check()


@edge_test
async def test_other_calls_that_the_disk_holds_up_time_out_too(tmp_path: Path) -> None:
    clock, disk = ManualClock(), GatedDisk()
    async with running(tmp_path, clock=clock, disk=disk) as run:
        peer, other = await run.peer(), await run.peer()
        await peer.create("orders", partitions=8)
        disk.shut()
        # What nobody ever used stays closed for a description, so that needs no disk.
        await other.ask(protocol.DescribeTopic(name="orders"), expect=protocol.Topic)
        sent = [
            peer.request(protocol.FindOffset(topic="orders", partition=0, at="latest")),
            peer.request(protocol.Fetch(topic="orders", partition=1, offset=0, wait_ms=1 << 62)),
            peer.request(protocol.DescribeTopic(name="orders")),
        ]
        await _settled(run, "fetch", 1)
        await other.ask(protocol.ListTopics(), expect=protocol.Topics)
        await clock.advance(65)
        for request_id in sent:
            assert type(await peer.refusal(request_id)) is RequestTimeout
        assert all(not connection._session._tasks for connection in run.connections)
        disk.open()
        await peer.ask(protocol.DescribeTopic(name="orders"), expect=protocol.Topic)


@edge_test
async def test_publishes_that_timed_out_in_the_queue_are_forgotten_and_not_stored(
    tmp_path: Path,
) -> None:
    """A log whose queue is full takes no more: what waits for it waits in the session, bounded."""
    clock, disk = ManualClock(), GatedDisk()
    async with running(tmp_path, clock=clock, disk=disk, inflight_bytes_max=512 * _MIB) as run:
        peer = await run.peer()
        await peer.create("orders", message_bytes_max=32 * _MIB)
        await peer.store("orders", batch_of(b"first"))
        disk.shut()
        large = batch_of(bytes(23 * _MIB))
        queued = [peer.publish("orders", large, timeout_ms=300_000) for _ in range(3)]
        await _settled(run, "publish", 4)
        waiting = [peer.publish("orders", batch_of(b"late"), timeout_ms=1000) for _ in range(200)]
        await _settled(run, "publish", 204)
        (connection,) = run.connections
        session = connection._session
        await until(lambda: len(session._publishes._backlog) >= 199)
        await clock.advance(3)
        for request_id in waiting:
            assert type(await peer.refusal(request_id)) is RequestTimeout
        assert len(session._publishes._backlog) == 0
        disk.open()
        for request_id in queued:
            await peer.expect(request_id, protocol.Published)
        await peer.store("orders", batch_of(b"last"))
        stored = await peer.ask(
            protocol.FindOffset(topic="orders", partition=0, at="latest"),
            expect=protocol.OffsetFound,
        )
        assert stored.offset == 5


@edge_test
async def test_a_client_that_leaves_takes_what_it_waits_for_along(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with running(tmp_path, disk=disk) as run:
        witness, leaving = await run.peer(), await run.peer()
        await witness.create("orders")
        await witness.store("orders", batch_of(b"first"))
        disk.shut()
        for _ in range(20):
            leaving.publish("orders", batch_of(b"x"))
            leaving.publish("orders", batch_of(b"x"), acks=Acks.NONE)
            leaving.request(protocol.Fetch(topic="orders", partition=0, offset=1, wait_ms=20_000))
        await _settled(run, "fetch", 20)
        sessions = [connection._session for connection in run.connections]
        await leaving.reset()
        await until(lambda: len(run.connections) == 1)
        await until(lambda: all(not session._tasks for session in sessions))
        disk.open()
        await witness.store("orders", batch_of(b"last"))
        assert (await witness.payloads("orders"))[-1] == b"last"


@edge_test
async def test_a_hangup_is_not_mistaken_for_an_error(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        peer.request(protocol.Fetch(topic="orders", partition=0, offset=0, wait_ms=20_000))
        await _settled(run, "fetch", 1)
        await peer.close()
        await until(lambda: not run.connections)
        assert run.errors("shutting_down") == 0
        with pytest.raises(Hangup):
            await peer.reply()
