"""Bodies compressed with gzip or zstd, in both directions, within a bound.

The bound is on the decompressed size: reading stops there, however small the body is.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from quiver.edge.http.off_loop import off_loop
from quiver.errors import BodyTooLarge, MalformedBody, UnsupportedMediaType

CODECS = ("zstd", "gzip")
"""The encodings in the order in which they are preferred."""
WORTH_PACKING_BYTES = 1024


async def unpacked(data: bytes, encoding: str, bytes_max: int) -> bytes:
    """The body that was packed; ``identity`` is no packing."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return data
    if encoding not in CODECS:
        raise UnsupportedMediaType(
            f"bodies may be compressed with {' or '.join(CODECS)}, not {encoding[:80]!r}",
            field="Content-Encoding",
        )
    # A few bytes may unpack to many: where that happens must not be the event loop.
    return await asyncio.to_thread(_unpack, data, encoding, bytes_max)


def _unpack(data: bytes, encoding: str, bytes_max: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.py_buffer(data), encoding) as stream:
            result: bytes = stream.read(bytes_max + 1)
            if len(result) <= bytes_max:
                result += stream.read(1)
    except (OSError, pa.ArrowException) as error:
        raise MalformedBody(f"the body is not valid {encoding}: {str(error)[:200]}") from error
    if len(result) > bytes_max:
        raise BodyTooLarge(f"the decompressed body has more than the {bytes_max:,} bytes allowed")
    return result


def codec_for(accepted: str) -> str | None:
    """The packing that an ``Accept-Encoding`` header allows, if any."""
    allowed: dict[str, bool] = {}
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        allowed[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    for codec in CODECS:
        if allowed.get(codec, allowed.get("*", False)):
            return codec
    return None


async def packed(data: bytes, codec: str) -> bytes:
    return await off_loop(len(data), pa.compress, data, codec=codec, asbytes=True)
