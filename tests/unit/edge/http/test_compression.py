"""Bodies that are packed."""

from __future__ import annotations

import asyncio
import contextlib
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.edge.http.compression import CODECS, codec_for, packed, unpacked
from quiver.errors import BodyTooLarge, MalformedBody, UnsupportedMediaType


@given(st.binary(max_size=5000), st.sampled_from(CODECS))
def test_what_is_packed_is_unpacked(data: bytes, codec: str) -> None:
    assert asyncio.run(unpacked(asyncio.run(packed(data, codec)), codec, 5000)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_unpacking_stops_at_the_bound(codec: str) -> None:
    data = asyncio.run(packed(bytes(1000), codec))
    assert len(asyncio.run(unpacked(data, codec, 1000))) == 1000
    with pytest.raises(BodyTooLarge):
        asyncio.run(unpacked(data, codec, 999))


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
def test_whatever_comes_is_unpacked_or_refused(codec: str, data: bytes) -> None:
    with contextlib.suppress(MalformedBody, BodyTooLarge):
        assert len(asyncio.run(unpacked(data, codec, 10_000))) <= 10_000


def test_other_encodings_are_refused() -> None:
    assert asyncio.run(unpacked(b"x", "identity", 10)) == b"x"
    with pytest.raises(UnsupportedMediaType):
        asyncio.run(unpacked(gzip.compress(b"x"), "br", 10))


@pytest.mark.parametrize(
    ("accepted", "codec"),
    [
        ("gzip", "gzip"),
        ("gzip, zstd", "zstd"),
        ("gzip;q=1.0, zstd;q=0", "gzip"),
        ("*", "zstd"),
        ("*;q=0", None),
        ("identity", None),
        ("br", None),
        ("", None),
        ("GZIP", "gzip"),
        (", ,;", None),
    ],
)
def test_the_packing_is_one_that_is_accepted(accepted: str, codec: str | None) -> None:
    assert codec_for(accepted) == codec
