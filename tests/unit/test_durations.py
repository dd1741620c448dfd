"""Durations and sizes are written alike wherever they are taken, and errors name them as given.

The entrances are taken from the definitions, so that a new one is held to the same.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pages.command_line import commands

import quiver
from quiver.cli.commands.pipeline import spark_interval
from quiver.client.api.settings import bounded_size, duration_s, setting_values
from quiver.client.consumer.lease_times import lease_ms
from quiver.config import NodeConfig
from quiver.config import setting as node_setting
from quiver.edge.http.app import OPERATIONS
from quiver.edge.http.schemas.deliveries import StreamQuery
from quiver.edge.http.stream import frames
from quiver.errors import InvalidSetting
from quiver.model.setting import Setting, Unit, settings_of
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings

TIMES = ("delay", "ttl", "wait", "visibility", "timeout", "expires", "linger", "keep", "every")
"""What is a duration wherever it has this name, alone or at the end."""
MODELS = (TopicSettings, SubscriptionSettings)
_SETTINGS = [(model, one) for model in MODELS for one in settings_of(model)]
_TIMED = [(m, one) for m, one in _SETTINGS if one.unit in (Unit.SECONDS, Unit.MILLISECONDS)]
_SIZED = [(m, one) for m, one in _SETTINGS if one.unit is Unit.BYTES]
_NODE = node_setting.settings_of(NodeConfig)


def _nested(name: str, value: Any) -> dict[str, Any]:
    group, _, field = name.rpartition(".")
    return {group: {field: value}} if group else {field: value}


@pytest.mark.parametrize(("model", "one"), _TIMED, ids=lambda value: getattr(value, "name", ""))
def test_settings_of_topics_and_subscriptions_take_durations(model: Any, one: Setting) -> None:
    per_second = 1000 if one.unit is Unit.MILLISECONDS else 1
    middle_ms = round((one.least + one.most) / 2 / per_second * 1000)
    for text in (f"{middle_ms}ms", f"{middle_ms // 1000}s{middle_ms % 1000}ms"):
        values = setting_values(model, _nested(one.name, text))
        assert values == setting_values(model, _nested(one.name, values_of(values, one.name)))
    with pytest.raises(InvalidSetting, match=re.escape(f"{one.name}: '1x' is not a duration")):
        setting_values(model, _nested(one.name, "1x"))
    with pytest.raises(InvalidSetting, match=re.escape(f"{one.name} must be") + ".*not '99999w'"):
        setting_values(model, _nested(one.name, "99999w"))


def values_of(values: dict[str, Any], name: str) -> Any:
    group, _, field = name.rpartition(".")
    return values[group][field] if group else values[field]


@pytest.mark.parametrize(("model", "one"), _SIZED, ids=lambda value: getattr(value, "name", ""))
def test_settings_of_topics_take_sizes(model: Any, one: Setting) -> None:
    values = setting_values(model, _nested(one.name, "1.5MB"))
    assert values_of(values, one.name) == 1_500_000
    with pytest.raises(InvalidSetting, match=re.escape(f"{one.name}: '1x' is not a size")):
        setting_values(model, _nested(one.name, "1x"))


@pytest.mark.parametrize("one", [one for one in _NODE if one.is_time], ids=lambda one: one.name)
def test_settings_of_a_node_take_durations_in_the_file_and_the_environment(one: Any) -> None:
    second = max(1, round(one.meta.ge))
    for text in (f"{second}s", f"{second * 1000}ms"):
        for value in (one.from_text(text), one.from_toml(text)):
            assert (value, type(value)) == (second, one.type)
    for read in (one.from_text, one.from_toml):
        with pytest.raises(InvalidSetting, match=f"{one.name}: '1x' is not a duration"):
            read("1x")
        with pytest.raises(InvalidSetting, match=f"{one.name} must be .*not '99999w'"):
            read("99999w")


@pytest.mark.parametrize("one", [one for one in _NODE if one.is_size], ids=lambda one: one.name)
def test_settings_of_a_node_take_sizes(one: Any) -> None:
    for read in (one.from_text, one.from_toml):
        assert read("1MiB") == 1 << 20
        with pytest.raises(InvalidSetting, match=f"{one.name}: '1x' is not a size"):
            read("1x")


def test_whole_seconds_are_not_cut() -> None:
    lease = next(one for one in _NODE if one.name == "metadata.lease_s")
    with pytest.raises(InvalidSetting, match=r"whole seconds, not '1.5s'"):
        lease.from_text("1.5s")


# ---------------------------------------------------------------------- Python


def _is_time(name: str) -> bool:
    return name.rpartition("_")[2] in TIMES


def _python_arguments() -> Iterator[tuple[str, Any]]:
    for owner in (quiver.Client, quiver.AsyncClient, quiver.ReceivedMessage):
        for method, call in inspect.getmembers(owner, callable):
            if method.startswith("_") and method != "__init__":
                continue
            for name, argument in inspect.signature(call).parameters.items():
                yield f"{owner.__name__}.{method}({name})", argument
    for call in (quiver.idempotent, quiver.open):
        for name, argument in inspect.signature(call).parameters.items():
            yield f"{call.__name__}({name})", argument


def test_arguments_in_python_that_are_times_are_durations() -> None:
    found = {where: one for where, one in _python_arguments() if _is_time(one.name)}
    assert len(found) > 20
    for where, argument in found.items():
        kind = str(argument.annotation)
        assert kind == "bool | None" or "Duration" in kind, (where, kind)


def test_an_argument_is_named_with_the_value_as_it_was_given() -> None:
    for check in (lambda text: duration_s("wait", text, 0, 9), lambda text: lease_ms("wait", text)):
        with pytest.raises(InvalidSetting, match="wait: '1x' is not a duration"):
            check("1x")
        with pytest.raises(quiver.errors.InvalidRequest, match=r"wait must be .*not '9w'"):
            check("9w")
    with pytest.raises(InvalidSetting, match="batch_bytes: '1x' is not a size"):
        bounded_size("batch_bytes", "1x", 1, 9)
    assert lease_ms("visibility", "1h30m") == 5_400_000


# ---------------------------------------------------------------------- HTTP


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            yield from _structs(hint)
    for inner in typing.get_args(kind):
        yield from _structs(inner)


def test_times_in_queries_and_bodies_of_http_are_numbers_or_durations() -> None:
    taken: list[Any] = [StreamQuery, *typing.get_args(frames.Said)]
    for operation in OPERATIONS:
        taken += [operation.query, *(operation.body or {}).values()]
    found = {
        (struct, field.name): field.type
        for kind in taken
        for struct in _structs(kind)
        for field in msgspec.structs.fields(struct)
        if _is_time(field.name)
    }
    assert len(found) > 8
    for (struct, name), kind in found.items():
        value = msgspec.convert({name: "5s"}, msgspec.defstruct("One", [(name, kind)]))
        assert getattr(value, name) == "5s", (struct, name)


# ---------------------------------------------------------------------- the command line


def test_options_that_are_times_take_text() -> None:
    found = [
        (one.path, option)
        for one in commands()
        for option in one.command.params
        if getattr(option, "metavar", None) == "TIME" or _is_time(option.name)
    ]
    assert len(found) > 20
    for path, option in found:
        assert option.type_descriptor.annotation is str, (path, option.name)


def test_pipelines_take_durations_and_the_intervals_of_spark() -> None:
    assert spark_interval("1h30m") == "5400000 milliseconds"
    assert spark_interval("10 minutes") == "10 minutes"
    for text in ("1x", "-1h"):
        with pytest.raises(InvalidSetting, match=f"'{text}' is not a duration"):
            spark_interval(text)
