"""``docs/reference/http-api.md``: every path and body, out of the OpenAPI document of a node."""

from __future__ import annotations

import re
from typing import Any

from quiver.edge.http.app import OPERATIONS
from quiver.edge.http.openapi import openapi_document

_PAGE = """\
# Every path of the HTTP interface

This page is generated from the node's `/openapi.json` (`make pages`). [HTTP and WebSocket](http.md) explains
how to publish, receive and acknowledge. [Errors](errors.md) lists the error codes.
"""
_COMMON = {"application/problem+json"}
_NOTHING: tuple[Any, ...] = (None, "", [], {})
_NUMBERS, _TEXTS, _LISTS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
)
_CODE = re.compile(r"`\w+`")


def reference_page() -> str:
    document = openapi_document(OPERATIONS)
    parts = [_PAGE]
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            parts.append(_operation(method.upper(), path, told))
    parts.append("\n# Bodies\n")
    parts += [
        _schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())
    ]
    return "".join(parts)


def _operation(method: str, path: str, told: dict[str, Any]) -> str:
    lines = ["", f"## `{method} {path}`", "", told["summary"], ""]
    parameters = told.get("parameters", [])
    if parameters:
        lines += ["| parameter | in | | |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {_meaning(one)} |"
            for one in parameters
        ]
        lines.append("")
    if "requestBody" in told:
        lines += [f"- request: {_contents(told['requestBody'])}"]
    errors = []
    for status, reply in told["responses"].items():
        description = _one_line(reply["description"])
        if _COMMON & set(reply.get("content", {})):
            codes = ", ".join(_CODE.findall(description))
            errors.append(f"{'else' if status == 'default' else status} {codes}")
        else:
            lines.append(f"- {status}: {description} {_contents(reply)}".rstrip())
    lines.append(f"- errors: {'; '.join(errors)}")
    return "\n".join(lines).rstrip("\n") + "\n"


def _contents(body: dict[str, Any]) -> str:
    return ", ".join(
        f"{_type(content.get('schema', {}))} as `{media}`"
        for media, content in body.get("content", {}).items()
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    lines = ["", f"## {name}", "", _one_line(schema.get("description", "")), ""]
    if "properties" in schema:
        required = set(schema.get("required", ()))
        lines += ["| field | | | |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{field}` | {_type(one)} | {_default(field, one, required)} "
            f"| {_one_line(one.get('description', ''))} |"
            for field, one in schema["properties"].items()
        ]
    else:
        lines.append(_type(schema))
    return "\n".join(lines).rstrip("\n").replace("\n\n\n", "\n\n") + "\n"


def _default(field: str, schema: dict[str, Any], required: set[str]) -> str:
    if field in required:
        return "required"
    default = schema.get("default")
    return "" if default in _NOTHING else f"default `{default}`"


def _meaning(parameter: dict[str, Any]) -> str:
    parts = [_one_line(parameter.get("description", ""))]
    if parameter.get("required") and parameter["in"] != "path":
        parts.append("required")
    default = parameter["schema"].get("default")
    if default not in _NOTHING:
        parts.append(f"default `{default}`")
    return "; ".join(part for part in parts if part)


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words: a name with a link, or what it may be."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(_bounds(schema) | one) for one in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    return _plain_type(schema.get("type", "anything"), schema)


def _bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Bounds beside ``anyOf``: each holds for the types that it fits."""
    return {name: schema[name] for name in (*_NUMBERS, *_TEXTS) if name in schema}


def _plain_type(kind: str, schema: dict[str, Any]) -> str:
    if kind == "array":
        entries = _bounded("", schema, " entries")
        return f"list of {_type(schema.get('items', {}))}{entries}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if "contentMediaType" in schema:
        return "bytes"
    return _bounded({"string": "text", "null": "nothing"}.get(kind, kind), schema)


def _bounded(kind: str, schema: dict[str, Any], unit: str = "") -> str:
    bounds = _TEXTS if kind == "text" else _NUMBERS if kind in ("number", "integer") else _LISTS
    low, high = (schema.get(name) for name in bounds)
    unit = " characters" if kind == "text" else unit
    if low is not None and high is not None:
        return f"{kind}, {low:,} to {high:,}{unit}"
    if low is not None:
        return f"{kind} from {low:,}{unit} on"
    return kind if high is None else f"{kind} up to {high:,}{unit}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")
