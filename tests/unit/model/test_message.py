"""A stored message as a program sees it: its id, its times and its payload."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from quiver.errors import InvalidRequest
from quiver.model.message import Message, datetime_of, time_us_of
from quiver.model.message_id import parse_message_id


class TestMessage:
    MESSAGE = Message("orders", 3, 42, 1_704_067_200_000_001, 7, b'{"id": 1}')

    def test_an_id_says_where_the_message_is(self) -> None:
        parsed = parse_message_id(self.MESSAGE.id)
        assert (parsed.topic, parsed.partition, parsed.offset) == (7, 3, 42)
        assert parsed.append_time == self.MESSAGE.timestamp_us

    def test_times_are_exact_to_the_microsecond(self) -> None:
        assert self.MESSAGE.timestamp == datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
        assert time_us_of(datetime_of(-1)) == -1
        assert self.MESSAGE.event_time is None
        assert self.MESSAGE.deliver_at is None
        assert self.MESSAGE.expires_at is None

    def test_payloads_are_read_as_json_and_text(self) -> None:
        assert self.MESSAGE.json() == {"id": 1}
        assert self.MESSAGE.json(type=dict[str, int]) == {"id": 1}
        assert self.MESSAGE.text() == '{"id": 1}'

    def test_a_payload_that_is_something_else_is_told(self) -> None:
        broken = Message("orders", 0, 0, 0, 1, b"\xff{")
        with pytest.raises(InvalidRequest, match="not the expected JSON"):
            broken.json()
        with pytest.raises(InvalidRequest, match="not UTF-8"):
            broken.text()
        with pytest.raises(InvalidRequest, match="not the expected JSON"):
            self.MESSAGE.json(type=list)

    def test_messages_do_not_share_their_headers(self) -> None:
        other = Message("orders", 0, 0, 0, 1, b"")
        other.headers["mine"] = "yes"
        assert self.MESSAGE.headers == {}
