"""Messages pushed over a WebSocket to one consumer that acknowledges them."""

from __future__ import annotations

import asyncio
import time

import msgspec
import uvloop
from websockets.asyncio.client import connect

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.rounds import median_of
from benchmarks.harness.row import Row, at_least
from quiver import Client

_SECONDS_MAX = 60.0


class _Message(msgspec.Struct):
    receipt_handle: str


class _Messages(msgspec.Struct):
    type: str
    messages: list[_Message] = []


_frames = msgspec.json.Decoder(_Messages)


def push_json(bench: Bench) -> list[Row]:
    count = bench.pick(40_000, 500)
    with bench.folder() as folder, served(folder) as node:
        turns = iter(range(100))
        rate = median_of(
            bench.pick(3, 1), lambda: _filled_and_pushed(node, f"pushed-{next(turns)}", count)
        )
    return [
        Row(
            name="WebSocket push of 100-byte JSON messages, one consumer, acked",
            value=rate,
            unit="msg/s",
            target=at_least(40_000),
            note="credit of 10,000 renewed as it is used; acked a frame at a time",
        )
    ]


def _filled_and_pushed(node: Child, queue: str, count: int) -> float:
    with Client(node.url) as client:
        client.create_queue(queue)
        with client.producer(queue) as producer:
            for number in range(count):
                producer.send({"number": number, "filling": "x" * 70})
    return uvloop.run(_pushed(node, queue, count))


async def _pushed(node: Child, queue: str, count: int) -> float:
    host, port = node.http_address
    url = f"ws://{host}:{port}/subscriptions/{queue}/stream"
    async with (
        asyncio.timeout(_SECONDS_MAX),
        connect(url, compression=None, proxy=None, max_size=None) as socket,
    ):
        began = time.perf_counter()
        await socket.send('{"type": "credit", "messages": 10000}')
        got = acked = 0
        while acked < count:
            frame = _frames.decode(await socket.recv(decode=False))
            if frame.type == "messages":
                got += len(frame.messages)
                receipts = [message.receipt_handle for message in frame.messages]
                ack = {"type": "ack", "receipts": receipts, "ref": len(receipts)}
                await socket.send(msgspec.json.encode(ack).decode())
                credit = {"type": "credit", "messages": len(receipts)}
                await socket.send(msgspec.json.encode(credit).decode())
            elif frame.type == "settled":
                acked = got
        return count / (time.perf_counter() - began)
