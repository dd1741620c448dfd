"""``like``: what patterns match, against a matcher that goes character by character."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.model.filter import parse_filter
from tests.unit.log.small_logs import effort


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def is_like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(is_like(text[start:], pattern[1:]) for start in range(len(text) + 1))
    if pattern[0] == "\\":
        return text[:1] == pattern[1] and is_like(text[1:], pattern[2:])
    return bool(text) and pattern[0] in ("_", text[0]) and is_like(text[1:], pattern[1:])


def like_truth(value: str | bytes, pattern: str) -> bool:
    if isinstance(value, bytes):  # every byte is one character
        return is_like(value.decode("latin-1"), pattern.encode().decode("latin-1"))
    return is_like(value, pattern)


def matched(column: str, values: list[str] | list[bytes], pattern: str) -> list[bool]:
    kind = pa.binary() if column == "key" else pa.string()
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=[column])
    found: list[bool] = parse_filter(f"{column} like {quoted(pattern)}").mask(rows).tolist()
    return found


small_texts = st.text("ab%_\\'é\n€.*", max_size=4)
pieces = st.sampled_from(
    ["%", "_", "a", "b", "é", "\\%", "\\_", "\\\\", "\\a", "\n", "'", ".", "*"]
)
patterns = st.lists(pieces, max_size=5).map("".join)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", [""], ["a"]),
        ("a", ["a"], ["", "A", "ab", "ba"]),
        ("%", ["", "a", "a\nb"], []),
        ("%%", ["", "a"], []),
        ("a%", ["a", "ab", "a\n"], ["", "ba"]),
        ("%a", ["a", "ba", "\na"], ["", "ab"]),
        ("%a%", ["a", "ba", "ab", "bab"], ["", "b"]),
        ("a%b", ["ab", "axb", "a\nb"], ["a", "b", "abc"]),
        ("%a%b%", ["ab", "xaxbx"], ["ba"]),
        ("_", ["a", "é", "€", "\n", "%"], ["", "ab"]),
        ("a_c", ["abc", "a\nc"], ["ac", "abbc"]),
        ("%_%", ["a", "ab"], [""]),
        ("a.c", ["a.c"], ["abc"]),
        ("a.*c%d", ["a.*cd", "a.*cxd"], ["abcd", "acd"]),
        ("[a]_", ["[a]b"], ["ab"]),
        (r"100\%", ["100%"], ["1000", "100", r"100\%"]),
        (r"%\%", ["100%", "%"], ["100", ""]),
        (r"\%%", ["%", "%a"], ["a"]),
        (r"a\_b%", ["a_b", "a_bc"], ["axb"]),
        (r"%\\", ["a\\", "\\"], ["a", "\\a"]),
        (r"\\%", ["\\", "\\a"], ["a", "%"]),
        (r"\a\b", ["ab"], [r"\a\b"]),
        ("a\x00_", ["a\x00b"], ["a\x00", "ab"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert matched("dedup_id", yes + no, pattern) == [True] * len(yes) + [False] * len(no)


def test_in_a_key_an_underscore_is_one_byte() -> None:
    assert matched("key", ["é".encode(), b"\xff", b"e"], "_") == [False, True, True]
    assert matched("key", ["é".encode(), b"\xff\xfe", b"e"], "__") == [True, True, False]
    assert matched("key", ["né".encode(), b"n\xc3"], "_é") == [True, False]


@settings(max_examples=200 * effort(), deadline=None)
@given(patterns, st.lists(small_texts, min_size=1), st.lists(st.binary(max_size=3), min_size=1))
def test_a_pattern_matches_what_the_reference_says(
    pattern: str, texts: list[str], odd_keys: list[bytes]
) -> None:
    assert matched("dedup_id", texts, pattern) == [like_truth(text, pattern) for text in texts]
    keys = [*(text.encode() for text in texts), *odd_keys]
    assert matched("key", keys, pattern) == [like_truth(key, pattern) for key in keys]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("_" * 256, "€" * 256),
        ("%" + "é_" * 10 + "é" * 235, "é" * 300),
        ("%a" * 128, "a" * 300),
        ("€%" * 128, "€" * 128),
        (r"\%" * 128, "%" * 128),
        ("._" * 10 + "%*" * 118, ".x" * 10 + "*" * 118),
    ],
)
def test_patterns_at_their_bounds_are_evaluated(pattern: str, text: str) -> None:
    assert len(pattern) == 256
    assert matched("dedup_id", [text, text[1:-1] + "x"], pattern) == [True, False]
