"""The flags for the settings of a topic. They come from ``TopicSettings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quiver.cli.support.setting_flags import flags_of, given
from quiver.model.topic import Retention, TopicSettings

FLAGS = flags_of(TopicSettings, {})
CHANGEABLE = tuple(flag for flag in FLAGS if flag.setting.name != "partitions")
"""Those that a queue can change later: its partitions are split instead."""


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, by the names of ``TopicSettings``; ``retention`` may be partial."""
    return given(FLAGS, values)


def new_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a new topic, checked before connecting."""
    settings = settings_from(values)
    if "retention" in settings:
        settings["retention"] = Retention(**settings["retention"])
    TopicSettings(**settings)
    return settings
