"""The flags that set something about a queue or subscription, defined once, and their settings.

A flag that is not given changes nothing. Bounds are checked where the settings are defined, in
``quiver.model.subscription``.
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
    """What can be set when a queue or subscription is made, and never again."""

    ordering: Annotated[
        Ordering | None, typer.Option("--ordering", help="What is delivered in order.")
    ] = None
    guarantee: Annotated[
        Guarantee | None, typer.Option("--guarantee", help="How often a message is delivered.")
    ] = None
    fairness: Annotated[
        str | None,
        typer.Option(
            "--fairness", metavar="COLUMN", help="Take turns by this: key, or headers.NAME."
        ),
    ] = None


class SubscriptionFlags:
    """What can be set when a queue or subscription is made, and changed later."""

    visibility: Annotated[
        str | None,
        typer.Option(
            "--visibility", metavar="TIME", help="How long a consumer holds a message, as in 30s."
        ),
    ] = None
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            "--max-deliveries", min=0, help="After so many a message is a dead letter; 0: never."
        ),
    ] = None
    dead_letter: Annotated[
        str | None,
        typer.Option(
            "--dead-letter", metavar="TOPIC", help="Where dead letters go; none: to NAME.dlq."
        ),
    ] = None
    backoff_min: Annotated[
        str | None,
        typer.Option("--backoff-min", metavar="TIME", help="The rest before the first retry."),
    ] = None
    backoff_max: Annotated[
        str | None, typer.Option("--backoff-max", metavar="TIME", help="The longest such rest.")
    ] = None
    backoff_factor: Annotated[
        float | None, typer.Option("--backoff-factor", help="How much longer each rest is.")
    ] = None
    ageing: Annotated[
        str | None,
        typer.Option(
            "--ageing", metavar="TIME", help="Waiting so long is worth one priority; 0: nothing is."
        ),
    ] = None
    session_timeout: Annotated[
        str | None,
        typer.Option(
            "--session-timeout",
            metavar="TIME",
            help="A member silent for so long has left its group.",
        ),
    ] = None
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Deliver only what matches, as in priority >= 5; or none.",
        ),
    ] = None
    on_disconnect: Annotated[
        OnDisconnect | None,
        typer.Option("--on-disconnect", help="What becomes of messages of a stream that ends."),
    ] = None
    push_url: Annotated[
        str | None,
        typer.Option("--push-url", metavar="URL", help="Post messages there; or none."),
    ] = None
    push_secret: Annotated[
        str | None,
        typer.Option(
            "--push-secret", metavar="NAME", help="The secret that signs each post; or none."
        ),
    ] = None
    push_batch: Annotated[
        int | None, typer.Option("--push-batch", min=1, help="Messages in one post, at most.")
    ] = None
    push_concurrency: Annotated[
        int | None, typer.Option("--push-concurrency", min=1, help="Posts at a time, at most.")
    ] = None
    push_timeout: Annotated[
        str | None,
        typer.Option("--push-timeout", metavar="TIME", help="How long an answer may take."),
    ] = None


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, as in ``SubscriptionSettings``, from a command's parameters by name.

    Only what was given is in it, of ``backoff`` and ``push`` too.
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
        raise InvalidSetting("--push-url none: what is not pushed has no other --push flags")
    return None


def new_settings(values: Mapping[str, Any], topics: list[str]) -> dict[str, Any]:
    """The settings for a queue or subscription to be made; a mistake is told before connecting."""
    return _changed(SubscriptionSettings(topics=topics), settings_from(values))


def check_changes(settings: SubscriptionSettings, changes: Mapping[str, Any]) -> None:
    """Whether a queue or subscription could have these settings."""
    _changed(settings, changes)


def _changed(settings: SubscriptionSettings, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes with whole groups of settings, checked."""
    whole = dict(changes)
    for name, kind in (("backoff", Backoff), ("push", Push)):
        if isinstance(part := changes.get(name), dict):
            before = getattr(settings, name)
            group = ({} if before is None else asdict(before)) | part
            if kind is Push and "url" not in group:
                raise InvalidSetting("--push-url is missing: where are messages to be posted?")
            whole[name] = kind(**group)
    SubscriptionSettings(**asdict(settings) | whole)
    return whole
