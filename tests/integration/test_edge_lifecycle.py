"""The life of a node: it starts on what is there, ends in bounded time, and loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from quiver import protocol
from quiver.broker.broker import Broker
from quiver.config import parse_address
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.native.server import NativeConnection, NativeServer
from quiver.edge.node import Node
from quiver.edge.observability import Observability
from quiver.errors import DiskFull, FolderInUse, PartitionUnavailable, ShuttingDown
from quiver.model.envelope import ProducerStamp
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.topic import Durability, TopicSettings
from quiver.protocol.frames import PREFACE, frame
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.integration.edge_node import GatedDisk, config, edge_test, running, until
from tests.integration.native_peer import Hangup, Peer, batch_of
from tests.serving import command, environment, served

# ---------------------------------------------------------------------- connections


@edge_test
async def test_a_connection_that_is_lost_holds_no_memory_until_the_collector_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[NativeConnection] = []
    monkeypatch.setattr(
        NativeServer,
        "lost",
        lambda self, one, of=NativeServer.lost: (of(self, one), lost.append(one)),
    )
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        peer.write(frame(b"h" * 100, [bytes(1000)])[0])
        await peer.drain()
        await peer.reset()
        await until(lambda: bool(lost))
        assert not lost[0]._frames._shared


# ---------------------------------------------------------------------- stopping


@edge_test
async def test_a_stopping_node_finishes_the_publishes_under_way(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with running(tmp_path, disk=disk) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"first"))
        disk.shut()
        sent = [peer.publish("orders", batch_of(b"%d" % number)) for number in range(20)]
        await until(lambda: run.counter("quiver_requests_total{call=publish}") == 21)
        stopping = asyncio.create_task(run.node.stop())
        await peer.answer(peer.request(protocol.ListTopics()))
        assert not stopping.done()
        disk.open()
        for request_id in sent:
            await peer.expect(request_id, protocol.Published)
        await stopping
        await peer.hangup()
    async with running(tmp_path, disk=disk) as run:
        payloads = await (await run.peer()).payloads("orders")
        assert payloads == [b"first", *(b"%d" % number for number in range(20))]


@edge_test
async def test_a_stopping_node_answers_those_who_wait_and_takes_nothing_new(
    tmp_path: Path,
) -> None:
    disk = GatedDisk()
    async with running(tmp_path, disk=disk) as run:
        peer, idle = await run.peer(), await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"first"))
        waiting = peer.request(
            protocol.Fetch(topic="orders", partition=0, offset=1, wait_ms=20_000)
        )
        disk.shut()
        under_way = peer.publish("orders", batch_of(b"under way"))
        await until(lambda: run.counter("quiver_requests_total{call=publish}") == 2)
        stopping = asyncio.create_task(run.node.stop())
        assert type(await peer.refusal(waiting)) is ShuttingDown
        for late in (protocol.ListTopics(), protocol.Fetch(topic="orders", partition=0, offset=0)):
            assert type(await peer.refusal(peer.request(late))) is ShuttingDown
        assert type(await peer.refusal(peer.publish("orders", batch_of(b"late")))) is ShuttingDown
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the system likes
            await Peer.connect(run.address)
        disk.open()
        await peer.expect(under_way, protocol.Published)
        await stopping
        await idle.hangup()


@edge_test
async def test_a_client_that_does_not_read_does_not_keep_the_node_from_stopping(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, disk=SimulatedDisk(1), drain_timeout_s=0.5) as run:
        deaf = await run.peer()
        await deaf.create("large")
        for _ in range(8):
            await deaf.store("large", batch_of(bytes(1_000_000)))
        deaf.stop_reading()
        for _ in range(20):
            deaf.request(protocol.Fetch(topic="large", partition=0, offset=0, bytes_max=8 << 20))
        await until(lambda: run.unsent_bytes > 4 << 20)
        began = time.monotonic()
        await run.node.stop()
        assert time.monotonic() - began < 30


@edge_test
async def test_a_disk_that_hangs_does_not_keep_the_node_from_stopping(tmp_path: Path) -> None:
    disk, clock = GatedDisk(), ManualClock()
    (tmp_path / "data").mkdir()
    node = await Node.start(config(tmp_path), disk=disk, clock=clock)
    assert node.native_address is not None
    peer = await Peer.connect(node.native_address)
    await peer.create("orders")
    await peer.store("orders", batch_of(b"first"))
    disk.shut()
    lost = peer.publish("orders", batch_of(b"lost"), timeout_ms=300_000)
    await until(lambda: disk.waiting > 0)
    stopping = asyncio.create_task(node.stop())
    while not stopping.done():
        await clock.advance(1)
        await asyncio.sleep(0.005)
    assert clock.monotonic() < 60
    assert type(await peer.refusal(lost)) is ShuttingDown
    await peer.close()
    with pytest.raises(FolderInUse):  # a late write may still come: nobody else may have it
        await Node.start(config(tmp_path), disk=disk)
    disk.open()


@edge_test
async def test_a_node_may_be_stopped_twice(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        await run.node.stop()
        await run.node.stop()
        async with running(tmp_path) as again:
            assert len(again.connections) == 0, "the folder is free, and a node starts on it"


CLOSING_STEPS: list[tuple[type, str]] = [
    (Observability, "stop"),
    (NativeServer, "drain"),
    (Broker, "close"),
    (TokenStore, "close"),
]


@pytest.mark.parametrize(
    ("part", "step"), CLOSING_STEPS, ids=lambda one: getattr(one, "__name__", one)
)
@edge_test
async def test_a_step_of_stopping_that_fails_skips_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type, step: str
) -> None:
    closed: list[str] = []

    def noting(kind: type, name: str) -> None:
        original = getattr(kind, name)

        async def close(*arguments: Any) -> None:
            await original(*arguments)
            closed.append(kind.__name__)
            if kind is part:
                raise RuntimeError("this step fails")

        monkeypatch.setattr(kind, name, close)

    for kind, name in CLOSING_STEPS:
        noting(kind, name)
    node = await Node.start(config(tmp_path))
    with pytest.raises(RuntimeError, match="this step fails"):
        await node.stop()
    assert closed == [kind.__name__ for kind, _ in CLOSING_STEPS]
    monkeypatch.undo()
    async with running(tmp_path) as again:  # the folder is free
        await (await again.peer()).create("orders")


# ---------------------------------------------------------------------- one folder, one node


@edge_test
async def test_a_second_node_on_the_folder_is_refused_and_the_first_unharmed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        with pytest.raises(FolderInUse, match="in use"):
            await Node.start(config(tmp_path))
        await peer.store("orders", batch_of(b"p"))
    async with running(tmp_path) as run:
        assert await (await run.peer()).payloads("orders") == [b"p"]


@edge_test
async def test_a_start_that_fails_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with running(other) as run:
        on_a_taken_port = msgspec.structs.replace(config(tmp_path), native=run.address)
        with pytest.raises(OSError, match="in use"):
            await Node.start(on_a_taken_port)
    async with running(tmp_path) as run:
        await (await run.peer()).create("orders")


# ---------------------------------------------------------------------- full disks


@edge_test
async def test_a_full_disk_refuses_publishes_and_nothing_else_until_there_is_space(
    tmp_path: Path,
) -> None:
    disk, clock = SimulatedDisk(1, capacity_bytes=8 << 20), ManualClock()
    async with running(tmp_path, disk=disk, clock=clock, free_bytes_min=1 << 20) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", batch_of(b"before"))
        disk.capacity_bytes = 1 << 20
        await clock.advance(1.5)
        await until(lambda: run.node.services.broker.maintenance.disk_is_full)
        error = await peer.refusal(peer.publish("orders", batch_of(b"refused")))
        assert type(error) is DiskFull
        assert error.retryable
        assert "limits.free_bytes_min is 1MiB" in error.message
        await peer.create("other")
        await peer.ask(protocol.DeleteTopic(name="other"), expect=protocol.Done)
        assert await peer.payloads("orders") == [b"before"]
        disk.capacity_bytes = 8 << 20
        await clock.advance(1.5)
        await until(lambda: not run.node.services.broker.maintenance.disk_is_full)
        await peer.store("orders", batch_of(b"after"))
        assert await peer.payloads("orders") == [b"before", b"after"]


@edge_test
async def test_a_disk_that_fills_in_a_write_is_told_as_full_and_comes_back_by_itself(
    tmp_path: Path,
) -> None:
    disk = SimulatedDisk(3, capacity_bytes=300_000)
    async with running(tmp_path, disk=disk) as run:
        peer = await run.peer()
        await peer.create("orders", durability=Durability.OS)
        acknowledged = []
        for number in range(200):
            payload = b"%04d" % number * 2500
            reply, _ = await peer.answer(peer.publish("orders", batch_of(payload)))
            if isinstance(reply, protocol.Failed):
                assert reply.code == DiskFull.code
                break
            acknowledged.append(payload)
        assert await peer.payloads("orders") == acknowledged
        disk.capacity_bytes = 1 << 30
        deadline = time.monotonic() + 20
        while True:
            reply, _ = await peer.answer(peer.publish("orders", batch_of(b"space again")))
            if isinstance(reply, protocol.Published):
                break
            assert reply.code in (DiskFull.code, PartitionUnavailable.code)  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert await peer.payloads("orders") == [*acknowledged, b"space again"]


# ---------------------------------------------------------------------- killed


class Sender:
    """Publishes numbered messages with a session, one after the other, and knows what was answered."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self._sent = 0
        self._identity = (0, 0)

    async def run(self, peer: Peer) -> None:
        """Go on where the last connection broke, until this one does."""
        if self._identity == (0, 0):
            opened = await peer.ask(protocol.OpenProducer(), expect=protocol.ProducerOpened)
            self._identity = (opened.producer_id, opened.producer_epoch)
        while True:
            sequence = len(self.acknowledged)
            producer, epoch = self._identity
            stamp = ProducerStamp(ProducerId(producer), ProducerEpoch(epoch), Sequence(sequence))
            payload = b"message-%06d" % sequence
            await peer.store("orders", batch_of(payload, stamp=stamp))
            self.acknowledged.append(payload)


