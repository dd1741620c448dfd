"""The flags that set something about a topic, defined once, and what they mean as settings.

A flag that is not given changes nothing. Times and sizes are written as people do; ``none`` takes a
limit away. Bounds are checked where the settings are defined, in ``quiver.model.topic``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from quiver.cli.support.option_values import (
    MISSING,
    given,
    milliseconds,
    read,
    whole_number,
    whole_seconds,
)
from quiver.model.topic import (
    Acks,
    Compression,
    Durability,
    Retention,
    TopicSettings,
)
from quiver.model.units import seconds, size_bytes


class TopicFlags:
    """Everything that can be set when a topic is made, and changed later."""

    durability: Annotated[
        Durability | None,
        typer.Option("--durability", help="When a message counts as stored."),
    ] = None
    sync_interval: Annotated[
        str | None,
        typer.Option(
            "--sync-interval", metavar="TIME", help="How often `interval` syncs, as in 50ms."
        ),
    ] = None
    retention_age: Annotated[
        str | None,
        typer.Option(
            "--retention-age", metavar="TIME", help="Drop what is older, as in 7d; or none."
        ),
    ] = None
    retention_bytes: Annotated[
        str | None,
        typer.Option(
            "--retention-bytes", metavar="SIZE", help="Keep at most this much, as in 10GB; or none."
        ),
    ] = None
    retention_messages: Annotated[
        str | None,
        typer.Option(
            "--retention-messages",
            metavar="COUNT",
            help="Keep at most this many messages; or none.",
        ),
    ] = None
    retention_acked: Annotated[
        bool | None,
        typer.Option(
            "--retention-acked/--no-retention-acked",
            help="Drop what every subscription has acknowledged.",
        ),
    ] = None
    compression: Annotated[
        Compression | None,
        typer.Option("--compression", help="How producers pack their batches."),
    ] = None
    message_bytes_max: Annotated[
        str | None,
        typer.Option(
            "--message-bytes-max", metavar="SIZE", help="The largest message, as in 1MiB."
        ),
    ] = None
    acks: Annotated[
        Acks | None,
        typer.Option("--acks", help="Whom a publish waits for."),
    ] = None
    segment_bytes: Annotated[
        str | None,
        typer.Option(
            "--segment-bytes", metavar="SIZE", help="Size of the files a partition is cut into."
        ),
    ] = None
    segment_age: Annotated[
        str | None,
        typer.Option("--segment-age", metavar="TIME", help="Age at which a new file is begun."),
    ] = None
    dedup_window: Annotated[
        str | None,
        typer.Option(
            "--dedup-window", metavar="TIME", help="How long a dedup id is remembered, as in 5m."
        ),
    ] = None
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas", metavar="COUNT", help="On how many nodes each partition is kept; or none."
        ),
    ] = None
    min_in_sync: Annotated[
        str | None,
        typer.Option(
            "--min-in-sync",
            metavar="COUNT",
            help="How many replicas must have a message before it counts; or none.",
        ),
    ] = None
    allow_data_loss: Annotated[
        bool | None,
        typer.Option(
            "--allow-data-loss/--no-allow-data-loss",
            help="Rather go on without confirmed messages than not at all.",
        ),
    ] = None


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, as in ``TopicSettings``, from a command's parameters by name.

    Only what was given is in it, of ``retention`` too.
    """
    retention = given(
        age=read(values, "retention_age", seconds, clears=True),
        bytes=read(values, "retention_bytes", size_bytes, clears=True),
        messages=read(values, "retention_messages", whole_number, clears=True),
        acked=read(values, "retention_acked", bool),
    )
    return given(
        durability=read(values, "durability", Durability),
        sync_interval_ms=read(values, "sync_interval", milliseconds),
        retention=retention or MISSING,
        compression=read(values, "compression", Compression),
        message_bytes_max=read(values, "message_bytes_max", size_bytes),
        acks=read(values, "acks", Acks),
        segment_bytes=read(values, "segment_bytes", size_bytes),
        segment_age_s=read(values, "segment_age", whole_seconds),
        dedup_window=read(values, "dedup_window", seconds),
        replicas=read(values, "replicas", whole_number, clears=True),
        min_in_sync=read(values, "min_in_sync", whole_number, clears=True),
        allow_data_loss=read(values, "allow_data_loss", bool),
    )


def new_settings(values: Mapping[str, Any], partitions: int) -> dict[str, Any]:
    """The settings for a topic to be made; a mistake is told before connecting."""
    settings = settings_from(values)
    if "retention" in settings:
        settings["retention"] = Retention(**settings["retention"])
    TopicSettings(partitions=partitions, **settings)
    return settings
