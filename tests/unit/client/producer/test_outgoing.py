"""What a message may be, told before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from quiver.client.producer.outgoing import (
    OutgoingMessage,
    checked_columns,
    checked_key,
    checked_payload,
    outgoing,
)
from quiver.errors import InvalidRequest

NOW_US = 1_700_000_000_000_000


class TestKeys:
    @pytest.mark.parametrize(
        ("key", "stored"),
        [
            (None, None),
            ("customer-7", b"customer-7"),
            ("ü", "ü".encode()),
            (b"\x00\xff", b"\x00\xff"),
            (bytearray(b"x"), b"x"),
            (memoryview(b"x"), b"x"),
            ("", b""),
        ],
    )
    def test_text_and_bytes_are_keys(self, key: Any, stored: bytes | None) -> None:
        assert checked_key(key) == stored

    @pytest.mark.parametrize("key", [7, 1.5, ["a"], object(), "\ud800"])
    def test_anything_else_is_not(self, key: Any) -> None:
        with pytest.raises(InvalidRequest, match="key must be"):
            checked_key(key)


class TestPayloads:
    @pytest.mark.parametrize(
        ("payload", "stored"),
        [
            (b"raw", b"raw"),
            ("text", b"text"),
            (bytearray(b"x"), b"x"),
            ({"id": 1}, b'{"id":1}'),
            ([1, None], b"[1,null]"),
            (None, b"null"),
        ],
    )
    def test_bytes_text_and_json(self, payload: Any, stored: bytes) -> None:
        assert checked_payload(payload) == stored

    @pytest.mark.parametrize("payload", [object(), "\ud800", {"a": object()}, {"a": "\ud800"}])
    def test_what_cannot_be_written_is_refused(self, payload: Any) -> None:
        with pytest.raises(InvalidRequest, match="payload"):
            checked_payload(payload)


class TestOptions:
    def test_a_moment_stays_as_it_is_unless_it_is_past(self) -> None:
        due = NOW_US + 1_000_000
        assert checked_columns({"deliver_at": due}, NOW_US)[0] == {"deliver_at": due}
        assert checked_columns({"deliver_at": NOW_US - 5}, NOW_US)[0] == {}

    def test_durations_become_moments(self) -> None:
        columns, _ = checked_columns({"delay": "1h", "ttl": timedelta(days=1)}, NOW_US)
        assert columns == {
            "deliver_at": NOW_US + 3_600_000_000,
            "expires_at": NOW_US + 86_400_000_000,
        }

    def test_an_event_time_is_a_datetime_or_microseconds(self) -> None:
        eastern = datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
        for moment in (
            eastern,
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime(2024, 1, 1),
            1_704_067_200_000_000,
        ):
            columns, _ = checked_columns({"event_time": moment}, NOW_US)
            assert columns == {"event_time": 1_704_067_200_000_000}

    def test_headers_count_towards_the_message(self) -> None:
        columns, size = checked_columns({"headers": {"näme": "value"}}, NOW_US)
        assert columns == {"headers": [("näme", "value")]}
        assert size == 10

    def test_what_is_none_is_not_given(self) -> None:
        nothing: Any = {"headers": None, "priority": None, "delay": None, "sequence": None}
        assert checked_columns(nothing, NOW_US) == ({}, 0)
        assert checked_columns({"headers": {}}, NOW_US) == ({}, 0)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"headers": ["a"]}, "headers must map text to text"),
            ({"headers": {"a": 1}}, "headers must map text to text"),
            ({"headers": {1: "a"}}, "headers must map text to text"),
            ({"headers": {"a": "\ud800"}}, "a header"),
            ({"priority": 10}, "priority must be 0 to 9, not 10"),
            ({"priority": -1}, "priority must be"),
            ({"priority": True}, "priority must be"),
            ({"priority": "high"}, "priority must be"),
            ({"delay": "-1s"}, "delay must be 0 s to 366 days"),
            ({"delay": "2000d"}, "delay must be 0 s"),
            ({"delay": "soon"}, "not a duration"),
            ({"deliver_at": "tomorrow"}, "deliver_at must be a datetime"),
            ({"deliver_at": NOW_US + 400 * 86_400_000_000}, "deliver_at may be 366 days from now"),
            ({"delay": 1, "deliver_at": NOW_US}, "give delay or deliver_at, not both"),
            ({"ttl": "-1s"}, "ttl must be 0 s"),
            ({"event_time": "noon"}, "event_time must be a datetime"),
            ({"event_time": 1 << 62}, "event_time must be a datetime"),
            ({"dedup_id": 5}, "dedup_id must be text"),
            ({"dedup_id": "ü" * 129}, "may have 256 bytes, not 258"),
            ({"sequence": -1}, "sequence must be 0 to"),
            ({"sequence": 1 << 63}, "sequence must be 0 to"),
        ],
    )
    def test_what_is_wrong_is_said(self, options: Any, said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            checked_columns(options, NOW_US)

    def test_an_option_that_does_not_exist_is_a_type_error(self) -> None:
        misspelt: Any = {"priorty": 3}
        with pytest.raises(TypeError, match="no option 'priorty'; its options are headers"):
            checked_columns(misspelt, NOW_US)


class TestManyAtOnce:
    def test_a_dict_with_a_payload_and_known_fields_is_a_message(self) -> None:
        message = outgoing({"payload": 1, "key": "k", "priority": 9})
        assert message == OutgoingMessage(payload=1, key="k", priority=9)
        assert message.options() == {"priority": 9}

    @pytest.mark.parametrize(
        "payload", [{"id": 1}, {"payload": 1, "other": 2}, {"key": "k"}, {}, "text", None]
    )
    def test_anything_else_is_a_payload(self, payload: Any) -> None:
        assert outgoing(payload) == OutgoingMessage(payload=payload)
