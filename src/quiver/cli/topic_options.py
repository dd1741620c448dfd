"""The flags of ``topic create`` and ``topic alter``, defined once, and what they mean as settings.

A flag that is not given changes nothing. Times and sizes are written as people do; ``none`` takes a
limit away. Bounds are checked where the settings are defined, in ``quiver.model.topic``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from quiver.errors import InvalidSetting
from quiver.model.topic import Acks, Compression, Durability
from quiver.model.units import seconds, size_bytes

DurabilityFlag = Annotated[
    Durability | None,
    typer.Option("--durability", help="When a message counts as stored."),
]
SyncIntervalFlag = Annotated[
    str | None,
    typer.Option("--sync-interval", metavar="TIME", help="How often `interval` syncs, as in 50ms."),
]
RetentionAgeFlag = Annotated[
    str | None,
    typer.Option("--retention-age", metavar="TIME", help="Drop what is older, as in 7d; or none."),
]
RetentionBytesFlag = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes", metavar="SIZE", help="Keep at most this much, as in 10GB; or none."
    ),
]
RetentionMessagesFlag = Annotated[
    str | None,
    typer.Option(
        "--retention-messages", metavar="COUNT", help="Keep at most this many messages; or none."
    ),
]
RetentionAckedFlag = Annotated[
    bool | None,
    typer.Option(
        "--retention-acked/--no-retention-acked",
        help="Drop what every subscription has acknowledged.",
    ),
]
CompressionFlag = Annotated[
    Compression | None,
    typer.Option("--compression", help="How producers pack their batches."),
]
MessageBytesMaxFlag = Annotated[
    str | None,
    typer.Option("--message-bytes-max", metavar="SIZE", help="The largest message, as in 1MiB."),
]
AcksFlag = Annotated[
    Acks | None,
    typer.Option("--acks", help="Whom a publish waits for."),
]
SegmentBytesFlag = Annotated[
    str | None,
    typer.Option(
        "--segment-bytes", metavar="SIZE", help="Size of the files a partition is cut into."
    ),
]
SegmentAgeFlag = Annotated[
    str | None,
    typer.Option("--segment-age", metavar="TIME", help="Age at which a new file is begun."),
]


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, as in ``TopicSettings``, from a command's parameters by name.

    Only what was given is in it, of ``retention`` too.
    """
    retention = _given(
        age=_read(values, "retention_age", seconds, clears=True),
        bytes=_read(values, "retention_bytes", size_bytes, clears=True),
        messages=_read(values, "retention_messages", _count, clears=True),
        acked=_read(values, "retention_acked", bool),
    )
    return _given(
        durability=_read(values, "durability", Durability),
        sync_interval_ms=_read(values, "sync_interval", _milliseconds),
        retention=retention or _MISSING,
        compression=_read(values, "compression", Compression),
        message_bytes_max=_read(values, "message_bytes_max", size_bytes),
        acks=_read(values, "acks", Acks),
        segment_bytes=_read(values, "segment_bytes", size_bytes),
        segment_age_s=_read(values, "segment_age", _whole_seconds),
    )


_MISSING = object()


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not _MISSING}


def _read(
    values: Mapping[str, Any], name: str, parse: Callable[[Any], Any], *, clears: bool = False
) -> Any:
    value = values[name]
    if value is None:
        return _MISSING
    if clears and value.lower() == "none":
        return None
    try:
        return parse(value)
    except InvalidSetting as error:
        raise InvalidSetting(f"--{name.replace('_', '-')}: {error.message}") from None


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidSetting(f"not a whole number: {text!r}") from None


def _milliseconds(text: str) -> int:
    return round(seconds(text) * 1000)


def _whole_seconds(text: str) -> int:
    return round(seconds(text))
