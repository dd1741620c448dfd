"""Fields of a record that only a newer Quiver knows: they stay when this one changes the record.

During an upgrade nodes of two versions change the same records. Without this, a node of the older version
would drop the settings that only the newer one knows.
"""

from __future__ import annotations

from typing import Any

import msgspec


def unknown_fields(stored: bytes, record: object) -> dict[str, Any]:
    """What is stored and has no place in the record, whole or inside its groups of settings."""
    known = _encode(record)
    return {} if known == stored else _left_over(_decode(stored), _decode(known))


def encoded(record: object, unknown: dict[str, Any]) -> bytes:
    """The record as it is stored, with fields that only a newer Quiver knows."""
    return _encode(_merged(_decode(_encode(record)), unknown) if unknown else record)


def _left_over(stored: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in stored.items():
        if name not in known:
            found[name] = value
        elif isinstance(value, dict) and isinstance(known[name], dict):
            inside = _left_over(value, known[name])
            if inside:
                found[name] = inside
    return found


def _merged(record: dict[str, Any], unknown: dict[str, Any]) -> dict[str, Any]:
    """A group of settings that is no longer there takes its unknown fields along."""
    merged = dict(record)
    for name, value in unknown.items():
        if name not in record:
            merged[name] = value
        elif isinstance(value, dict) and isinstance(record[name], dict):
            merged[name] = _merged(record[name], value)
    return merged


_encode = msgspec.msgpack.Encoder().encode
_decode: Any = msgspec.msgpack.Decoder().decode
