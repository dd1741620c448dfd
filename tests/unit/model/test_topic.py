"""Topics: their names, and the bounds of everything that can be set about them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as limited
from hypothesis import strategies as st

from quiver.errors import InvalidSetting
from quiver.model.topic import (
    PARTITIONS_MAX,
    Acks,
    Compression,
    Durability,
    Retention,
    TopicSettings,
    topic_name,
)

retentions = st.builds(
    Retention,
    age=st.none() | st.integers(1, 10**9),
    bytes=st.none() | st.integers(1, 1 << 60),
    messages=st.none() | st.integers(1, 1 << 60),
    acked=st.booleans(),
)
settings = st.builds(
    TopicSettings,
    partitions=st.integers(1, PARTITIONS_MAX),
    durability=st.sampled_from(Durability),
    sync_interval_ms=st.integers(1, 60_000),
    retention=retentions,
    compression=st.sampled_from(Compression),
    message_bytes_max=st.integers(1, 32 << 20),
    acks=st.sampled_from(Acks),
    segment_bytes=st.integers(1 << 20, 1 << 36),
    segment_age_s=st.integers(1, 10 * 365 * 86400),
)


@limited(max_examples=40)
@given(settings)
def test_settings_come_back_from_the_wire_as_they_went(given_settings: TopicSettings) -> None:
    packed = msgspec.msgpack.encode(given_settings)
    assert msgspec.msgpack.decode(packed, type=TopicSettings) == given_settings


def test_retention_may_be_written_as_people_do() -> None:
    kept = Retention(age="7d", bytes="10GB")
    assert (kept.age_s, kept.size) == (7 * 86400, 10**10)


def test_no_limit_is_no_limit() -> None:
    unlimited = Retention(age=None, bytes=None, messages=None)
    assert (unlimited.age_s, unlimited.size, unlimited.messages) == (None, None, None)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("partitions", 0),
        ("partitions", -1),
        ("partitions", PARTITIONS_MAX + 1),
        ("partitions", 1 << 62),
        ("sync_interval_ms", 0),
        ("sync_interval_ms", 60_001),
        ("message_bytes_max", 0),
        ("message_bytes_max", (32 << 20) + 1),
        ("segment_bytes", (1 << 20) - 1),
        ("segment_bytes", (1 << 36) + 1),
        ("segment_age_s", 0),
        ("segment_age_s", 11 * 365 * 86400),
    ],
)
def test_a_setting_outside_its_bounds_is_refused_by_name(setting: str, value: int) -> None:
    with pytest.raises(InvalidSetting, match=setting) as refused:
        TopicSettings(**{setting: value})
    assert refused.value.details["setting"] == setting


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("age", 0),
        ("age", -1),
        ("age", "-1h"),
        ("age", float("nan")),
        ("age", "1000000w"),
        ("bytes", 0),
        ("bytes", "0"),
        ("bytes", 1 << 61),
        ("messages", 0),
    ],
)
def test_retention_outside_its_bounds_is_refused(setting: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=f"retention.{setting}"):
        Retention(**{setting: value})  # type: ignore[arg-type]


@limited(max_examples=40)
@given(st.from_regex(r"[A-Za-z0-9.-][A-Za-z0-9_.-]{0,199}", fullmatch=True))
def test_letters_digits_dots_dashes_and_underlines_make_a_name(name: str) -> None:
    if name not in {".", ".."}:
        assert topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../etc",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a\0b",
        "a b",
        "a\n",
        "\na",
        "é",
        "a@1",
        "٣",
        "x" * 201,
        "x" * 1_000_000,
        "__",
        "__quiver",
        7,
        None,
        b"orders",
    ],
)
def test_any_other_name_is_refused_in_few_words(name: object) -> None:
    with pytest.raises(InvalidSetting) as refused:
        topic_name(name)  # type: ignore[arg-type]
    assert len(refused.value.message) < 250


@pytest.mark.parametrize("name", ["x", "x" * 200, "_x", "...", "-", "9", "Orders.v2_final-1"])
def test_names_at_the_edge_of_the_rules_are_allowed(name: str) -> None:
    assert topic_name(name) == name
