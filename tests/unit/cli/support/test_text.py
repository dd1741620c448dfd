"""Lines in and lines out: what the command line reads as messages and how it shows them."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.cli.support import message_lines
from quiver.cli.support.message_lines import Line, key_of, lines_of
from quiver.cli.support.message_text import json_line, text_line
from quiver.cli.support.text import (
    harmless,
    parse_moment,
    parse_pairs,
    parse_position,
    plural,
    shown_bytes,
    shown_duration,
    shown_size,
    shown_time,
)
from quiver.errors import InvalidRequest, InvalidSetting
from quiver.model.message import Message
from quiver.model.units import seconds, size_bytes


def a_message(payload: bytes, **fields: Any) -> Message:
    return Message(
        topic="a", partition=1, offset=2, timestamp_us=0, topic_number=1, payload=payload, **fields
    )


def as_json(payload: bytes, **fields: Any) -> dict[str, Any]:
    line = json_line(a_message(payload, **fields))
    assert "\n" not in line
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


class TestLinesAsMessages:
    def test_each_line_is_a_message_and_carries_its_number(self) -> None:
        lines = list(lines_of(io.BytesIO(b"a\nb\r\nc")))
        assert lines == [Line(1, b"a"), Line(2, b"b"), Line(3, b"c")]

    def test_a_blank_line_is_no_message_but_counts(self) -> None:
        assert list(lines_of(io.BytesIO(b"a\n\n  \nb\n"))) == [Line(1, b"a"), Line(4, b"b")]

    def test_a_line_over_the_largest_message_is_refused_by_number(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(message_lines, "LINE_BYTES_MAX", 4)
        with pytest.raises(InvalidRequest, match="line 2 has more than the 4 bytes"):
            list(lines_of(io.BytesIO(b"1234\n12345\n")))

    @pytest.mark.parametrize(
        ("payload", "key"),
        [
            (b'{"id": "a"}', "a"),
            (b'{"id": 7}', "7"),
            (b'{"id": true}', "true"),
            (b'{"id": null}', None),
            (b'{"other": 1}', None),
        ],
    )
    def test_a_key_is_taken_from_a_json_field(self, payload: bytes, key: str | None) -> None:
        assert key_of(Line(1, payload), "id") == key

    @pytest.mark.parametrize("payload", [b"text", b"[1]", b'"id"', b"{"])
    def test_a_line_without_json_fields_is_refused_by_number(self, payload: bytes) -> None:
        with pytest.raises(InvalidRequest, match="line 3 has no key"):
            key_of(Line(3, payload), "id")


class TestMessagesAsJson:
    @pytest.mark.parametrize(
        ("payload", "value", "encoding"),
        [
            (b'{"a": [1, 2.50]}', {"a": [1, 2.5]}, "json"),
            (b"12", 12, "json"),
            (b"plain text", "plain text", "text"),
            (b"", "", "text"),
            (b"NaN", "NaN", "text"),
            (b"\xff\x00", base64.b64encode(b"\xff\x00").decode(), "base64"),
            (b"[" * 100_000, "[" * 100_000, "text"),
        ],
    )
    def test_the_payload_is_json_text_or_base64(
        self, payload: bytes, value: object, encoding: str
    ) -> None:
        line = as_json(payload)
        assert (line["payload"], line["encoding"]) == (value, encoding)

    def test_numbers_keep_every_digit(self) -> None:
        number = "123456789012345678901234567890"
        assert as_json(number.encode())["payload"] == int(number)

    def test_a_key_that_is_no_text_says_so(self) -> None:
        assert "key_encoding" not in as_json(b"", key=b"k")
        assert as_json(b"", key=b"\xff")["key_encoding"] == "base64"

    def test_what_is_seldom_set_is_left_out_unless_it_is(self) -> None:
        assert not as_json(b"").keys() & {"priority", "event_time", "deliver_at", "dedup_id"}
        line = as_json(b"", priority=9, deliver_at_us=0, dedup_id="d")
        assert (line["priority"], line["dedup_id"]) == (9, "d")
        assert line["deliver_at"] == "1970-01-01T00:00:00.000000Z"

    @given(st.binary(max_size=200), st.none() | st.binary(max_size=20))
    def test_any_message_is_one_line_from_which_its_bytes_come_back(
        self, payload: bytes, key: bytes | None
    ) -> None:
        line = as_json(payload, key=key)
        value = line["payload"]
        if line["encoding"] == "json":
            assert value == json.loads(payload)
        elif line["encoding"] == "text":
            assert str(value).encode() == payload
        else:
            assert base64.b64decode(str(value)) == payload


class TestMessagesForPeople:
    def test_a_line_has_time_place_key_payload_and_headers(self) -> None:
        assert text_line(a_message(b"{}", key=b"k", headers={"a": "b"})) == (
            "1970-01-01T00:00:00.000000Z  1:2  k  {}  [a=b]"
        )

    @given(st.text(max_size=100))
    def test_no_payload_steers_the_terminal(self, text: str) -> None:
        content = text.encode("utf-8", "surrogatepass")
        shown = text_line(a_message(content, key=content))
        assert len(shown.splitlines()) == 1
        assert all(character == "\t" or ord(character) >= 32 for character in shown)
        assert "\x9b" not in shown

    def test_a_line_may_name_the_topic_and_say_more(self) -> None:
        line = text_line(a_message(b"x", headers={"n": "v"}), "ready", names_topic=True)
        assert line.split("  ")[1:] == ["a/1:2", "ready", "-", "x", "[n=v]"]
        assert json.loads(json_line(a_message(b"x"), state="ready"))["state"] == "ready"

    def test_escapes_are_written_out(self) -> None:
        assert harmless("\x1b[31mred\x9b") == "\\x1b[31mred\\x9b"


class TestValues:
    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (None, "-"),
            (0, "0 bytes"),
            (1023, "1,023 bytes"),
            (1536, "1.5 KiB"),
            (5 << 40, "5.0 TiB"),
        ],
    )
    def test_sizes_are_rounded_for_reading(self, size: int | None, text: str) -> None:
        assert shown_bytes(size) == text

    @pytest.mark.parametrize("text", ["1500", "10GB", "256MiB", "1KiB", "5TB"])
    def test_sizes_that_someone_chose_are_shown_as_they_are_written(self, text: str) -> None:
        assert shown_size(size_bytes(text)) == text

    @pytest.mark.parametrize(
        ("length_s", "text"), [(0.5, "0.5s"), (60, "1m"), (5400, "1h30m"), (7 * 86400, "7d")]
    )
    def test_durations_are_shown_as_they_are_written(self, length_s: float, text: str) -> None:
        assert shown_duration(length_s) == text
        assert seconds(text) == length_s

    def test_a_time_no_calendar_has_is_shown_as_its_number(self) -> None:
        assert shown_time(1 << 62) == str(1 << 62)

    @pytest.mark.parametrize(
        ("text", "moment"),
        [
            ("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC)),
            ("2026-01-02T03:04", datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
            ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
            ("2026-01-02T03:00+03:00", datetime(2026, 1, 2, tzinfo=UTC)),
            ("yesterday", None),
        ],
    )
    def test_a_moment_is_utc_unless_it_says_otherwise(
        self, text: str, moment: datetime | None
    ) -> None:
        assert parse_moment(text) == moment

    def test_pairs_may_hold_an_equals_sign_in_the_value(self) -> None:
        assert parse_pairs(["a=b=c", "d="], "header") == {"a": "b=c", "d": ""}

    @pytest.mark.parametrize("text", ["a", "=b", ""])
    def test_what_is_no_pair_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidSetting, match="not a header"):
            parse_pairs([text], "header")

    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("earliest", "earliest"),
            ("latest", "latest"),
            ("42", 42),
            ("-1h", "-1h"),
            ("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC)),
        ],
    )
    def test_a_position_is_as_the_client_takes_it(self, text: str, position: object) -> None:
        assert parse_position(text, "--to") == position

    @pytest.mark.parametrize("text", ["1h", "soon", "", "-", "+5", "\u0663"])
    def test_what_is_no_position_is_refused_with_its_flag(self, text: str) -> None:
        with pytest.raises(InvalidSetting, match=r"--to: .* is not a position"):
            parse_position(text, "--to")

    @pytest.mark.parametrize(
        ("count", "noun", "text"),
        [
            (0, "message", "0 messages"),
            (1, "message", "1 message"),
            (1, "delivery", "1 delivery"),
            (2000, "delivery", "2,000 deliveries"),
        ],
    )
    def test_counts_agree_with_their_nouns(self, count: int, noun: str, text: str) -> None:
        assert plural(count, noun) == text
