"""The work of ``quiver tail``.

Without a start position it prints the newest messages of each partition, as ``tail`` does with
files. The buffer is bounded: a slow terminal slows the reading down.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import typer

from quiver.aio import cancel_and_wait
from quiver.cli.support.message_text import json_line, text_line
from quiver.cli.support.session import connected_async
from quiver.model.message import Message
from quiver.protocol import PartitionInfo

if TYPE_CHECKING:
    from quiver import AsyncClient

NEWEST = 10
"""Messages printed of each partition if no start position is given."""
WAITING_MAX = 256

Start = tuple[int | None, int | str | datetime]
"""A partition (``None``: all) and its start position."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to show."""

    topic: str
    start: int | str | datetime | None
    """``None``: the newest of each partition."""
    partition: int | None
    key: bytes | None
    follow: bool
    limit: int | None


def show(context: typer.Context, url: str | None, wanted: Wanted, *, json: bool) -> None:
    """Print the wanted messages."""
    asyncio.run(_tail(context, url, wanted, json=json))


class _Printer:
    """Prints the wanted messages, and counts them."""

    def __init__(self, wanted: Wanted, line_of: Callable[[Message], str]) -> None:
        self._wanted = wanted
        self._line_of = line_of
        self._shown = 0

    def show(self, message: Message) -> bool:
        """Print the message if it is wanted; return whether it was the last one."""
        if self._wanted.key is None or message.key == self._wanted.key:
            sys.stdout.write(self._line_of(message) + "\n")
            self._shown += 1
        return self._shown == self._wanted.limit


async def _tail(context: typer.Context, url: str | None, wanted: Wanted, *, json: bool) -> None:
    printer = _Printer(wanted, json_line if json else text_line)
    async with connected_async(context, url) as client:
        starts = await _starts(client, wanted)
        if wanted.follow:
            await _follow(client, wanted.topic, starts, printer)
        else:
            await _show(client, wanted.topic, starts, printer)


async def _starts(client: AsyncClient, wanted: Wanted) -> list[Start]:
    """The partitions to read, with their start positions."""
    if wanted.start is not None:
        return [(wanted.partition, wanted.start)]
    topic = await client.describe_topic(wanted.topic)
    return [
        (each.index, _newest(each))
        for each in topic.partitions
        if wanted.partition in (None, each.index)
    ] or [(wanted.partition, "latest")]


def _newest(partition: PartitionInfo) -> int | str:
    if partition.start_offset is None or partition.next_offset is None:
        return "earliest"
    return max(partition.start_offset, partition.next_offset - NEWEST)


async def _show(client: AsyncClient, topic: str, starts: list[Start], printer: _Printer) -> None:
    for partition, start in starts:
        async with client.read(topic, partition=partition, start=start) as reader:
            async for message in reader.messages():
                if printer.show(message):
                    return


async def _follow(client: AsyncClient, topic: str, starts: list[Start], printer: _Printer) -> None:
    """Print new messages. A reader that follows never ends, so each start has its own."""
    queue: asyncio.Queue[Message | Exception] = asyncio.Queue(WAITING_MAX)

    async def read(partition: int | None, start: int | str | datetime) -> None:
        try:
            async with client.read(topic, partition=partition, start=start, follow=True) as reader:
                async for message in reader.messages():
                    await queue.put(message)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(read(*start)) for start in starts]
    try:
        while not isinstance(message := await queue.get(), Exception):
            is_last = printer.show(message)
            if is_last or queue.empty():
                sys.stdout.flush()
            if is_last:
                return
        raise message
    finally:
        await cancel_and_wait(*tasks)
