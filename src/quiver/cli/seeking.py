"""Where a queue or subscription shall go on: the flags of ``seek``, and what they mean."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from quiver.cli.text import parse_position
from quiver.errors import InvalidSetting

ToFlag = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="WHERE",
        help="earliest, latest, -1h, 2026-01-01T00:00 or an offset.",
    ),
]
PlacesFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        metavar="TOPIC/PARTITION=OFFSET",
        help="Only this partition, to this offset; may be repeated.",
    ),
]

Goal = int | str | datetime | dict[tuple[str, int], int]


def goal_of(context: typer.Context, to: str | None, places: list[str] | None) -> Goal:
    """Where to, as the client understands it."""
    if (to is None) == (not places):
        raise typer.BadParameter("say where to: with --to, or with --place", ctx=context)
    if to is not None:
        return parse_position(to, "--to")
    goal = {}
    for place in places or []:
        partition, _, offset = place.partition("=")
        topic, _, index = partition.rpartition("/")
        if not (topic and _is_number(index) and _is_number(offset)):
            raise InvalidSetting(
                f"--place: not an offset of a partition: {place!r}; write it as orders/0=42"
            )
        goal[topic, int(index)] = int(offset)
    return goal


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
