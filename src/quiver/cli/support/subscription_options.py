"""The flags for the settings of a queue or subscription, defined once.

A flag that is not given changes nothing. ``quiver.model.subscription`` checks the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from quiver.cli.support.option_values import MISSING, given, read
from quiver.errors import InvalidSetting
from quiver.model.subscription import (
    Backoff,
    Guarantee,
    OnDisconnect,
    Ordering,
    Push,
    SubscriptionSettings,
)
from quiver.model.units import seconds


class DeliveryFlags:
    """Settings that are fixed when a queue or subscription is created."""

    ordering: Annotated[
        Ordering | None,
        typer.Option(
            "--ordering",
            help="Delivery order: none (work queue), key (in order for each key) or partition "
            "(in order for each partition).",
        ),
    ] = None
    guarantee: Annotated[
        Guarantee | None, typer.Option("--guarantee", help="Delivery guarantee.")
    ] = None
    fairness: Annotated[
        str | None,
        typer.Option(
            "--fairness",
            metavar="COLUMN",
            help="Deliver round robin by this column: key or headers.NAME.",
        ),
    ] = None


class SubscriptionFlags:
    """Settings that can be changed later."""

    visibility: Annotated[
        str | None,
        typer.Option(
            "--visibility",
            metavar="TIME",
            help="How long a received message is hidden from other consumers, as in 30s.",
        ),
    ] = None
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            "--max-deliveries",
            min=0,
            help="Number of failed deliveries after which a message is dead-lettered. 0: never.",
        ),
    ] = None
    dead_letter: Annotated[
        str | None,
        typer.Option(
            "--dead-letter", metavar="TOPIC", help="Topic for dead letters. none: NAME.dlq."
        ),
    ] = None
    backoff_min: Annotated[
        str | None,
        typer.Option(
            "--backoff-min", metavar="TIME", help="Delay before the first retry, as in 1s."
        ),
    ] = None
    backoff_max: Annotated[
        str | None,
        typer.Option(
            "--backoff-max", metavar="TIME", help="Longest delay before a retry, as in 10m."
        ),
    ] = None
    backoff_factor: Annotated[
        float | None,
        typer.Option("--backoff-factor", help="Factor by which the delay grows with each retry."),
    ] = None
    ageing: Annotated[
        str | None,
        typer.Option(
            "--ageing",
            metavar="TIME",
            help="Raise a message's priority by 1 for each such time it waits, as in 60s. 0: never.",
        ),
    ] = None
    session_timeout: Annotated[
        str | None,
        typer.Option(
            "--session-timeout",
            metavar="TIME",
            help="With --ordering partition: time without a sign of life after which a consumer "
            "leaves its group, as in 10s.",
        ),
    ] = None
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Deliver only messages that match, as in 'priority >= 5'. none: all.",
        ),
    ] = None
    on_disconnect: Annotated[
        OnDisconnect | None,
        typer.Option(
            "--on-disconnect",
            help="When a WebSocket consumer disconnects: return its messages to the queue at once, "
            "or keep them leased.",
        ),
    ] = None
    push_url: Annotated[
        str | None,
        typer.Option("--push-url", metavar="URL", help="Push messages to this URL. none: no push."),
    ] = None
    push_secret: Annotated[
        str | None,
        typer.Option(
            "--push-secret",
            metavar="NAME",
            help="Name of the secret that signs each push. none: not signed.",
        ),
    ] = None
    push_batch: Annotated[
        int | None, typer.Option("--push-batch", min=1, help="Most messages in one push.")
    ] = None
    push_concurrency: Annotated[
        int | None, typer.Option("--push-concurrency", min=1, help="Most pushes at a time.")
    ] = None
    push_timeout: Annotated[
        str | None,
        typer.Option("--push-timeout", metavar="TIME", help="How long a push may take, as in 10s."),
    ] = None


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, by the names of ``SubscriptionSettings``.

    ``backoff`` and ``push`` may be partial.
    """
    backoff = given(
        min=read(values, "backoff_min", seconds),
        max=read(values, "backoff_max", seconds),
        factor=read(values, "backoff_factor", float),
    )
    return given(
        ordering=read(values, "ordering", Ordering),
        guarantee=read(values, "guarantee", Guarantee),
        visibility=read(values, "visibility", seconds),
        max_deliveries=read(values, "max_deliveries", int),
        dead_letter=read(values, "dead_letter", str, clears=True),
        backoff=backoff or MISSING,
        ageing=read(values, "ageing", seconds),
        fairness=read(values, "fairness", str),
        session_timeout=read(values, "session_timeout", seconds),
        filter=read(values, "filter", str, clears=True),
        on_disconnect=read(values, "on_disconnect", OnDisconnect),
        push=_push_from(values),
    )


def _push_from(values: Mapping[str, Any]) -> Any:
    push = given(
        url=read(values, "push_url", str, clears=True),
        secret=read(values, "push_secret", str, clears=True),
        batch=read(values, "push_batch", int),
        concurrency=read(values, "push_concurrency", int),
        timeout=read(values, "push_timeout", seconds),
    )
    if push.get("url", MISSING) is not None:
        return push or MISSING
    if len(push) > 1:
        raise InvalidSetting("--push-url none turns push off: leave the other --push flags out")
    return None


def new_settings(values: Mapping[str, Any], topics: list[str]) -> dict[str, Any]:
    """The settings of a new queue or subscription, checked before connecting."""
    return _changed(SubscriptionSettings(topics=topics), settings_from(values))


def check_changes(settings: SubscriptionSettings, changes: Mapping[str, Any]) -> None:
    """Check the settings that a queue or subscription would have."""
    _changed(settings, changes)


def _changed(settings: SubscriptionSettings, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, with ``backoff`` and ``push`` made whole, checked."""
    whole = dict(changes)
    for name, kind in (("backoff", Backoff), ("push", Push)):
        if isinstance(part := changes.get(name), dict):
            before = getattr(settings, name)
            group = ({} if before is None else asdict(before)) | part
            if kind is Push and "url" not in group:
                raise InvalidSetting("the other --push flags need --push-url")
            whole[name] = kind(**group)
    SubscriptionSettings(**asdict(settings) | whole)
    return whole
