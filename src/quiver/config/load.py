"""A node's settings from where people put them: defaults, then a file, the environment, flags.

Later sources win. Every mistake in every source is found before any is reported, and the report
says where it was made: file and line, variable or flag. Nothing is read but what is handed in.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from quiver.config.alert_rule import AlertRule
from quiver.config.alert_tables import take_rules
from quiver.config.named_tables import SettingsFile
from quiver.config.node import NodeConfig
from quiver.config.quota_tables import principal_quotas, take_quotas
from quiver.config.setting import ENVIRONMENT_PREFIX, Setting, settings_of
from quiver.config.toml_lines import key_lines, line_of
from quiver.errors import InvalidSetting

FILE_BYTES_MAX = 1 << 20
DEFAULT = "default"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A value that someone gave to a setting, and where: ``quiver.toml:7``, ``QUIVER_DATA``, ``--data``."""

    setting: str
    value: Any
    origin: str
    is_text: bool = True
    """Variables and flags are text whatever they mean; a file has numbers as numbers."""


class LoadedConfig(msgspec.Struct, frozen=True, kw_only=True):
    config: NodeConfig
    origins: dict[str, str]
    """By setting: where its value came from."""


def load_config(
    *,
    path: str | None = None,
    environment: Mapping[str, str],
    flags: Sequence[Given] = (),
) -> LoadedConfig:
    """The settings of a node; ``InvalidSetting`` lists every mistake, each on a line of its own."""
    mistakes: list[str] = []
    given, rules, quotas = _from_file(path, mistakes) if path is not None else ([], (), {})
    given += _from_environment(environment, mistakes)
    given += flags
    values, origins = _resolve(given, mistakes)
    if mistakes:
        raise InvalidSetting("\n".join(mistakes), mistakes=mistakes)
    config = _build(NodeConfig, "", values)
    config = msgspec.structs.replace(
        config, alert_rules=rules, principal_quotas=principal_quotas(config.quotas, quotas)
    )
    return LoadedConfig(config=config, origins=origins)


def _resolve(given: list[Given], mistakes: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    known = {setting.name: setting for setting in settings_of(NodeConfig)}
    values = {name: setting.default for name, setting in known.items()}
    origins = dict.fromkeys(known, DEFAULT)
    for one in given:
        setting = known.get(one.setting)
        if setting is None:
            mistakes.append(f"{one.origin}: {_unknown(one.setting, known)}")
            continue
        try:
            read = setting.from_text if one.is_text else setting.from_toml
            values[one.setting] = read(one.value)
            origins[one.setting] = one.origin
        except InvalidSetting as error:
            mistakes.append(f"{one.origin}: {error.message}")
    return values, origins


def _from_file(
    path: str, mistakes: list[str]
) -> tuple[list[Given], tuple[AlertRule, ...], dict[str, dict[str, int]]]:
    """Settings, and what has tables of its own: alert rules, and quotas of principals."""
    text = _read(path, mistakes)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+)", str(error))
        reason = re.sub(r" \(at (line \d+, )?(.*)\)", r" (\2)", str(error))
        mistakes.append(f"{path}:{place[1] if place else 1}: not TOML: {reason}")
        return [], (), {}
    lines = key_lines(text)
    file = SettingsFile(path, document, lines, mistakes)
    rules, quotas = take_rules(file), take_quotas(file)
    sections = {setting.section for setting in settings_of(NodeConfig)} - {""}
    given = []
    for name, value in _flatten(document, "", sections):
        line = line_of(lines, name)
        origin = path if line is None else f"{path}:{line}"
        if name in sections:
            mistakes.append(f"{origin}: {name} is a table: write [{name}] and its settings below")
            continue
        given.append(Given(setting=name, value=value, origin=origin, is_text=False))
    return given, rules, quotas


def _read(path: str, mistakes: list[str]) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        mistakes.append(f"{path}: cannot be read: {error.strerror or error}")
        return ""
    if len(content) > FILE_BYTES_MAX:
        mistakes.append(f"{path}: a settings file has at most {FILE_BYTES_MAX:,} bytes")
        return ""
    try:
        return content.decode()
    except UnicodeDecodeError:
        mistakes.append(f"{path}: cannot be read: it is not UTF-8 text")
        return ""


def _flatten(
    table: dict[str, Any], section: str, sections: set[str]
) -> Iterator[tuple[str, object]]:
    """Keys as settings are named. A table that no section is called for counts as one key."""
    for key, value in table.items():
        name = f"{section}.{key}" if section else key
        if isinstance(value, dict) and name in sections:
            yield from _flatten(value, name, sections)
        else:
            yield name, value


def _from_environment(environment: Mapping[str, str], mistakes: list[str]) -> list[Given]:
    """Variables of settings. Other ``QUIVER_`` names belong to clients or to whoever started the
    process (Kubernetes sets ``QUIVER_PORT`` for a service), unless they begin like a section's."""
    known = {setting.environment: setting for setting in settings_of(NodeConfig)}
    sections = tuple(
        f"{ENVIRONMENT_PREFIX}{section.upper()}_"
        for section in {setting.section for setting in known.values()} - {""}
    )
    given = []
    for variable in sorted(environment):
        if variable in known:
            given.append(
                Given(setting=known[variable].name, value=environment[variable], origin=variable)
            )
        elif variable.startswith(sections):
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            mistakes.append(f"{variable}: there is no such setting{hint}")
    return given


def _unknown(name: str, known: Mapping[str, Setting]) -> str:
    sections = [setting.section for setting in known.values() if setting.section]
    near = difflib.get_close_matches(name, [*known, *sections], n=1)
    near = near or [other for other in known if other.endswith(f".{name}")]
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no setting {name}{hint}"


def _build(struct: type[Any], section: str, values: Mapping[str, Any]) -> Any:
    fields = {}
    for field in msgspec.structs.fields(struct):
        name = f"{section}.{field.name}" if section else field.name
        if name in values:
            fields[field.name] = values[name]
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            fields[field.name] = _build(field.type, name, values)
    return struct(**fields)
