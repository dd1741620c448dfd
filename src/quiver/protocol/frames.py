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

import numpy as np

from quiver.errors import ProtocolError
from quiver.model.batch import Bytes

PREFACE = b"QUIVER\x00\x01"
"""What a client sends first, so that anything that is not one is told apart at once."""
FRAME_BYTES_MAX = 72 << 20
HEADER_BYTES_MAX = 1 << 20
"""The largest header of a request. A reply's may fill its frame: there may be many topics to list."""

_PREFIX = struct.Struct("<II")
_HTTP = b"HTTP/"
"""How an answer of HTTP begins. Read as a size, it is larger than any frame."""
_RECEIVE_BYTES = 256 << 10
_SMALL_FRAME = 16 << 10
_TRUSTED_BYTES = 64 << 10
"""Memory taken for a large frame on the word of its prefix alone."""
_GROWTH = 4


def frame(header: bytes, body: Sequence[Bytes] = ()) -> list[Bytes]:
    """The buffers of a frame, in order."""
    padding = -len(header) & 7
    size = 4 + len(header) + padding + sum(map(len, body))
    return [_PREFIX.pack(size, len(header)) + header + bytes(padding), *body]


def first_frame(data: Bytes, frame_bytes_max: int) -> tuple[memoryview, memoryview] | None:
    """The header of the first frame and what follows that frame; ``None`` until it is whole."""
    if len(data) < _PREFIX.size:
        return None
    size, header_size = _PREFIX.unpack_from(data)
    if size + 4 > frame_bytes_max or header_size > size - 4:
        raise ProtocolError(f"a frame is not valid, or has more than {frame_bytes_max:,} bytes")
    if len(data) < size + 4:
        return None
    whole = memoryview(data)
    return whole[_PREFIX.size : _PREFIX.size + header_size], whole[size + 4 :]


class FrameAssembler:
    """Turns received bytes into frames. Fits ``asyncio.BufferedProtocol``.

    ``buffer`` is where to put bytes next; ``received`` says how many came and yields each frame that
    is now whole, as header and body. Who stops in the middle goes on with ``received(0)``. A frame
    over ``frame_bytes_max`` raises; memory for a large one is taken as its bytes arrive.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        header_bytes_max: int = FRAME_BYTES_MAX,
        trusted_bytes: int = _TRUSTED_BYTES,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._trusted_bytes = trusted_bytes
        self._header_bytes_max = header_bytes_max
        self._shared = bytearray()
        self._begin = self._end = 0
        self._large: memoryview | None = None
        self._large_size = self._filled = 0
        self._expects_large = False
        """After a large frame another is likely: little of it is received where it must be copied."""

    @property
    def is_between_frames(self) -> bool:
        return self._large is None and self._begin == self._end

    def rest(self) -> None:
        """Give back the memory for receiving, if nothing is in it, until it is needed again."""
        if self._begin == self._end:
            self._shared = bytearray()
            self._begin = self._end = 0

    def drop(self) -> None:
        """Give back all memory: nobody takes what came, and nothing more comes."""
        self._large = None
        self._begin = self._end = 0
        self.rest()

    def buffer(self) -> memoryview:
        if self._large is not None:
            if self._filled == len(self._large):
                self._enlarge(self._large)
            return self._large[self._filled :]
        if not self._shared:
            self._shared = bytearray(_RECEIVE_BYTES)
        if self._begin == self._end:
            self._begin = self._end = 0
            if self._expects_large:
                return memoryview(self._shared)[:_SMALL_FRAME]
        elif self._end > _RECEIVE_BYTES - _SMALL_FRAME:
            rest = self._end - self._begin
            self._shared[:rest] = self._shared[self._begin : self._end]
            self._begin, self._end = 0, rest
        return memoryview(self._shared)[self._end :]

    def received(self, count: int) -> Iterator[tuple[memoryview, memoryview]]:
        if self._large is not None:
            self._filled += count
            if self._filled == self._large_size:
                whole, self._large = self._large, None
                self._expects_large = True
                yield _split(whole)
            return
        self._end += count
        while (size := self._next_size()) is not None:
            have = self._end - self._begin
            if have >= size:
                self._expects_large = False
                small = self._shared[self._begin : self._begin + size]
                self._begin += size
                yield _split(memoryview(small))
            elif size > _SMALL_FRAME:
                self._large_size, self._filled = size, have
                self._enlarge(memoryview(self._shared)[self._begin : self._end])
                self._begin = self._end = 0
                return
            else:
                return

    def _enlarge(self, filled: Bytes) -> None:
        """Take memory for a large frame: for all of it, or a few times as much as has come.

        It is not cleared: nobody sees it before it is filled.
        """
        size = min(self._large_size, max(self._trusted_bytes, _GROWTH * len(filled)))
        self._large = np.empty(size, np.uint8).data
        self._large[: len(filled)] = filled

    def _next_size(self) -> int | None:
        """The size of the frame that begins next, its prefix included; ``None`` if not known yet."""
        if self._end - self._begin < _PREFIX.size:
            return None
        size, header_size = _PREFIX.unpack_from(self._shared, self._begin)
        if size + 4 > self.frame_bytes_max:
            if self._shared[self._begin : self._begin + len(_HTTP)] == _HTTP:
                raise ProtocolError(
                    "the other side speaks HTTP, not the native protocol", protocol="http"
                )
            raise ProtocolError(
                f"a frame has {size + 4:,} bytes, more than the {self.frame_bytes_max:,} allowed"
            )
        if size < 4 or header_size > size - 4:
            raise ProtocolError("the header of a frame is larger than the frame")
        if header_size > self._header_bytes_max:
            raise ProtocolError(
                f"a header has {header_size:,} bytes, more than the {self._header_bytes_max:,} "
                "allowed"
            )
        return int(size + 4)


def _split(whole: memoryview) -> tuple[memoryview, memoryview]:
    """Header and body. A body that is the smaller part is copied: who keeps it keeps no more."""
    _, header_size = _PREFIX.unpack_from(whole)
    end = _PREFIX.size + header_size
    header, body = whole[_PREFIX.size : end], whole[end + (-header_size & 7) :]
    return header, body if len(body) >= header_size else memoryview(bytes(body))
