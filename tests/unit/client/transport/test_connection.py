"""The channel over a socket, against a server that does what it should not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from quiver import protocol
from quiver.client.transport import connection as connection_module
from quiver.client.transport import dialer as dialer_module
from quiver.client.transport.channel import Channel
from quiver.client.transport.connection import Connection
from quiver.client.transport.dialer import SocketDialer
from quiver.errors import (
    ConnectionLost,
    MessageTooLarge,
    Overloaded,
    ProtocolError,
    RequestTimeout,
    TopicNotFound,
    UnsupportedProtocol,
)
from quiver.model.batch import Bytes
from tests.aio import async_test, turns
from tests.unit.client.transport.framed_server import Visitor, framed_server


@contextlib.asynccontextmanager
async def dialled(address: str) -> AsyncIterator[Connection]:
    channel = await SocketDialer().dial(address)
    assert isinstance(channel, Connection)
    try:
        yield channel
    finally:
        await channel.close()


async def answer_all(visitor: Visitor) -> None:
    await visitor.welcome()
    while True:
        visitor.done((await visitor.next_request())[0])


class TestHandshake:
    @async_test
    async def test_nobody_listens(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            with pytest.raises(ConnectionLost, match="check that a node runs there"):
                await SocketDialer().dial(address)

    @async_test
    async def test_a_node_that_shares_no_version_says_so(self) -> None:
        async def refuse(visitor: Visitor) -> None:
            await visitor.take_preface()
            hello, _ = await visitor.next_request()
            visitor.reply(protocol.failure(hello.id, UnsupportedProtocol("too old")))
            await visitor.next_request()

        async with framed_server(refuse) as address:
            with pytest.raises(UnsupportedProtocol, match="too old"):
                await SocketDialer().dial(address)

    @async_test
    async def test_an_http_port_is_recognised(self) -> None:
        async def greet(visitor: Visitor) -> None:
            visitor.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await visitor.take_preface()

        async with framed_server(greet) as address:
            with pytest.raises(ProtocolError, match="HTTP port; use the native port, 7401 by"):
                await SocketDialer().dial(address)

    @async_test
    async def test_a_server_of_another_kind_is_recognised(self) -> None:
        async def greet(visitor: Visitor) -> None:
            visitor.writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await visitor.take_preface()

        async with framed_server(greet) as address:
            with pytest.raises((ProtocolError, ConnectionLost), match="it is the native port"):
                await SocketDialer().dial(address)

    @async_test
    async def test_a_server_that_says_nothing_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silent(visitor: Visitor) -> None:
            await visitor.take_preface()
            while True:
                await visitor.next_request()

        monkeypatch.setattr(dialer_module, "CONNECT_TIMEOUT_S", 0.05)
        async with framed_server(silent) as address:
            with pytest.raises(RequestTimeout):
                await SocketDialer().dial(address)

    @async_test
    async def test_a_node_that_hangs_up_with_a_reason_is_quoted(self) -> None:
        async def full(visitor: Visitor) -> None:
            visitor.reply(protocol.failure(0, Overloaded("too many connections")))
            await visitor.take_preface()

        async with framed_server(full) as address:
            with pytest.raises(ProtocolError, match="too many connections"):
                await SocketDialer().dial(address)


class TestSilence:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection_module, "_QUIET_S", 0.02)
        monkeypatch.setattr(connection_module, "_SILENT_S", 0.5)

    @async_test
    async def test_a_node_that_answers_not_even_a_ping_is_given_up_long_before_the_request(
        self,
    ) -> None:
        async def mute(visitor: Visitor) -> None:
            await visitor.welcome()
            while True:
                await visitor.next_request()

        async with framed_server(mute) as address, dialled(address) as channel:
            with pytest.raises(ConnectionLost, match="stopped answering"):
                await channel.call(protocol.ListTopics(), timeout_s=100)

    @async_test
    async def test_a_node_that_takes_long_and_answers_pings_is_waited_for(self) -> None:
        pings = 0

        async def slow(visitor: Visitor) -> None:
            nonlocal pings
            await visitor.welcome()
            asked, _ = await visitor.next_request()
            while pings < 2:
                ping, _ = await visitor.next_request()
                assert isinstance(ping, protocol.Ping)
                visitor.done(ping)
                pings += 1
            visitor.done(asked)

        async with framed_server(slow) as address, dialled(address) as channel:
            await channel.call(protocol.ListTopics(), timeout_s=100)
        assert pings == 2


class TestCalls:
    @async_test
    async def test_answers_may_come_in_any_order(self) -> None:
        async def reverse(visitor: Visitor) -> None:
            await visitor.welcome()
            requests = [(await visitor.next_request())[0] for _ in range(5)]
            for request in reversed(requests):
                assert isinstance(request, protocol.FindOffset)
                visitor.reply(protocol.OffsetFound(id=request.id, offset=request.partition))
            await visitor.next_request()

        async with framed_server(reverse) as address, dialled(address) as channel:
            futures = [
                channel.start(protocol.FindOffset(topic="t", partition=number))
                for number in range(5)
            ]
            answers = [reply for reply, _ in await asyncio.gather(*futures)]
            assert [reply.offset for reply in answers] == list(range(5))  # type: ignore[union-attr]

    @async_test
    async def test_a_failed_reply_becomes_its_error(self) -> None:
        async def fail(visitor: Visitor) -> None:
            await visitor.welcome()
            request, _ = await visitor.next_request()
            visitor.reply(protocol.failure(request.id, TopicNotFound("no such", topic="t")))
            await visitor.next_request()

        async with framed_server(fail) as address, dialled(address) as channel:
            with pytest.raises(TopicNotFound, match="no such") as caught:
                await channel.call(protocol.DescribeTopic(name="t"))
            assert caught.value.details == {"topic": "t"}
            assert channel.is_open

    @async_test
    async def test_bodies_of_any_size_arrive_whole(self) -> None:
        async def echo(visitor: Visitor) -> None:
            await visitor.welcome()
            while True:
                request, body = await visitor.next_request()
                visitor.reply(protocol.Done(id=request.id), body)

        async with framed_server(echo) as address, dialled(address) as channel:
            bodies = [bytes([number]) * size for number, size in enumerate((0, 1, 70_000, 5 << 20))]
            futures = [
                channel.start(protocol.Publish(topic="t", partition=0), [body[:3], body[3:]])
                for body in bodies
            ]
            assert [bytes(body) for _, body in await asyncio.gather(*futures)] == bodies

    @async_test
    async def test_requests_beyond_the_nodes_bound_wait_their_turn(self) -> None:
        unanswered_max = 0

        async def few(visitor: Visitor) -> None:
            nonlocal unanswered_max
            await visitor.welcome(requests_max=3)
            waiting: list[protocol.AnyRequest] = []
            answered = 0
            while answered < 10:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        while True:
                            waiting.append((await visitor.next_request())[0])
                unanswered_max = max(unanswered_max, len(waiting))
                if len(waiting) == min(3, 10 - answered):
                    visitor.done(waiting.pop(0))
                    answered += 1
            await visitor.next_request()

        async with framed_server(few) as address, dialled(address) as channel:
            futures = [channel.start(protocol.Ping()) for _ in range(10)]
            assert channel.is_congested
            await asyncio.gather(*futures)
            await channel.drain()
            assert unanswered_max == 3

    @async_test
    async def test_requests_that_wait_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def mute(visitor: Visitor) -> None:
            await visitor.welcome(requests_max=1)
            while True:
                await visitor.next_request()

        monkeypatch.setattr(connection_module, "WAITING_MAX", 5)
        async with framed_server(mute) as address, dialled(address) as channel:
            futures = [channel.start(protocol.Ping()) for _ in range(7)]
            with pytest.raises(Overloaded):
                await futures[-1]
            await channel.close()
            for future in futures[:-1]:
                assert isinstance(future.exception(), ConnectionLost)

    @async_test
    async def test_a_request_over_the_nodes_bound_is_not_sent(self) -> None:
        async def small(visitor: Visitor) -> None:
            await visitor.welcome(frame_bytes_max=1000)
            while True:
                visitor.done((await visitor.next_request())[0])

        async with framed_server(small) as address, dialled(address) as channel:
            with pytest.raises(MessageTooLarge, match="1,000"):
                await channel.call(protocol.Publish(topic="t", partition=0), [bytes(1000)])
            await channel.call(protocol.Ping())


class TestEndings:
    @async_test
    async def test_a_broken_connection_fails_what_is_unanswered_and_what_comes_after(self) -> None:
        async def hang_up(visitor: Visitor) -> None:
            await visitor.welcome()
            await visitor.next_request()

        async with framed_server(hang_up) as address, dialled(address) as channel:
            futures = [channel.start(protocol.Ping()) for _ in range(3)]
            for future in futures:
                with pytest.raises(ConnectionLost, match="was lost before the answer"):
                    await future
            assert not channel.is_open
            with pytest.raises(ConnectionLost):
                await channel.call(protocol.Ping())
            await channel.drain()

    @async_test
    async def test_one_request_may_time_out_while_others_are_answered(self) -> None:
        async def forgetful(visitor: Visitor) -> None:
            await visitor.welcome()
            first, _ = await visitor.next_request()
            for _ in range(2):
                visitor.done((await visitor.next_request())[0])
            visitor.done(first)
            visitor.done((await visitor.next_request())[0])
            await visitor.next_request()

        async with framed_server(forgetful) as address, dialled(address) as channel:
            forgotten = channel.start(protocol.Ping(), timeout_s=0.05)
            await channel.call(protocol.Ping())
            with pytest.raises(RequestTimeout, match="may or may not have been carried out"):
                await forgotten
            await channel.call(protocol.Ping())
            await channel.call(protocol.Ping())

    @async_test
    async def test_a_node_that_has_gone_silent_is_given_up(self) -> None:
        async def mute(visitor: Visitor) -> None:
            await visitor.welcome()
            while True:
                await visitor.next_request()

        async with framed_server(mute) as address, dialled(address) as channel:
            patient = channel.start(protocol.Ping(), timeout_s=60)
            with pytest.raises(RequestTimeout):
                await channel.call(protocol.Ping(), timeout_s=0.05)
            with pytest.raises(ConnectionLost, match="stopped answering"):
                await patient
            assert not channel.is_open

    @async_test
    async def test_a_cancelled_call_leaves_the_channel_usable(self) -> None:
        async with framed_server(answer_all) as address, dialled(address) as channel:
            call = asyncio.create_task(channel.call(protocol.Ping()))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
            reply, _ = await channel.call(protocol.Ping())
            assert isinstance(reply, protocol.Done)

    @async_test
    async def test_bytes_that_are_no_reply_end_the_connection(self) -> None:
        async def babble(visitor: Visitor) -> None:
            await visitor.welcome()
            await visitor.next_request()
            visitor.writer.write(b"\x10\x00\x00\x00\x08\x00\x00\x00nonsense....")
            await visitor.next_request()

        async with framed_server(babble) as address, dialled(address) as channel:
            with pytest.raises(ProtocolError):
                await channel.call(protocol.Ping())
            assert not channel.is_open

    @async_test
    async def test_a_server_that_does_not_read_is_felt_and_waited_for(self) -> None:
        may_read = asyncio.Event()

        async def slow(visitor: Visitor) -> None:
            await visitor.welcome()
            await may_read.wait()
            while True:
                visitor.done((await visitor.next_request())[0])

        async with framed_server(slow) as address, dialled(address) as channel:
            futures = []
            while not channel.is_congested:
                futures.append(
                    channel.start(protocol.Publish(topic="t", partition=0), [bytes(1 << 20)])
                )
                await asyncio.sleep(0)
                assert len(futures) < 100, "the bound is felt"
            draining = asyncio.create_task(channel.drain())
            await turns()
            assert not draining.done()
            may_read.set()
            await draining
            await asyncio.gather(*futures)

    @async_test
    async def test_closing_does_not_wait_for_a_server_that_does_not_read(self) -> None:
        async def stuck(visitor: Visitor) -> None:
            await visitor.welcome()
            await asyncio.Event().wait()

        async with framed_server(stuck) as address:
            channel: Channel = await SocketDialer().dial(address)
            future = channel.start(protocol.Publish(topic="t", partition=0), [bytes(32 << 20)])
            async with asyncio.timeout(50):
                await channel.close()
            assert isinstance(future.exception(), ConnectionLost)


class TestWriting:
    @async_test
    async def test_small_requests_of_one_moment_are_written_together_and_in_order(self) -> None:
        async with framed_server(answer_all) as address, dialled(address) as connection:
            writes = watch_writes(connection)
            calls = [connection.start(protocol.Ping()) for _ in range(10)]
            assert writes == []
            await asyncio.gather(*calls)
            assert len(writes) == 1

    @async_test
    async def test_a_large_request_is_written_at_once_behind_those_before_it(self) -> None:
        taken: list[protocol.AnyRequest] = []

        async def take(visitor: Visitor) -> None:
            await visitor.welcome()
            while True:
                request, _ = await visitor.next_request()
                taken.append(request)
                visitor.done(request)

        async with framed_server(take) as address, dialled(address) as connection:
            writes = watch_writes(connection)
            small = connection.start(protocol.Ping())
            large = connection.start(protocol.Publish(topic="t", partition=0), [bytes(100_000)])
            assert len(writes) == 1
            await asyncio.gather(small, large)
            assert [type(request) for request in taken] == [protocol.Ping, protocol.Publish]


def watch_writes(connection: Connection) -> list[int]:
    """How many buffers each write to the socket has from now on."""
    writes: list[int] = []
    write = connection._write

    def watched(buffers: list[Bytes]) -> None:
        writes.append(len(buffers))
        write(buffers)

    connection._write = watched  # type: ignore[method-assign]
    return writes
