"""The flags for a topic's settings, defined once.

A flag that is not given changes nothing. ``none`` removes a limit. ``quiver.model.topic`` checks the
bounds.
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
        typer.Option(
            "--durability",
            help="When a message counts as stored: fsync (after a disk sync), interval (after the "
            "write; synced every --sync-interval) or os (after the write).",
        ),
    ] = None
    sync_interval: Annotated[
        str | None,
        typer.Option(
            "--sync-interval",
            metavar="TIME",
            help="Time between disk syncs with --durability interval, as in 50ms.",
        ),
    ] = None
    retention_age: Annotated[
        str | None,
        typer.Option(
            "--retention-age",
            metavar="TIME",
            help="Delete messages older than this, as in 7d. none: no limit.",
        ),
    ] = None
    retention_bytes: Annotated[
        str | None,
        typer.Option(
            "--retention-bytes",
            metavar="SIZE",
            help="Keep about this much of each partition, as in 10GB, and delete the oldest "
            "messages. none: no limit.",
        ),
    ] = None
    retention_messages: Annotated[
        str | None,
        typer.Option(
            "--retention-messages",
            metavar="COUNT",
            help="Keep about this many messages of each partition and delete the oldest. "
            "none: no limit.",
        ),
    ] = None
    retention_acked: Annotated[
        bool | None,
        typer.Option(
            "--retention-acked/--no-retention-acked",
            help="Delete messages that every subscription has acknowledged.",
        ),
    ] = None
    compression: Annotated[
        Compression | None,
        typer.Option("--compression", help="Compression of the batches that producers send."),
    ] = None
    message_bytes_max: Annotated[
        str | None,
        typer.Option(
            "--message-bytes-max", metavar="SIZE", help="Size of the largest message, as in 1MiB."
        ),
    ] = None
    acks: Annotated[
        Acks | None,
        typer.Option("--acks", help="Which replicas must store a message before it is confirmed."),
    ] = None
    segment_bytes: Annotated[
        str | None,
        typer.Option(
            "--segment-bytes",
            metavar="SIZE",
            help="Size at which a partition starts a new segment file.",
        ),
    ] = None
    segment_age: Annotated[
        str | None,
        typer.Option(
            "--segment-age",
            metavar="TIME",
            help="Age at which a partition starts a new segment file.",
        ),
    ] = None
    dedup_window: Annotated[
        str | None,
        typer.Option(
            "--dedup-window",
            metavar="TIME",
            help="How long a dedup id is remembered, as in 5m. 0 turns deduplication off.",
        ),
    ] = None
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="COUNT",
            help="Number of replicas of each partition. none: 3, or one for each node if there are "
            "fewer.",
        ),
    ] = None
    min_in_sync: Annotated[
        str | None,
        typer.Option(
            "--min-in-sync",
            metavar="COUNT",
            help="Number of in-sync replicas that must have a message before it is confirmed. none: "
            "more than half.",
        ),
    ] = None
    allow_data_loss: Annotated[
        bool | None,
        typer.Option(
            "--allow-data-loss/--no-allow-data-loss",
            help="Let a replica that is not in sync become leader if no other is left. Confirmed "
            "messages may be lost.",
        ),
    ] = None


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, by the names of ``TopicSettings``; ``retention`` may be partial."""
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
    """The settings of a new topic, checked before connecting."""
    settings = settings_from(values)
    if "retention" in settings:
        settings["retention"] = Retention(**settings["retention"])
    TopicSettings(partitions=partitions, **settings)
    return settings
