"""Calls of the native protocol: each round-trips, and what is not one is told apart."""

from __future__ import annotations

import contextlib
import types
import typing
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver import protocol
from quiver.errors import (
    InvalidSetting,
    ProtocolError,
    QuiverError,
    UnknownCall,
    error_classes,
    error_from,
)
from quiver.model.mirror.settings import MirrorSettings
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from tests.unit.model.test_topic import settings as topic_settings

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_TEXT = st.text(max_size=20)
_PLAIN = st.recursive(
    st.none() | st.booleans() | _INT64 | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: _INT64,
    str: _TEXT,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    Any: _PLAIN,
    TopicSettings: topic_settings,
    MirrorSettings: st.just(MirrorSettings(source="quiver://eu:7401", topics=["orders.*"])),
}


def _values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, such that they fit on the wire."""
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind is list:
        return st.lists(_values_of(arguments[0]), max_size=3)
    if kind is tuple:
        return st.tuples(*map(_values_of, arguments))
    if isinstance(hint, typing.NewType):
        return _values_of(hint.__supertype__)
    if kind is dict:
        return st.dictionaries(_values_of(arguments[0]), _values_of(arguments[1]), max_size=3)
    if kind in (types.UnionType, typing.Union):
        return st.one_of(*map(_values_of, arguments))
    if kind is typing.Annotated:
        return _values_of(arguments[0])
    if kind is typing.Literal:
        return st.sampled_from(arguments)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hasattr(hint, "__post_init__"):
        # Settings, whose bounds have tests of their own.
        return st.just(hint(topics=["orders"]) if hint is SubscriptionSettings else hint())
    hints = typing.get_type_hints(hint)
    return st.builds(
        hint,
        **{field.name: _values_of(hints[field.name]) for field in msgspec.structs.fields(hint)},
    )


REQUESTS = typing.get_args(protocol.AnyRequest)
REPLIES = typing.get_args(protocol.AnyReply)


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_request_comes_back_as_it_went(kind: type[protocol.Request]) -> None:
    @settings(max_examples=10)
    @given(_values_of(kind))
    def check(request: Any) -> None:
        assert protocol.decode_request(memoryview(protocol.encode(request))) == request

    check()


@pytest.mark.parametrize("kind", REPLIES)
def test_every_reply_comes_back_as_it_went(kind: type[protocol.Reply]) -> None:
    @settings(max_examples=10)
    @given(_values_of(kind))
    def check(reply: Any) -> None:
        assert protocol.decode_reply(memoryview(protocol.encode(reply))) == reply

    check()


@pytest.mark.parametrize("kind", [*REQUESTS, *REPLIES])
def test_fields_that_a_newer_side_added_are_ignored(kind: type[msgspec.Struct]) -> None:
    @settings(max_examples=3)
    @given(_values_of(kind))
    def check(value: Any) -> None:
        fields = msgspec.msgpack.decode(protocol.encode(value)) | {"added_later": {"a": [1, None]}}
        decode = protocol.decode_request if kind in REQUESTS else protocol.decode_reply
        assert decode(memoryview(protocol.encode(fields))) == value

    check()


@pytest.mark.parametrize("kinds", [REQUESTS, REPLIES], ids=["requests", "replies"])
def test_no_two_calls_share_a_name(kinds: tuple[type[msgspec.Struct], ...]) -> None:
    names = [kind.__struct_config__.tag for kind in kinds]
    assert sorted(names) == sorted(set(names))


# ---------------------------------------------------------------------- what is not a request


def _refused(**fields: Any) -> protocol.Failed:
    with pytest.raises(protocol.BadRequest) as refused:
        protocol.decode_request(memoryview(protocol.encode(fields)))
    return refused.value.reply


def test_an_unknown_call_is_answered_under_its_id() -> None:
    reply = _refused(call="fly", id=42)
    assert (reply.id, reply.code) == (42, UnknownCall.code)


def test_a_request_without_a_call_is_answered_as_unknown() -> None:
    assert _refused(id=3).code == UnknownCall.code


@pytest.mark.parametrize(
    "fields",
    [
        {"call": "publish"},
        {"call": "publish", "topic": 7, "partition": 0},
        {"call": "publish", "topic": "t", "partition": "0"},
        {"call": "publish", "topic": "t", "partition": 0, "acks": "most"},
        {"call": "publish", "topic": "t", "partition": 1.5},
        {"call": "hello", "versions": "1"},
        {"call": "fetch", "topic": "t", "partition": 0, "offset": None},
        {"call": "alter_topic", "name": "t", "changes": [1]},
        {"call": "create_topic", "name": "t", "settings": {"durability": "maybe"}},
    ],
)
def test_a_known_call_with_wrong_fields_says_what_is_wrong(fields: dict[str, Any]) -> None:
    reply = _refused(id=9, **fields)
    assert (reply.id, reply.code) == (9, ProtocolError.code)
    assert fields["call"] in reply.message


@pytest.mark.parametrize(
    "given_settings",
    [
        {"partitions": 0},
        {"retention": {"bytes": "9" * 400}},
        {"retention": {"age": "9" * 400 + "d"}},
        {"retention": {"age": "--5"}},
        {"retention": {"age": float("nan")}},
        {"retention": {"messages": -1}},
    ],
)
def test_settings_outside_their_bounds_are_a_setting_s_error(
    given_settings: dict[str, Any],
) -> None:
    reply = _refused(call="create_topic", id=5, name="t", settings=given_settings)
    assert (reply.id, reply.code) == (5, InvalidSetting.code)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        protocol.encode([1, 2, 3]),
        protocol.encode({"call": "ping", "id": "one"}),
        protocol.encode({"call": 1, "id": 1}),
        b"\x82\xa4call\xa4ping\xa1x" + b"\x91" * 100_000 + b"\xc0",
        b"\x83\xa4call\xabalter_topic\xa4name\xa1x\xa7changes\x81\xa1a" + b"\x91" * 100_000,
        b"\x82\xa4call\xa5hello\xa8versions\xdd\xff\xff\xff\xff\x01",
        b"\x83\xa4call\xabalter_topic\xa4name\xa1x\xa7changes\x81\xa1a"
        + b"\xdd\xff\xff\xff\xff" * 99,
        b"\x83\xa4call\xabalter_topic\xa4name\xa1x\xa7changes\xdf\xff\xff\xff\xff",
        b"\x82\xa4call\xacdelete_topic\xa4name\xdb\xff\xff\xff\xff",
    ],
)
def test_what_has_no_id_to_answer_to_ends_the_conversation(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.decode_request(memoryview(header))


@settings(max_examples=150)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(header: bytes) -> None:
    for decode in (protocol.decode_request, protocol.decode_reply):
        with contextlib.suppress(protocol.BadRequest, ProtocolError):
            decode(memoryview(header))


@settings(max_examples=80)
@given(
    st.sampled_from(sorted(protocol.CALLS)),
    st.dictionaries(
        st.sampled_from(["id", "name", "topic", "settings", "changes", "offset", "versions"]),
        _PLAIN,
    ),
)
def test_any_fields_of_a_call_are_a_request_or_refused(call: str, fields: dict[str, Any]) -> None:
    with contextlib.suppress(protocol.BadRequest, ProtocolError):
        protocol.decode_request(memoryview(protocol.encode(fields | {"call": call})))


# ---------------------------------------------------------------------- errors over the wire


@pytest.mark.parametrize("kind", error_classes().values(), ids=lambda kind: kind.code)
def test_every_error_arrives_as_what_it_was(kind: type[QuiverError]) -> None:
    sent = kind("what happened", limit=7, topic="t")
    reply = protocol.decode_reply(memoryview(protocol.encode(protocol.failure(11, sent))))
    assert isinstance(reply, protocol.Failed)
    arrived = error_from(reply.code, reply.message, reply.details)
    assert type(arrived) is kind
    assert arrived.code == kind.code
    assert arrived.message == "what happened"
    assert arrived.details == {"limit": 7, "topic": "t"}
    assert (reply.id, reply.retryable) == (11, kind.retryable)


def test_an_error_of_a_newer_node_stays_an_error() -> None:
    error = error_from("flux_inverted", "the flux is inverted", {"angle": 3})
    assert type(error) is QuiverError
    assert "flux_inverted" in error.message
    assert error.details == {"angle": 3}


def test_details_may_have_any_names() -> None:
    details = {"message": "m", "self": "s", "code": "c"}
    assert error_from("disk_full", "full", details).details == details


def test_no_two_errors_share_a_code() -> None:
    def all_of(kind: type[QuiverError]) -> list[type[QuiverError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in all_of(child))]

    codes = [kind.code for kind in all_of(QuiverError)]
    assert sorted(codes) == sorted(set(codes))