@pytest.mark.process
def test_a_killed_node_has_every_acknowledged_message_once_when_it_starts_again(
    tmp_path: Path,
) -> None:
    random, sender = Random(7), Sender()

    @edge_test
    async def publish_for(url: str, pid: int, seconds: float) -> None:
        peer = await Peer.connect(parse_address(url.removeprefix("quiver://")))
        if not sender.acknowledged:
            await peer.ask(
                protocol.CreateTopic(name="orders", settings=TopicSettings(), exist_ok=True),
                expect=protocol.Topic,
            )
        asyncio.get_running_loop().call_later(seconds, os.kill, pid, signal.SIGKILL)
        with pytest.raises(Hangup):
            await sender.run(peer)
        await peer.reset()

    @edge_test
    async def verify(url: str) -> None:
        peer = await Peer.connect(parse_address(url.removeprefix("quiver://")))
        stored = await peer.payloads("orders")
        assert stored[: len(sender.acknowledged)] == sender.acknowledged
        assert len(stored) <= len(sender.acknowledged) + 1
        assert len(set(stored)) == len(stored)
        await peer.close()

    for _ in range(3):
        with served(tmp_path) as node:
            publish_for(node.url, node.pid, 0.1 + 0.3 * random.random())
    with served(tmp_path) as node:
        verify(node.url)
        assert node.stop() == 0
    assert len(sender.acknowledged) > 3


