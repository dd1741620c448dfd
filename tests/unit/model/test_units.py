"""Durations and sizes as people write them."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.errors import InvalidSetting
from quiver.model.units import duration_text, microseconds, seconds, size_bytes, size_text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("30s", 30),
        ("1h30m", 5400),
        ("-7d", -7 * 86400),
        ("250ms", 0.25),
        ("5us", 5e-6),
        ("1.5h", 5400),
        ("2w", 14 * 86400),
        (" 10 ", 10),
        ("-0.5", -0.5),
        (12, 12),
        (0.5, 0.5),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_duration_is_read_as_seconds(written: object, expected: float) -> None:
    assert seconds(written) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "-",
        "s",
        "5 parsecs",
        "1h 30m",
        "--5",
        "-+5",
        "++5",
        "nan",
        "inf",
        "-inf",
        "9" * 400,
        "9" * 400 + "d",
        "x" * 100_000,
        float("nan"),
        float("inf"),
        10**400,
        True,
        None,
        b"30s",
        [30],
    ],
)
def test_what_is_no_duration_is_refused_in_few_words(written: object) -> None:
    with pytest.raises(InvalidSetting, match="not a duration") as refused:
        seconds(written)  # type: ignore[arg-type]
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0", 0),
        ("1KB", 1000),
        ("1 KiB", 1024),
        ("1.5MiB", 3 << 19),
        ("256mib", 256 << 20),
        ("10GB", 10**10),
        ("2TiB", 2 << 40),
        ("7B", 7),
        (42, 42),
    ],
)
def test_a_size_is_read_as_bytes(written: object, expected: int) -> None:
    assert size_bytes(written) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "B",
        "-1",
        "1XB",
        "1e3",
        "1.B",
        "9" * 400,
        "9" * 5000 + "GB",
        True,
        None,
        1.5,
        "x" * 10_000,
    ],
)
def test_what_is_no_size_is_refused_in_few_words(written: object) -> None:
    with pytest.raises(InvalidSetting, match="not a size") as refused:
        size_bytes(written)  # type: ignore[arg-type]
    assert len(refused.value.message) < 200


@settings(max_examples=40)
@given(st.integers(0, (1 << 63) - 1))
def test_every_whole_number_of_bytes_is_read_exactly(size: int) -> None:
    assert size_bytes(str(size)) == size_bytes(f"{size}B") == size


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.sampled_from([("us", 1), ("ms", 1000), ("s", 10**6)]))
def test_whole_units_are_exact_in_microseconds(amount: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    assert microseconds(f"{amount}{name}") == amount * factor


@settings(max_examples=40)
@given(st.text(max_size=20))
def test_any_text_is_understood_or_refused_as_a_setting(text: str) -> None:
    for read in (seconds, size_bytes):
        with contextlib.suppress(InvalidSetting):
            read(text)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0s"),
        (0.05, "50ms"),
        (0.0005, "0.0005s"),
        (2.999, "2.999s"),
        (30, "30s"),
        (300, "5m"),
        (5400, "1h30m"),
        (12 * 3600 + 0.001, "12h0.001s"),
        (-1, "-1s"),
        (36_500 * 86_400, "36500d"),
        (1e300, "1e+300s"),
    ],
)
def test_a_duration_is_shown_as_it_is_written(duration_s: float, text: str) -> None:
    assert duration_text(duration_s) == text


@given(st.integers(-(10**16), 10**16))
def test_a_duration_that_is_shown_is_read_back(duration_us: int) -> None:
    assert microseconds(duration_text(duration_us / 1_000_000)) == pytest.approx(duration_us, abs=2)


@given(st.integers(0, 1 << 60))
def test_a_size_that_is_shown_is_read_back(size: int) -> None:
    assert size_bytes(size_text(size)) == size
