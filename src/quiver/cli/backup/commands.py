"""``quiver backup``: take, list, verify and restore backups of a running node or cluster."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quiver.cli.support.exit_codes import ExitCode, tell
from quiver.cli.support.output import Json, print_json, print_line, print_listing, progress
from quiver.cli.support.seek import parse_places
from quiver.cli.support.session import UrlFlag, connected_async
from quiver.cli.support.text import parse_moment, plural, shown_bytes, shown_count, shown_time
from quiver.errors import InvalidSetting
from quiver.model.message import time_us_of
from quiver.model.units import size_bytes

if TYPE_CHECKING:
    from quiver import AsyncClient
    from quiver.backup.create import Created
    from quiver.backup.manifest import Manifest
    from quiver.backup.nodes import Nodes
    from quiver.backup.pace import Pace
    from quiver.backup.plan import Limit
    from quiver.backup.restore import Restored

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True, help="Take, list, verify and restore backups of a running cluster."
)

FromFlag = Annotated[
    str,
    typer.Option(
        "--from", metavar="PLACE", help="Folder of the backups, or a URI as in s3://bucket/folder."
    ),
]
BackupFlag = Annotated[
    str | None,
    typer.Option("--backup", metavar="ID", help="Id of the backup. Default: the newest."),
]
RateFlag = Annotated[
    str | None,
    typer.Option("--rate", metavar="SIZE", help="Most bytes a second, as in 50MB."),
]


@app.command()
def create(
    context: typer.Context,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Folder for the backup, or a URI as in s3://bucket/folder.",
        ),
    ],
    rate: RateFlag = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Back up all topics, messages, subscriptions and tokens. Only what is new is copied."""
    from quiver.backup.create import BackupWriter  # noqa: PLC0415 - help does not need it
    from quiver.backup.place import open_place  # noqa: PLC0415

    bytes_per_s, place = _rate(rate), open_place(to)

    async def made() -> Created:
        async with connected_async(context, url) as client:
            with progress("bytes copied", None) as advance:
                nodes, pace = _tools(client, bytes_per_s)
                return await BackupWriter(nodes, place, pace, on_bytes=advance).create()

    created = _run(made())
    if json:
        print_json(_described(created.manifest) | {"new_bytes": created.new_bytes})
        return
    print_line(created.manifest.id)
    tell(
        f"backed up {_counts(created.manifest)}; "
        f"new are {shown_bytes(created.new_bytes)} in {plural(created.new_objects, 'file')}"
    )


@app.command("list")
def list_(from_: FromFlag, json: Json = False) -> None:
    """List the backups at a place, oldest first."""
    from quiver.backup.place import open_place  # noqa: PLC0415

    place = open_place(from_)
    found = [_described(place.manifest(one)) for one in place.ids()]
    print_listing(
        found,
        json=json,
        none=f"there is no backup at {from_}",
        columns=("ID", "BEGAN", ">TOPICS", ">SUBSCRIPTIONS", ">MESSAGES", ">SIZE"),
        row=lambda one: (
            one["id"],
            shown_time(one["created_us"])[:19] + "Z",
            one["topics"],
            one["subscriptions"],
            shown_count(one["messages"]),
            shown_bytes(one["bytes"]),
        ),
    )


