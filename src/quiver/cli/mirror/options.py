"""The flags for the settings of a mirror. They come from ``MirrorSettings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from quiver.cli.support.setting_flags import SettingFlag, flags_of, given
from quiver.errors import InvalidSetting
from quiver.model.mirror.settings import MirrorSettings

_CALLED = {"source": "from", "rename": "as"}
_METAVARS = {"source": "URL", "rename": "NAME"}
_ARGUMENTS = ("topics", "paused")
"""Not by these flags: patterns are repeated, and there are commands that pause and resume."""
FLAGS = tuple(
    replace(flag, called=_CALLED.get(flag.setting.name, ""))
    for flag in flags_of(MirrorSettings, _METAVARS)
    if flag.setting.name not in _ARGUMENTS
)


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, by the names of ``MirrorSettings``."""
    settings = given(FLAGS, values)
    if values.get("topics"):
        settings["topics"] = list(values["topics"])
    return settings


def new_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a new mirror, checked before connecting."""
    settings = settings_from(values)
    try:
        MirrorSettings(**settings)
    except InvalidSetting as error:
        raise InvalidSetting(_by_flag(error)) from None
    return settings


def _by_flag(error: InvalidSetting) -> str:
    """The error, beginning with the flag if that is not called as the setting."""
    name = error.details.get("setting")
    flag: SettingFlag | None = next((one for one in FLAGS if one.setting.name == name), None)
    return f"{flag.flag}: {error.message}" if flag is not None and flag.called else error.message
