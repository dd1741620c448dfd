"""Settings of topics and subscriptions have the same bounds and defaults in every interface.

The numbers here are written out on purpose. A bound may grow, but what a node has stored must stay
readable, so no bound may become narrower.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import pytest
from pages import topic_settings
from pages.command_line import commands

import quiver
from quiver.cli.support.exit_codes import ExitCode, run
from quiver.edge.http.app import OPERATIONS
from quiver.edge.http.openapi import openapi_document
from quiver.edge.http.problems import invalid
from quiver.edge.http.schemas.subscriptions import (
    QueueChanges,
    QueueFields,
    SubscriptionChanges,
    SubscriptionFields,
)
from quiver.edge.http.schemas.topics import TopicFields
from quiver.errors import InvalidRequest, InvalidSetting
from quiver.model.setting import Setting, Unit, setting_of, settings_of
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.model.units import seconds, size_bytes
from tests.serving import app

_DAY_S = 86_400
_YEAR_S = 365 * _DAY_S
BOUNDS: dict[str, tuple[float, float, float | None]] = {
    "partitions": (1, 4096, 1),
    "sync_interval_ms": (1, 60_000, 50),
    "retention.age": (1, 100 * _YEAR_S, 7 * _DAY_S),
    "retention.bytes": (1, 1 << 60, None),
    "retention.messages": (1, 1 << 60, None),
    "retention.unread_age": (1, 100 * _YEAR_S, None),
    "retention.unread_bytes": (1, 1 << 60, None),
    "message_bytes_max": (1, 32 << 20, 1 << 20),
    "segment_bytes": (1 << 20, 1 << 36, 256 << 20),
    "segment_age_s": (1, 10 * _YEAR_S, _DAY_S),
    "dedup_window": (0, _DAY_S, 300),
    "replicas": (1, 15, None),
    "min_in_sync": (1, 15, None),
    "visibility": (0, 12 * 3600, 30),
    "max_deliveries": (0, 10_000, 5),
    "backoff.min": (0, 12 * 3600, 1),
    "backoff.max": (0, 12 * 3600, 600),
    "backoff.factor": (1, 100, 2),
    "ageing": (0, _YEAR_S, 60),
    "session_timeout": (3, 300, 10),
    "max_processing": (1, 12 * 3600, 1800),
    "push.batch": (1, 1000, 1),
    "push.concurrency": (1, 64, 4),
    "push.timeout": (0.1, 300, 10),
}
"""Of each number: its least and its greatest value, and its default."""
DEFAULTS: dict[str, Any] = {
    "durability": "fsync",
    "retention.acked": False,
    "retention.scope": "partition",
    "retention.unread": None,
    "retention.unread_overflow": "refuse",
    "compression": "none",
    "acks": "quorum",
    "allow_data_loss": False,
    "ordering": "none",
    "guarantee": "at-least-once",
    "dead_letter": None,
    "fairness": None,
    "filter": None,
    "push.secret": None,
    "on_disconnect": "return",
}
REQUIRED = ("topics", "push.url")
TEXTS = {
    "push.url": "https://a.example/" + "x" * (2001 - len("https://a.example/")),
    "filter": "key = '" + "x" * (4097 - len("key = ''")) + "'",
    "fairness": "headers." + "x" * 201,
}
"""Texts that are one character too long."""
STRUCTS = (TopicSettings, SubscriptionSettings)
EVERY = {one.name: one for struct in STRUCTS for one in settings_of(struct)}
NUMBERS = [(struct, one) for struct in STRUCTS for one in settings_of(struct) if one.is_number]
SCHEMAS = openapi_document(OPERATIONS)["components"]["schemas"]
_BASE: dict[type[msgspec.Struct], dict[str, Any]] = {
    TopicSettings: {},
    SubscriptionSettings: {"topics": ["orders"]},
}


class Outside(NamedTuple):
    """A value just outside a bound, and the bound."""

    setting: Setting
    value: float
    bound: float


def outside(one: Setting) -> list[Outside]:
    least, most, _ = BOUNDS[one.name]
    step = 1 if one.is_whole else 0.001
    return [Outside(one, least - step, least), Outside(one, most + step, most)]


ALL_OUTSIDE = [(struct, bad) for struct, one in NUMBERS for bad in outside(one)]
_IDS = [f"{bad.setting.name}={bad.value}" for _, bad in ALL_OUTSIDE]
each_bad_number = pytest.mark.parametrize(("struct", "bad"), ALL_OUTSIDE, ids=_IDS)
each_number = pytest.mark.parametrize(
    ("struct", "one"), NUMBERS, ids=[one.name for _, one in NUMBERS]
)
Kind = type[msgspec.Struct]


def as_body(one: Setting, value: Any) -> dict[str, Any]:
    """The settings with one of them given; a webhook needs its URL."""
    group, _, field = one.name.rpartition(".")
    if not group:
        return {field: value}
    needed = {"url": "https://a.example"} if group == "push" else {}
    return {group: needed | {field: value}}


def number(one: Setting, text: str) -> float | None:
    """A number as people read it, in the unit of the setting."""
    text = text.strip("`.").replace(",", "")
    if text == "none":
        return None
    if one.unit is Unit.BYTES:
        return size_bytes(re.sub(" bytes?$", "", text))
    if one.unit is Unit.NONE:
        return float(text)
    assert text[-1].isalpha(), "a time has its unit"
    return seconds(text) * (1000 if one.unit is Unit.MILLISECONDS else 1)


def words(one: Setting, text: str, pattern: str) -> tuple[float | None, ...]:
    found = re.search(pattern, text)
    assert found is not None, text
    return tuple(number(one, part) for part in found.groups())


# ------------------------------------------------------------------ the same bounds and defaults


def test_every_setting_is_listed_here() -> None:
    assert set(EVERY) == set(BOUNDS) | set(DEFAULTS) | set(REQUIRED)


@pytest.mark.parametrize("one", EVERY.values(), ids=lambda one: one.name)
def test_every_setting_has_a_sentence(one: Setting) -> None:
    assert one.description.endswith(".")
    assert bool(one.without) is one.is_optional, "what none means is said where it is allowed"


@each_number
def test_the_model(struct: Kind, one: Setting) -> None:
    assert (one.least, one.most, one.default) == BOUNDS[one.name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_of_the_others(name: str) -> None:
    assert EVERY[name].default == DEFAULTS[name]


def _properties(one: Setting, struct: Kind, *, is_reply: bool) -> list[dict[str, Any]]:
    group = one.name.rpartition(".")[0]
    if group:
        name = group.capitalize() if is_reply else f"{group.capitalize()}Fields"
        return [SCHEMAS[name]["properties"][one.field]]
    if is_reply:
        return [SCHEMAS[struct.__name__]["properties"][one.field]]
    kinds = {
        TopicSettings: ("TopicFields", "QueueFields"),
        SubscriptionSettings: ("QueueFields", "SubscriptionFields"),
    }
    return [SCHEMAS[name]["properties"][one.field] for name in kinds[struct]]


def _bounds_in(schema: dict[str, Any]) -> tuple[Any, Any]:
    (bounded,) = [
        one for one in (schema, *schema.get("anyOf", ())) if "minimum" in one or "maximum" in one
    ]
    return bounded["minimum"], bounded["maximum"]


@each_number
def test_openapi_has_the_bounds_in_requests_and_replies(struct: Kind, one: Setting) -> None:
    for is_reply in (False, True):
        for schema in _properties(one, struct, is_reply=is_reply):
            assert _bounds_in(schema) == BOUNDS[one.name][:2]


@pytest.mark.parametrize("kind", ["QueueChanges", "SubscriptionChanges"])
def test_openapi_has_the_bounds_in_changes(kind: str) -> None:
    for one in settings_of(SubscriptionSettings):
        if one.is_number and "." not in one.name:
            assert _bounds_in(SCHEMAS[kind]["properties"][one.name]) == BOUNDS[one.name][:2]


@pytest.mark.parametrize("name", BOUNDS | DEFAULTS)
def test_openapi_has_the_default(name: str) -> None:
    one = EVERY[name]
    struct = next(struct for struct in STRUCTS if one in settings_of(struct))
    expected = BOUNDS[name][2] if name in BOUNDS else DEFAULTS[name]
    (reply,) = _properties(one, struct, is_reply=True)
    assert reply["default"] == expected
    for schema in _properties(one, struct, is_reply=False):
        found = re.search(r" Default: (.*)\.$", schema["description"])
        assert found is not None
        if expected is None or isinstance(expected, bool):
            assert found[1] == {None: "null", False: "false"}[expected]
        elif name in DEFAULTS or one.unit is Unit.NONE or one.takes_text:
            assert (found[1] if name in DEFAULTS else number(one, found[1])) == expected
        else:
            assert float(found[1]) == expected


_HELP = {
    (command.path, option): param.get_help_record(command.context)[1]
    for command in commands()
    for param in command.command.params
    if not param.hidden
    for option in param.opts
}
_FLAGS = {
    name: re.search(
        rf"\| `{re.escape(name)}` \|.*\| `(--[a-z-]+)` \|", topic_settings.reference_page()
    )
    for name in EVERY
}


def flag(name: str) -> str:
    found = _FLAGS[name]
    assert found is not None, "the reference page has its flag"
    return found[1]


def _commands(struct: Kind) -> tuple[str, ...]:
    return ("queue", "topic" if struct is TopicSettings else "subscription")


@each_number
def test_help_has_the_bounds_and_the_default(struct: Kind, one: Setting) -> None:
    least, most, default = BOUNDS[one.name]
    for noun in _commands(struct):
        told = _HELP[f"quiver {noun} create", flag(one.name)]
        assert words(one, told, r" ([^ ]+(?: bytes?)?) to ([^ ]+)\. ") == (least, most)
        assert words(one, told, r" Default: ([^ ]+)\.(?: |$)") == (default,)
        if one.name != "partitions":  # it can only be split
            altered = _HELP.get((f"quiver {noun} alter", flag(one.name)), "")
            assert words(one, altered, r" ([^ ]+(?: bytes?)?) to ([^ ]+)\.") == (least, most)
            assert "Default" not in altered


@pytest.mark.parametrize("name", DEFAULTS)
def test_help_has_the_default_of_the_others(name: str) -> None:
    shown = {None: "none", False: "false"}.get(DEFAULTS[name], DEFAULTS[name])
    assert f" Default: {shown}." in _HELP["quiver queue create", flag(name)]


@pytest.mark.parametrize("name", [*BOUNDS, *DEFAULTS])
def test_the_reference_page_has_the_bounds_and_the_default(name: str) -> None:
    one = EVERY[name]
    (line,) = [
        row for row in topic_settings.reference_page().splitlines() if f"| `{name}` |" in row
    ]
    default, bounds = line.split(" | ")[1:3]
    if name in BOUNDS:
        assert number(one, default) == BOUNDS[name][2]
        assert words(one, bounds.removesuffix(", or `none`"), r"^(.+) to (.+)$") == BOUNDS[name][:2]
        assert ("or `none`" in bounds) is one.is_optional
    else:
        assert (
            default == f"`{ {None: 'none', False: 'false'}.get(DEFAULTS[name], DEFAULTS[name]) }`"
        )


# ------------------------------------------------------------------ the same refusals


def named(one: Setting, message: str) -> tuple[float | None, ...]:
    return words(one, message, r"between (.+) and (.+), not ")


def settings_with(struct: Kind, one: Setting, value: Any) -> msgspec.Struct:
    """Settings made as a program makes them."""
    body = as_body(one, value)
    for group, kind in (
        ("retention", quiver.Retention),
        ("backoff", quiver.Backoff),
        ("push", quiver.Push),
    ):
        if group in body:
            body[group] = kind(**body[group])
    return struct(**_BASE[struct], **body)


@each_bad_number
def test_the_model_refuses(struct: Kind, bad: Outside) -> None:
    with pytest.raises(InvalidSetting) as refused:
        settings_with(struct, bad.setting, bad.value)
    assert refused.value.details["setting"] == bad.setting.name
    assert refused.value.message.startswith(f"{bad.setting.name} must be between ")
    assert named(bad.setting, refused.value.message) == BOUNDS[bad.setting.name][:2]


@each_bad_number
def test_a_request_that_is_decoded_is_refused_as_a_wrong_setting(
    struct: Kind, bad: Outside
) -> None:
    """The native protocol and the metadata store decode these structs: no error of msgspec's own."""
    packed = msgspec.msgpack.encode(_BASE[struct] | as_body(bad.setting, bad.value))
    with pytest.raises(InvalidSetting) as refused:
        msgspec.msgpack.decode(packed, type=struct)
    assert named(bad.setting, refused.value.message) == BOUNDS[bad.setting.name][:2]


