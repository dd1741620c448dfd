"""``seek`` for queues and subscriptions: its flags and what they mean."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.session import connected
from quiver.cli.support.subscription_text import described
from quiver.cli.support.text import parse_position
from quiver.errors import InvalidSetting

Goal = int | str | datetime | dict[tuple[str, int], int]


class SeekFlags:
    """The new position: one for all partitions, or offsets of single ones."""

    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="New position: earliest, latest, -1h, 2026-01-01T00:00 or an offset.",
        ),
    ] = None
    place: Annotated[
        list[str] | None,
        typer.Option(
            "--place",
            metavar="TOPIC/PARTITION=OFFSET",
            help="Move one partition to an offset. May be repeated.",
        ),
    ] = None


def go_on(context: typer.Context, name: str, url: str | None, *, is_queue: bool) -> None:
    """Move a queue or subscription to the position that the flags give."""
    to, places = context.params["to"], context.params["place"]
    goal = goal_of(context, to, places)
    with connected(context, url) as client:
        described(client, name, is_queue=is_queue)
        client.seek(name, goal)
    kind = "queue" if is_queue else "subscription"
    tell(f"{kind} {name} continues from {to or ', '.join(places)}")


def goal_of(context: typer.Context, to: str | None, places: list[str] | None) -> Goal:
    """The position, as ``Client.seek`` takes it."""
    if (to is None) == (not places):
        raise typer.BadParameter("give the new position with either --to or --place", ctx=context)
    if to is not None:
        return parse_position(to, "--to")
    return parse_places(places or [], "--place")


def parse_places(places: list[str], flag: str) -> dict[tuple[str, int], int]:
    """Offsets of single partitions, by topic and partition."""
    found = {}
    for place in places:
        partition, _, offset = place.partition("=")
        topic, _, index = partition.rpartition("/")
        if not (topic and _is_number(index) and _is_number(offset)):
            raise InvalidSetting(
                f"{flag}: {place!r} is not the offset of a partition; write it as orders/0=42"
            )
        found[topic, int(index)] = int(offset)
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
