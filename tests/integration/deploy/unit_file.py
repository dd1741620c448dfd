"""Reads a systemd unit: sections of keys, each with all its values in order."""

from __future__ import annotations

from pathlib import Path

Sections = dict[str, dict[str, list[str]]]


def sections(path: Path) -> Sections:
    found: Sections = {}
    for line in map(str.strip, path.read_text().splitlines()):
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            assert line.endswith("]")
            assert line[1:-1] not in found
            found[line[1:-1]] = {}
            continue
        key, equals, value = line.partition("=")
        assert equals, f"not a setting: {line}"
        *_, keys = found.values()
        keys.setdefault(key, []).append(value)
    return found