@pytest.mark.process
def test_a_terminated_node_ends_well_while_clients_are_at_it(tmp_path: Path) -> None:
    sender = Sender()

    @edge_test
    async def publish(url: str, pid: int) -> None:
        peer = await Peer.connect(parse_address(url.removeprefix("quiver://")))
        await peer.create("orders")
        asyncio.get_running_loop().call_later(0.2, os.kill, pid, signal.SIGTERM)
        with pytest.raises((ShuttingDown, Hangup)):
            await sender.run(peer)
        await peer.reset()

    @edge_test
    async def verify(url: str) -> None:
        peer = await Peer.connect(parse_address(url.removeprefix("quiver://")))
        assert await peer.payloads("orders") == sender.acknowledged
        await peer.close()

    with served(tmp_path) as node:
        publish(node.url, node.pid)
        assert node.wait() == 0
        assert "Traceback" not in node.log
    with served(tmp_path) as node:
        verify(node.url)


# ---------------------------------------------------------------------- few files


@contextmanager
def served_with_files(folder: Path, files: int) -> Iterator[dict[str, str]]:
    """A node that may have so many files and sockets open; where it listens."""
    ready = folder / "ready.json"
    flags = ("--data", str(folder / "data"), "--native", "127.0.0.1:0", "--ready-file", str(ready))
    flags = (*flags, "--http", "127.0.0.1:0")
    limited = ("sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command("serve", *flags))
    with (folder / "log").open("w") as log:
        node = subprocess.Popen(
            limited, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
        )
        try:
            deadline = time.monotonic() + 30
            while not ready.exists():
                assert node.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield json.loads(ready.read_text())
        finally:
            node.kill()
            node.wait()


@pytest.mark.process
def test_connections_never_take_the_files_that_the_log_needs(tmp_path: Path) -> None:
    @edge_test
    async def check(native: str, http: str) -> None:
        witness = await Peer.connect(parse_address(native))
        await witness.create("orders", segment_bytes=1 << 20)
        crowd = []
        for _ in range(300):
            peer = await Peer.connect(parse_address(native), greet=False)
            peer.write(PREFACE)
            crowd.append(peer)
            stranger = await Peer.connect(parse_address(http), greet=False)
            stranger.write(
                b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
            )
            crowd.append(stranger)
        for _ in range(8):  # several new segments, each with its files
            await witness.store("orders", batch_of(bytes(500_000)))
        for number in range(20):
            await witness.create(f"topic-{number}")
            await witness.store(f"topic-{number}", batch_of(b"p"))
        counters = await witness.counters()
        assert counters["quiver_connections_closed_total{reason=overloaded}"] > 100
        for peer in [witness, *crowd]:
            await peer.reset()

    with served_with_files(tmp_path, 256) as ready:
        check(ready["native"], ready["http"])