@each_bad_number
def test_http_refuses(struct: Kind, bad: Outside) -> None:
    kinds: tuple[Any, ...] = (TopicFields, QueueFields)
    if struct is SubscriptionSettings:
        kinds = (QueueFields, QueueChanges, SubscriptionFields, SubscriptionChanges)
    for kind in kinds:
        with pytest.raises(msgspec.ValidationError) as refused:
            msgspec.json.decode(msgspec.json.encode(as_body(bad.setting, bad.value)), type=kind)
        told = invalid(refused.value)
        assert told.details["field"] == bad.setting.name
        (limit,) = re.findall(r"[<>]= (-?[\d.]+)", told.message)
        assert float(limit) == bad.bound


@each_bad_number
def test_the_command_line_refuses(
    struct: Kind, bad: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    one = bad.setting
    unit = {Unit.SECONDS: "s", Unit.MILLISECONDS: "ms"}.get(one.unit, "")
    given = [f"{flag(one.name)}={bad.value}{unit}"]
    for noun in _commands(struct):
        topic = ["--topic", "orders"] if noun == "subscription" else []
        assert run(app, [noun, "create", "a", *topic, *given]) == ExitCode.USAGE
        told = capsys.readouterr().err.splitlines()[0]
        assert told.startswith(f"error: {flag(one.name)} must be between ")
        assert named(one, told) == BOUNDS[one.name][:2]


@each_bad_number
def test_the_client_refuses_before_it_asks_a_node(struct: Kind, bad: Outside) -> None:
    body = as_body(bad.setting, bad.value)
    with quiver.Client("quiver://127.0.0.1:1") as client:
        calls: list[Any] = [lambda: client.create_queue("a", **body)]
        if struct is TopicSettings:
            calls += [lambda: client.create_topic("a", **body)]
            calls += [lambda: client.alter_topic("a", **body)]
        else:
            calls += [lambda: client.create_subscription("a", ["orders"], **body)]
            calls += [lambda: client.alter_subscription("a", **body)]
        for call in calls:
            with pytest.raises(InvalidSetting) as refused:
                call()
            assert refused.value.details["setting"] == bad.setting.name
            assert named(bad.setting, refused.value.message) == BOUNDS[bad.setting.name][:2]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_too_long_is_refused_everywhere(name: str) -> None:
    one, length = EVERY[name], len(TEXTS[name]) - 1
    assert one.length_max == length
    body = as_body(one, TEXTS[name])
    with pytest.raises(InvalidRequest):
        settings_with(SubscriptionSettings, one, TEXTS[name])
    with pytest.raises(msgspec.ValidationError, match=rf"length <= {length}"):
        msgspec.json.decode(msgspec.json.encode(body), type=SubscriptionFields)
    assert run(app, ["queue", "create", "a", f"{flag(name)}={TEXTS[name]}"]) == ExitCode.USAGE
    with quiver.Client("quiver://127.0.0.1:1") as client, pytest.raises(InvalidRequest):
        client.create_queue("a", **body)
    (schema,) = _properties(one, SubscriptionSettings, is_reply=True)
    assert schema["maxLength"] == length


@pytest.mark.parametrize("topics", [[], ["orders"] * 1001], ids=len)
def test_a_subscription_has_1_to_1000_topics_everywhere(topics: list[str]) -> None:
    with pytest.raises(InvalidSetting, match="topics must have 1 to 1,000 entries"):
        SubscriptionSettings(topics=topics)
    with pytest.raises(msgspec.ValidationError, match=r"length (>= 1|<= 1000)"):
        msgspec.json.decode(msgspec.json.encode({"topics": topics}), type=SubscriptionFields)
    with (
        quiver.Client("quiver://127.0.0.1:1") as client,
        pytest.raises(InvalidSetting, match="1 to 1,000 entries"),
    ):
        client.create_subscription("a", topics)
    for schema in (SCHEMAS["SubscriptionFields"], SCHEMAS["SubscriptionSettings"]):
        described = schema["properties"]["topics"]
        assert (described["minItems"], described["maxItems"]) == (1, 1000)
    assert "up to 1,000 times" in _HELP["quiver subscription create", "--topic"]


def test_there_are_no_more_in_sync_than_replicas() -> None:
    with pytest.raises(InvalidSetting, match="min_in_sync must be between 1 and 2, not 3"):
        TopicSettings(replicas=2, min_in_sync=3)
    assert TopicSettings(replicas=2, min_in_sync=2).min_in_sync == 2
    assert TopicSettings(min_in_sync=15).min_in_sync == 15


# ------------------------------------------------------------------ what is stored


@each_number
@pytest.mark.parametrize("end", [0, 1], ids=["least", "most"])
def test_a_stored_value_at_a_bound_is_read_and_written_as_before(
    struct: Kind, one: Setting, end: int
) -> None:
    value = BOUNDS[one.name][end]
    body = _BASE[struct] | as_body(one, value)
    if one.name == "backoff.min":
        body = _BASE[struct] | {"backoff": {"min": value, "max": 12 * 3600}}
    if one.name == "backoff.max":
        body = _BASE[struct] | {"backoff": {"min": 0, "max": value}}
    if one.name == "replicas":
        body |= {"min_in_sync": 1}
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=struct)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(read))
    for name, given in body.items():
        kept = stored[name]
        assert (
            {field: kept[field] for field in given} if isinstance(given, dict) else kept
        ) == given
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(read), type=struct) == read


