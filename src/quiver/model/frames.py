"""Frames of the native protocol: how requests and replies lie on the wire.

    size     u32   bytes after this field
    header   u32   bytes of the header
    header   …     msgpack, then zeros up to a multiple of 8
    body     …     the rest: a batch, or entries of a log

All numbers are little-endian. ``FrameAssembler`` cuts a byte stream into frames; large frames are
received straight into the memory that becomes the batch, so that a body is never copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from quiver.errors import ProtocolError
from quiver.model.batch import Bytes

PREFACE = b"QUIVER\x00\x01"
"""What a client sends first, so that anything that is not one is told apart at once."""
FRAME_BYTES_MAX = 72 << 20
HEADER_BYTES_MAX = 1 << 20

_PREFIX = struct.Struct("<II")
_RECEIVE_BYTES = 256 << 10
_SMALL_FRAME = 16 << 10


def frame(header: bytes, body: Sequence[Bytes] = ()) -> list[Bytes]:
    """The buffers of a frame, in order."""
    padding = -len(header) & 7
    size = 4 + len(header) + padding + sum(map(len, body))
    return [_PREFIX.pack(size, len(header)) + header + bytes(padding), *body]


class FrameAssembler:
    """Turns received bytes into frames. Fits ``asyncio.BufferedProtocol``.

    ``buffer`` is where to put bytes next; ``received`` says how many came and yields each frame that
    is now whole, as header and body. A frame over ``frame_bytes_max`` raises before memory is taken
    for it.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._shared = bytearray(_RECEIVE_BYTES)
        self._begin = self._end = 0
        self._large: bytearray | None = None
        self._filled = 0

    @property
    def is_between_frames(self) -> bool:
        return self._large is None and self._begin == self._end

    def buffer(self) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end > _RECEIVE_BYTES - _SMALL_FRAME:
            rest = self._end - self._begin
            self._shared[:rest] = self._shared[self._begin : self._end]
            self._begin, self._end = 0, rest
        return memoryview(self._shared)[self._end :]

    def received(self, count: int) -> Iterator[tuple[memoryview, memoryview]]:
        if self._large is not None:
            self._filled += count
            if self._filled == len(self._large):
                whole, self._large = self._large, None
                yield _split(memoryview(whole))
            return
        self._end += count
        while (size := self._next_size()) is not None:
            have = self._end - self._begin
            if have >= size:
                whole = self._shared[self._begin : self._begin + size]
                self._begin += size
                yield _split(memoryview(whole))
            elif size > _SMALL_FRAME:
                self._large = bytearray(size)
                self._large[:have] = memoryview(self._shared)[self._begin : self._end]
                self._filled, self._begin, self._end = have, 0, 0
                return
            else:
                return

    def _next_size(self) -> int | None:
        """The size of the frame that begins next, its prefix included; ``None`` if not known yet."""
        if self._end - self._begin < _PREFIX.size:
            return None
        size, header_size = _PREFIX.unpack_from(self._shared, self._begin)
        if size + 4 > self.frame_bytes_max:
            raise ProtocolError(
                f"a frame of {size:,} bytes is over the {self.frame_bytes_max:,} allowed"
            )
        if size < 4 or header_size > min(HEADER_BYTES_MAX, size - 4):
            raise ProtocolError("a frame's header does not fit into it")
        return int(size + 4)


def _split(whole: memoryview) -> tuple[memoryview, memoryview]:
    _, header_size = _PREFIX.unpack_from(whole)
    end = _PREFIX.size + header_size
    return whole[_PREFIX.size : end], whole[end + (-header_size & 7) :]
