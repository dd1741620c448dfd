"""Settings in requests: structs with the fields of the model's settings, all optional."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from quiver.edge.http import text_forms
from quiver.edge.http.schemas.values import DurationText, Name, Rest, SizeText, TopicPattern
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import PARTITIONS_MAX, TopicSettings


def _fields_of(
    *structs: type[Struct], without: frozenset[str] = frozenset()
) -> list[tuple[str, Any, Any]]:
    return [
        (field.name, _partial_type(field.type, _name_of(struct, field.name)) | UnsetType, UNSET)
        for struct in structs
        for field in msgspec.structs.fields(struct)
        if field.name not in without
    ]


class PushFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """An HTTP endpoint that receives the messages. A 2xx answer acknowledges them."""

    url: Annotated[
        str, Meta(max_length=2000, pattern=text_forms.URL, examples=["https://a.example"])
    ]
    secret: Name | UnsetType | None = UNSET
    batch: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=64)] | UnsetType = UNSET
    timeout: Annotated[float, Meta(ge=0.1, le=300)] | DurationText | UnsetType = UNSET


def _name_of(struct: type[Struct], field: str) -> str:
    """Settings in a group are named with their struct, as ``Retention.age``."""
    is_group = struct not in (TopicSettings, SubscriptionSettings)
    return f"{struct.__name__}.{field}" if is_group else field


_BOUNDS: dict[str, Any] = {
    "partitions": Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)],
    "sync_interval_ms": Annotated[int, Meta(ge=1, le=60_000)],
    "message_bytes_max": Annotated[int, Meta(ge=1, le=32 << 20)],
    "segment_bytes": Annotated[int, Meta(ge=1 << 20, le=1 << 36)],
    "segment_age_s": Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)],
    "max_deliveries": Annotated[int, Meta(ge=0, le=10_000)],
    "visibility": Rest,
    "ageing": Annotated[float, Meta(ge=0, le=365 * 86_400)] | DurationText,
    "topics": Annotated[list[TopicPattern], Meta(min_length=1, max_length=1000)],
    "dead_letter": Name | None,
    "filter": Annotated[str, Meta(max_length=10_000, examples=["headers.region = 'eu'"])] | None,
    "push": PushFields | None,
    "fairness": Annotated[str, Meta(max_length=210, examples=["headers.tenant"])] | None,
    "session_timeout": Rest,
    "dedup_window": Annotated[float, Meta(ge=0, le=86_400)] | DurationText,
    "Retention.age": Annotated[float, Meta(ge=1, le=100 * 365 * 86_400)] | DurationText | None,
    "Retention.bytes": Annotated[int, Meta(ge=1, le=1 << 60)] | SizeText | None,
    "Retention.messages": Annotated[int, Meta(ge=1, le=1 << 60)] | None,
    "Backoff.min": Rest,
    "Backoff.max": Rest,
    "Backoff.factor": Annotated[float, Meta(ge=1, le=100)],
}
"""The bounds of settings, repeated for the schema."""


def _partial_type(of_type: Any, name: str) -> Any:
    """The type of a setting in a request; a group of settings may be partial."""
    if name in _BOUNDS:
        return _BOUNDS[name]
    if isinstance(of_type, type) and issubclass(of_type, Struct):
        return _partial_group(of_type)
    return of_type


@cache
def _partial_group(group: type[Struct]) -> type[Struct]:
    return partial_of(f"{group.__name__}Fields", group)


def partial_of(
    name: str,
    *structs: type[Struct],
    without: frozenset[str] = frozenset(),
    extra: tuple[tuple[str, Any, Any], ...] = (),
) -> type[Struct]:
    """A struct with the fields of others, all optional."""
    return msgspec.defstruct(
        name,
        [*_fields_of(*structs, without=without), *extra],
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
    )
