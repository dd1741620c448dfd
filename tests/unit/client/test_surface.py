"""The public surface, and the values in it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import UTC, datetime

import pytest

import quiver
from quiver.client import AsyncClient, AsyncProducer, AsyncReader, Client, Producer, Reader
from quiver.errors import InvalidRequest
from quiver.model.message import Message, datetime_of, time_us_of
from quiver.model.message_id import parse_message_id

SURFACE = {
    "Acks",
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "Client",
    "Compression",
    "Delivery",
    "Durability",
    "Message",
    "OutgoingMessage",
    "Producer",
    "Published",
    "Reader",
    "Retention",
    "TopicInfo",
    "TopicSettings",
    "__version__",
    "errors",
    "idempotent",
}


class TestSurface:
    def test_the_surface_only_grows(self) -> None:
        assert set(quiver.__all__) >= SURFACE
        for name in quiver.__all__:
            assert getattr(quiver, name) is not None

    def test_a_name_that_is_not_there_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'Klient'"):
            quiver.Klient  # noqa: B018

    def test_importing_quiver_loads_nothing_that_takes_long(self) -> None:
        check = "import quiver, sys; sys.exit(bool({'pyarrow', 'asyncio'} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

    @pytest.mark.parametrize(
        ("blocking", "original"),
        [(Client, AsyncClient), (Producer, AsyncProducer), (Reader, AsyncReader)],
    )
    def test_blocking_classes_have_the_methods_of_the_async_ones(
        self, blocking: type, original: type
    ) -> None:
        internal = {"open", "abort", "full", "next_chunk", "opened_sender", "opened_validator"}
        for name, method in inspect.getmembers(original):
            if name.startswith("_") or name in internal:
                continue
            assert hasattr(blocking, name), f"{blocking.__name__} has no {name}"
            if inspect.isfunction(method):
                mine = inspect.signature(getattr(blocking, name)).parameters
                assert list(mine) == list(inspect.signature(method).parameters)


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
        with pytest.raises(InvalidRequest, match="not the JSON expected"):
            broken.json()
        with pytest.raises(InvalidRequest, match="not UTF-8"):
            broken.text()
        with pytest.raises(InvalidRequest, match="not the JSON expected"):
            self.MESSAGE.json(type=list)

    def test_messages_do_not_share_their_headers(self) -> None:
        other = Message("orders", 0, 0, 0, 1, b"")
        other.headers["mine"] = "yes"
        assert self.MESSAGE.headers == {}
