"""The settings as text: a commented TOML file, the reference page, and a node's values.

All three are made from the definitions in ``quiver.config.node``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from quiver.config.address import Address
from quiver.config.load import LoadedConfig
from quiver.config.node import NodeConfig
from quiver.config.setting import OFF, Setting, settings_of

_PAGE = """\
# Settings of a node

A setting comes from its default, the file given with `quiver serve --config FILE` (TOML), its environment
variable, or a flag. The last of these that gives it wins. `--data`, `--http`, `--native`, `--name`, `--role`,
`--upstream`, `--processes`, `--log-level` and `--log-format` set one setting each; `--set NAME=VALUE` sets
any.

`quiver serve --print-config` prints a file with every setting and its default. `quiver serve
--check-config` prints the value of each setting and where it came from, or lists all mistakes.

Sizes may be written as `67108864` or `"64MiB"`, times as `600` (seconds) or `"10m"`. [Alert
rules](alerts.md) are tables in the same file: `[alerts.rules.NAME]`.
"""


def toml_document() -> str:
    """Every setting at its default, commented out, with its description and bounds above it."""
    lines = ["# Settings of a Quiver node. Remove the '# ' before a setting to change it.", ""]
    for section, settings in _sections():
        if section:
            lines += [f"[{section}]", ""]
        for setting in settings:
            bounds = bounds_of(setting)
            lines.append(f"# {setting.description}".replace("`", ""))
            if bounds:
                lines.append(f"# {bounds[0].upper()}{bounds[1:]}.".replace("`", ""))
            lines += [f"# {setting.field} = {toml_value(setting, setting.default)}", ""]
    return "\n".join(lines)


def reference_page() -> str:
    """``docs/reference/settings.md``."""
    parts = [_PAGE]
    for section, settings in _sections():
        title = f"`[{section}]`" if section else "At the top of the file"
        rows = "".join(
            f"| `{setting.field}` | `{toml_value(setting, setting.default)}` "
            f"| {bounds_of(setting) or 'any'} | `{setting.environment}` | {setting.description} |\n"
            for setting in settings
        )
        parts.append(
            f"## {title}\n\n| setting | default | bounds | variable | meaning |\n"
            f"| --- | --- | --- | --- | --- |\n{rows}"
        )
    return "\n".join(parts)


def resulting_settings(loaded: LoadedConfig) -> Iterator[tuple[str, str, str]]:
    """Each setting of a node with its value as TOML and where that came from."""
    for setting in settings_of(NodeConfig):
        value: Any = loaded.config
        for field in setting.name.split("."):
            value = getattr(value, field)
        yield setting.name, toml_value(setting, value), loaded.origins[setting.name]


def toml_value(setting: Setting, value: Any) -> str:
    """The value as it stands in a file; sizes and times with their unit where that is exact."""
    if value is None or isinstance(value, Address):
        return json.dumps(OFF if value is None else str(value))
    if setting.is_size and value and value % 1024 == 0:
        return json.dumps(setting.shown(value).replace(" ", "").replace(",", ""))
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)


def bounds_of(setting: Setting) -> str:
    """The allowed values in words; empty if the description has them."""
    if setting.choices:
        return "one of " + ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.type is bool:
        return "`true` or `false`"
    if setting.meta.ge is None or setting.meta.le is None:
        return ""
    return f"{setting.shown(setting.meta.ge)} to {setting.shown(setting.meta.le)}"


def _sections() -> Iterator[tuple[str, Iterator[Setting]]]:
    yield from groupby(settings_of(NodeConfig), key=lambda setting: setting.section)


if __name__ == "__main__":
    print(reference_page(), end="")