@pytest.mark.parametrize("struct", STRUCTS)
def test_the_fields_that_are_stored_keep_their_names_and_order(struct: Kind) -> None:
    """The metadata store has these as maps; a field is only added, with a default."""
    assert (
        tuple(msgspec.to_builtins(struct(**_BASE[struct])))
        == {
            TopicSettings: (
                *("partitions", "durability", "sync_interval_ms", "retention", "compression"),
                *("message_bytes_max", "acks", "segment_bytes", "segment_age_s", "dedup_window"),
                *("replicas", "min_in_sync", "allow_data_loss"),
            ),
            SubscriptionSettings: (
                *("topics", "ordering", "guarantee", "visibility", "max_deliveries", "dead_letter"),
                *("backoff", "ageing", "fairness", "session_timeout", "filter", "push"),
                *("on_disconnect", "max_processing"),
            ),
        }[struct]
    )


def test_text_in_settings_is_stored_as_numbers() -> None:
    packed = msgspec.msgpack.encode(
        {"retention": {"age": "1h", "bytes": "1KiB"}, "dedup_window": "5m"}
    )
    read = msgspec.msgpack.decode(packed, type=TopicSettings)
    assert (read.retention.age, read.retention.bytes, read.dedup_window) == (3600, 1024, 300)


@pytest.mark.parametrize("text", ["1h30m", "90m", "5400", "1.5h"])
def test_a_duration_may_have_the_same_forms_over_http(text: str) -> None:
    body = msgspec.json.encode({"visibility": text})
    given = msgspec.to_builtins(msgspec.json.decode(body, type=QueueFields))
    assert setting_of(SubscriptionSettings, "visibility").checked(given["visibility"]) == 5400


@pytest.mark.parametrize("text", ["1.5GB", "1500MB", "1500 MB", "1500mb", "1500000000"])
def test_a_size_may_have_the_same_forms_over_http(text: str) -> None:
    body = msgspec.json.encode({"retention": {"bytes": text}})
    given = msgspec.to_builtins(msgspec.json.decode(body, type=TopicFields))
    assert (
        setting_of(TopicSettings, "retention.bytes").checked(given["retention"]["bytes"]) == 1.5e9
    )
