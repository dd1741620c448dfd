"""Settings in requests: structs with the fields of the model's settings, all optional.

Types, bounds and descriptions come from the settings themselves (``quiver.model.setting``). A number
outside its bounds is refused while a body is decoded.
"""

from __future__ import annotations

from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType

from quiver.edge.http.schemas.values import DurationText, SizeText
from quiver.model.setting import Setting, Unit, fields_of

_TEXTS = {Unit.SECONDS: DurationText, Unit.MILLISECONDS: DurationText, Unit.BYTES: SizeText}
_UNITS = {Unit.SECONDS: "Seconds", Unit.MILLISECONDS: "Milliseconds", Unit.BYTES: "Bytes"}
_EXAMPLES = {
    Unit.SECONDS: "'30s' or '1h30m'",
    Unit.MILLISECONDS: "'20ms' or '1s'",
    Unit.BYTES: "'10GB' or '256MiB'",
}
_LEFT_OUT = "A setting that is left out keeps its value; in a new group it has its default."
_Field = tuple[str, Any, Any]


def partial_of(
    name: str,
    *structs: type[Struct],
    doc: str,
    is_new: bool = True,
    without: frozenset[str] = frozenset(),
    extra: tuple[_Field, ...] = (),
) -> type[Struct]:
    """A struct with the settings of others, all optional; with their defaults in words if ``is_new``."""
    fields = [
        (one.field, _request_type(one, is_new=is_new) | UnsetType, UNSET)
        for struct in structs
        for one in fields_of(struct)
        if one.field not in without
    ]
    return _struct(name, [*fields, *extra], doc)


@cache
def _partial_group(group: type[Struct]) -> type[Struct]:
    """A group of settings, which may be given in part; what has no default is required."""
    fields: list[_Field] = []
    for one in fields_of(group):
        of_type = _request_type(one, is_new=True)
        fields.append(
            (one.field, of_type, NODEFAULT)
            if one.is_required
            else (one.field, of_type | UnsetType, UNSET)
        )
    summary = " ".join((group.__doc__ or "").partition("\n\n")[0].split())
    return _struct(f"{group.__name__}Fields", fields, f"{summary} {_LEFT_OUT}")


def _struct(name: str, fields: list[_Field], doc: str) -> type[Struct]:
    return msgspec.defstruct(
        name,
        fields,
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
        namespace={"__doc__": doc},
    )


def _request_type(one: Setting, *, is_new: bool) -> Any:
    of_type = _value_type(one)
    return _annotated(
        of_type | None if one.is_optional else of_type,
        Meta(description=_description(one, is_new=is_new), examples=one.meta.examples),
    )


def _value_type(one: Setting) -> Any:
    if one.group is not None:
        return _partial_group(one.group)
    if one.is_number:
        bounds = Meta(ge=one.least, le=one.most)
        number = _annotated(int if one.is_whole else float, bounds)
        return number | _TEXTS[one.unit] if one.unit in _TEXTS else number
    if one.entries_max is not None:
        (entry,) = get_args(one.type)
        entries = Meta(min_length=1, max_length=one.entries_max)
        return _annotated(list[_entry_type(entry)], entries)  # type: ignore[misc]
    if str in one.kinds:
        return _annotated(str, Meta(pattern=one.pattern, max_length=one.length_max))
    (kind,) = (kind for kind in one.kinds if kind is not NoneType)
    return kind


def _entry_type(entry: Any) -> Any:
    """The type of one entry of a list, with its pattern enforced."""
    kind, meta = get_args(entry)
    pattern = meta.extra_json_schema["pattern"]
    return _annotated(
        kind, Meta(pattern=pattern, description=meta.description, examples=meta.examples)
    )


def _annotated(of_type: Any, meta: Meta) -> Any:
    return Annotated[of_type, meta]


def _description(one: Setting, *, is_new: bool) -> str:
    parts = [one.description]
    if one.unit is not Unit.NONE:
        unit = _UNITS[one.unit]
        parts.append(f"{unit}, or text such as {_EXAMPLES[one.unit]}.")
    if one.is_optional and one.without:
        parts.append(f"Null: {one.without}.")
    if is_new and one.group is None and not one.is_required:
        parts.append(f"Default: {default_in_json(one)}.")
    return " ".join(parts)


def default_in_json(one: Setting) -> str:
    """The default as a request may give it."""
    if one.default is None:
        return "null"
    if one.is_number and not one.takes_text:
        return f"{one.default:g}" if isinstance(one.default, float) else str(one.default)
    return one.shown(one.default)