@app.command("verify")
def verify_(from_: FromFlag, backup: BackupFlag = None, json: Json = False) -> None:
    """Read a backup and check every file against its checksum. Exits with 1 if one is damaged."""
    from quiver.backup.place import open_place  # noqa: PLC0415
    from quiver.backup.verify import verify  # noqa: PLC0415

    place = open_place(from_)
    manifest = place.manifest(backup)
    with progress("bytes verified", manifest.bytes) as advance:
        problems = verify(place, manifest, advance)
    if json:
        print_json(_described(manifest) | {"problems": problems})
    else:
        for problem in problems:
            tell(f"error: {problem}")
        found = plural(len(problems), "problem")
        state = f"damaged: {found}" if problems else f"whole: {_counts(manifest)}"
        tell(f"backup {manifest.id} is {state}")
    if problems:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def restore(
    context: typer.Context,
    from_: FromFlag,
    backup: BackupFlag = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topics",
            metavar="PATTERN",
            help="Restore only these topics and their subscriptions, as in 'orders*'. "
            "May be repeated. Tokens are left out then.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Leave out messages that were stored later, as in 2026-01-01T09:00.",
        ),
    ] = None,
    until_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--until-offset",
            metavar="TOPIC/PARTITION=OFFSET",
            help="Leave out messages of a partition from this offset on. May be repeated.",
        ),
    ] = None,
    tokens: Annotated[bool, typer.Option(help="Restore the tokens too.")] = True,
    rate: RateFlag = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Restore a backup into a node or cluster that has none of its topics. Can be repeated."""
    from quiver.backup.place import open_place  # noqa: PLC0415
    from quiver.backup.restore import Restorer  # noqa: PLC0415

    bytes_per_s, limit = _rate(rate), _limit(until, until_offset)
    place = open_place(from_)
    manifest = place.manifest(backup)

    async def made() -> Restored:
        async with connected_async(context, url) as client:
            with progress("bytes restored", manifest.bytes) as advance:
                nodes, pace = _tools(client, bytes_per_s)
                return await Restorer(nodes, place, pace, on_bytes=advance).restore(
                    manifest,
                    topics=topics or (),
                    limit=limit,
                    with_tokens=tokens and not topics,
                )

    _report(_run(made()), json)


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # noqa: PLC0415 - help does not need it

    return asyncio.run(work)


def _report(restored: Restored, json: bool) -> None:
    if json:
        print_json(restored)
        return
    tell(
        f"restored {plural(len(restored.topics), 'topic')}, {plural(restored.messages, 'message')}, "
        f"{plural(len(restored.subscriptions), 'subscription')} and {plural(restored.tokens, 'token')} "
        f"of backup {restored.backup}"
    )
    for names, what in (
        (restored.already, "were restored before and are left as they are"),
        (restored.renumbered, "have another number: ids of their messages are new"),
        (restored.left_out, "are left out: they also read topics that are not restored"),
    ):
        if names:
            tell(f"{', '.join(names)} {what}")
    if restored.tokens_refused:
        tell(f"tokens were not restored: {restored.tokens_refused}")


def _tools(client: AsyncClient, bytes_per_s: float | None) -> tuple[Nodes, Pace]:
    from quiver.backup.nodes import Nodes  # noqa: PLC0415
    from quiver.backup.pace import Pace  # noqa: PLC0415
    from quiver.model.clock import SystemClock  # noqa: PLC0415

    clock = SystemClock()
    return Nodes(client.cluster, clock), Pace(clock, bytes_per_s)


def _rate(rate: str | None) -> float | None:
    if rate is None:
        return None
    size = size_bytes(rate)
    if size <= 0:
        raise InvalidSetting("--rate: give at least 1 byte a second")
    return size


def _limit(until: str | None, places: list[str] | None) -> Limit:
    from quiver.backup.plan import Limit  # noqa: PLC0415

    time_us = None
    if until is not None:
        moment = parse_moment(until)
        if moment is None:
            raise InvalidSetting(
                f"--until: {until!r} is not a time; write it as in 2026-01-01T09:00"
            )
        time_us = time_us_of(moment)
    return Limit(time_us=time_us, offsets=parse_places(places or [], "--until-offset"))


def _described(manifest: Manifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "created_us": manifest.created_us,
        "topics": len(manifest.topics),
        "subscriptions": len(manifest.subscriptions),
        "tokens": len(manifest.tokens),
        "messages": manifest.messages,
        "bytes": manifest.bytes,
    }


def _counts(manifest: Manifest) -> str:
    return (
        f"{plural(len(manifest.topics), 'topic')}, {plural(manifest.messages, 'message')}, "
        f"{plural(len(manifest.subscriptions), 'subscription')}, {shown_bytes(manifest.bytes)}"
    )
