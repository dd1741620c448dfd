"""The flags for the settings of a queue or subscription. They come from ``SubscriptionSettings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from quiver.cli.support.setting_flags import flags_of, given
from quiver.errors import InvalidSetting
from quiver.model.subscription import Backoff, Push, SubscriptionSettings

_METAVARS = {
    "dead_letter": "TOPIC",
    "fairness": "COLUMN",
    "filter": "FILTER",
    "push.url": "URL",
    "push.secret": "NAME",
}
_FIXED = ("ordering", "guarantee", "fairness")
"""Settings that are fixed when a queue or subscription is created."""
FLAGS = tuple(
    flag
    for flag in flags_of(SubscriptionSettings, _METAVARS, push_url="no push")
    if flag.setting.name != "topics"
)
CHANGEABLE = tuple(flag for flag in FLAGS if flag.setting.name not in _FIXED)


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, by the names of ``SubscriptionSettings``.

    ``backoff`` and ``push`` may be partial.
    """
    settings = given(FLAGS, values)
    push = settings.get("push", {})
    if "url" in push and push["url"] is None:
        if len(push) > 1:
            raise InvalidSetting("--push-url none turns push off: leave the other --push flags out")
        settings["push"] = None
    return settings


def new_settings(values: Mapping[str, Any], topics: list[str]) -> dict[str, Any]:
    """The settings of a new queue or subscription, checked before connecting."""
    return _changed(SubscriptionSettings(topics=topics), settings_from(values))


def check_changes(settings: SubscriptionSettings, changes: Mapping[str, Any]) -> None:
    """Check the settings that a queue or subscription would have."""
    _changed(settings, changes)


def _changed(settings: SubscriptionSettings, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, with ``backoff`` and ``push`` made whole, checked."""
    whole = dict(changes)
    for name, kind in (("backoff", Backoff), ("push", Push)):
        if isinstance(part := changes.get(name), dict):
            before = getattr(settings, name)
            group = ({} if before is None else asdict(before)) | part
            if kind is Push and "url" not in group:
                raise InvalidSetting("the other --push flags need --push-url")
            whole[name] = kind(**group)
    SubscriptionSettings(**asdict(settings) | whole)
    return whole
