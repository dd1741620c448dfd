"""Converts and checks settings such as ``"2m"``, ``"64MiB"`` and ``"quorum"``.

Everything is checked here before a node is called, and errors name the setting.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from quiver.client.producer.accumulator import BatchLimits
from quiver.client.producer.producer import ProducerSettings
from quiver.errors import InvalidSetting
from quiver.model.mirror.settings import MirrorSettings
from quiver.model.setting import Setting, fields_of, require_known
from quiver.model.setting_names import own_names
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import Acks, Compression, TopicSettings
from quiver.model.units import Duration, Size, seconds, size_bytes

E = TypeVar("E", bound=StrEnum)
S = TypeVar("S", bound=msgspec.Struct)
_BATCH_BYTES_MAX = 16 << 20
_BATCH_COUNT_MAX = 1 << 20
_BUFFER_BYTES_MAX = 1 << 40


def choice(kind: type[E], name: str, value: str | None) -> E | None:
    """One of the words that the setting takes; ``None`` stays ``None``."""
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(repr(member.value) for member in kind)
        raise InvalidSetting(
            f"{name} must be one of {words}, not {value!r}", setting=name
        ) from None


def duration_s(name: str, duration: Duration, least_s: float, most_s: float) -> float:
    """Seconds. An error names the argument and its value as it was given."""
    try:
        value = seconds(duration)
    except InvalidSetting as error:
        raise InvalidSetting(f"{name}: {error.message}", setting=name) from None
    if not least_s <= value <= most_s:
        raise InvalidSetting(
            f"{name} must be {least_s:g} s to {most_s:g} s, not {duration!r}", setting=name
        )
    return value


def bounded_size(name: str, size: Size, least: int, most: int) -> int:
    try:
        value = size_bytes(size)
    except InvalidSetting as error:
        raise InvalidSetting(f"{name}: {error.message}", setting=name) from None
    if not least <= value <= most:
        raise InvalidSetting(f"{name} must be {least:,} to {most:,}, not {size!r}", setting=name)
    return value


def producer_settings(
    *,
    acks: str | None,
    name: str | None,
    compression: str | None,
    linger: Duration,
    batch_bytes: Size,
    batch_count: int,
    buffer_bytes: Size,
    delivery_timeout: Duration,
    send_timeout_s: float,
) -> ProducerSettings:
    if name is not None and not isinstance(name, str):
        raise InvalidSetting(f"name must be text, not {name!r}", setting="name")
    return ProducerSettings(
        acks=choice(Acks, "acks", acks),
        name=name,
        compression=choice(Compression, "compression", compression),
        limits=BatchLimits(
            batch_bytes=bounded_size("batch_bytes", batch_bytes, 1, _BATCH_BYTES_MAX),
            batch_count=bounded_size("batch_count", batch_count, 1, _BATCH_COUNT_MAX),
            linger_s=duration_s("linger", linger, 0, 60),
            buffer_bytes=bounded_size("buffer_bytes", buffer_bytes, 1, _BUFFER_BYTES_MAX),
        ),
        delivery_timeout_s=duration_s("delivery_timeout", delivery_timeout, 0.001, 86_400),
        send_timeout_s=send_timeout_s,
    )


def topic_settings(partitions: int, settings: dict[str, Any]) -> TopicSettings:
    """The settings of a new topic."""
    return _converted({"partitions": partitions, **settings}, TopicSettings)


def subscription_settings(topics: list[str], settings: dict[str, Any]) -> SubscriptionSettings:
    """The settings of a new subscription."""
    return _converted({**settings, "topics": topics}, SubscriptionSettings)


def mirror_settings(settings: dict[str, Any]) -> MirrorSettings:
    """The settings of a new mirror."""
    return _converted(settings, MirrorSettings)


def _converted(given: dict[str, Any], kind: type[S]) -> S:
    try:
        return msgspec.convert(setting_values(kind, given), kind)
    except msgspec.ValidationError as error:
        raise InvalidSetting(str(error)) from error


def setting_values(
    kind: type[msgspec.Struct], given: dict[str, Any], group: str = ""
) -> dict[str, Any]:
    """Some settings in the form that the protocol takes, each checked; a group may be partial."""
    given = own_names((kind,), given)
    require_known(kind, given, group)
    return {
        one.field: _value(one, given[one.field])
        for one in fields_of(kind, group)
        if one.field in given
    }


def _value(one: Setting, value: Any) -> Any:
    if one.group is None or value is None:
        return msgspec.to_builtins(one.checked(list(value) if isinstance(value, tuple) else value))
    if isinstance(value, one.group):
        return msgspec.to_builtins(value)
    if not isinstance(value, dict):
        raise InvalidSetting(
            f"{one.name} is a group of settings: give {one.group.__name__} or a dict, not {value!r}",
            setting=one.name,
        )
    return setting_values(one.group, value, one.name)
