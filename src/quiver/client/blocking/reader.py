"""A reader for programs without an event loop: an iterator of record batches, or of messages.

The loop thread fetches entries ahead. The reading thread converts them to batches or messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from quiver.client.async_client import AsyncClient
from quiver.client.blocking.loop_thread import LoopThread, look_after
from quiver.client.blocking.wrapper import Wrapper, blocking
from quiver.client.reader.columns import batches_of
from quiver.client.reader.message_rows import messages_of
from quiver.client.reader.read_ahead import Chunk
from quiver.client.reader.reader import AsyncReader
from quiver.errors import InvalidRequest
from quiver.model.message import Message


class Reader(Wrapper[AsyncReader]):
    """A reader of one topic; ``Client.read`` creates it. Use it in a ``with`` block, or call ``close``."""

    def __init__(
        self,
        client: Callable[[], AsyncClient],
        thread: Callable[[], LoopThread],
        make: Callable[[AsyncClient], AsyncReader],
    ) -> None:
        self._thread = thread()

        async def made() -> AsyncReader:
            return make(client())

        self._inner: AsyncReader | None = self._thread.run(made)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        look_after(self)

    table = blocking(AsyncReader.table)
    bounds = blocking(AsyncReader.bounds)
    close = blocking(AsyncReader.close)
    _next_chunk = blocking(AsyncReader.next_chunk)

    @property
    def topic(self) -> str:
        return self._wrapped().topic

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._wrapped().schema

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            for batch in self._batches:
                return batch
            chunk = self._next_chunk()
            if chunk is None:
                raise StopIteration
            self._batches = batches_of(chunk, self.schema)

    def chunks(self) -> Iterator[Chunk]:
        """The stored entries as they are, a few at a time."""
        while (chunk := self._next_chunk()) is not None:
            yield chunk

    def messages(self) -> Iterator[Message]:
        """Iterate over the messages one by one."""
        for chunk in self.chunks():
            yield from messages_of(chunk)

    def _wrapped(self) -> AsyncReader:
        if self._inner is None:
            raise InvalidRequest(
                "this reader belongs to the parent process: create a new one after a fork"
            )
        return self._inner

    def _loop_thread(self) -> LoopThread:
        return self._thread

    def forget(self) -> object:
        inherited, self._inner = (self._inner, self._batches), None
        return inherited

    def end(self) -> None:
        """The client stops it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
