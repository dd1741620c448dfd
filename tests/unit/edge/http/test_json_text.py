"""What counts as JSON, and how deep it may be."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.edge.http import json_text
from quiver.edge.http.json_text import DEPTH_MAX, _depth, as_json, check_depth, decode
from quiver.errors import InvalidRequest, MalformedBody

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(VALUES, st.booleans())
def test_depth_is_counted_outside_of_strings(value: Any, ascii: bool) -> None:
    assert _depth(json.dumps(value, ensure_ascii=ascii).encode()) == depth_of(value)


@given(VALUES, st.integers(1, 9))
def test_depth_is_the_same_however_the_text_is_cut(value: Any, slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_SLICE_BYTES", slice_bytes)
        assert _depth(json.dumps(value).encode()) == depth_of(value)


def test_the_rest_is_not_looked_at_once_a_text_is_too_deep() -> None:
    text = b"[" * (1 << 20)
    assert DEPTH_MAX < _depth(text, DEPTH_MAX) < len(text) // 2


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, False),
        (b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), True),
        (b'{"a":' * 200 + b"1" + b"}" * 200, True),
        (b"[" + b"[]," * 5000 + b"[]]", False),
        (b'"' + b"[" * 5000 + b'"', False),
        (b'"\\"' + b"{" * 5000 + b'"', False),
        (b'["\\\\",' + b"[" * 200 + b"]" * 201, True),
        (b"[" * 200 + b'"' + b"x" * 10_000 + b'"' + b"]" * 200, True),
        (b'{"a":' * 200 + b'"' + b"x" * 10_000 + b'"' + b"}" * 200, True),
        (b"[" * DEPTH_MAX + b'"' + b"x" * 10_000 + b'"' + b"]" * DEPTH_MAX, False),
    ],
)
def test_only_what_is_nested_too_deep_is_refused(text: bytes, deep: bool) -> None:
    if deep:
        with pytest.raises(InvalidRequest):
            check_depth(text)
    else:
        check_depth(text)


@given(VALUES)
def test_json_stays_the_bytes_it_was(value: Any) -> None:
    text = json.dumps(value).encode()
    raw = as_json(text)
    assert raw is not None
    assert bytes(raw) == text


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_what_is_told_as_json_can_be_read_as_json(payload: bytes) -> None:
    raw = as_json(payload)
    if raw is not None:
        document = msgspec.json.encode({"body": raw})
        assert json.loads(document)["body"] == json.loads(payload)


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b'"\xff"', b"NaN", b"{", b"[" * 200 + b"]" * 200]
)
def test_what_is_not_json_is_not_told_as_json(payload: bytes) -> None:
    assert as_json(payload) is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[1, 2", MalformedBody),
        (b"\xff", MalformedBody),
        (b'"text"', InvalidRequest),
        (b"[" * 100_000, InvalidRequest),
    ],
)
def test_a_body_that_is_wrong_is_a_quiver_error(text: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode(msgspec.json.Decoder(list[Any]), text)
