"""``quiver mirror``: copy topics from another cluster, and promote the copies."""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.mirror import options
from quiver.cli.mirror.text import COLUMNS, print_mirror, print_promoted, row
from quiver.cli.support.exit_codes import tell
from quiver.cli.support.flags import with_flags
from quiver.cli.support.output import Json, print_json, print_listing
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.setting_flags import declared
from quiver.model.units import seconds
from quiver.protocol import MirrorInfo

app = typer.Typer(
    no_args_is_help=True, help="Copy topics from another cluster, and promote the copies."
)

Name = Annotated[str, typer.Argument(help="The mirror.", show_default=False)]
TopicsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        metavar="PATTERN",
        help="Topics of the source to copy, as in 'orders.*'. May be repeated.",
    ),
]
TokenFlag = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="QUIVER_SOURCE_TOKEN",
        help="Token for the source.",
    ),
]


@app.command()
@with_flags(declared(options.FLAGS, is_new=True))
def add(
    context: typer.Context,
    name: Name,
    topics: TopicsFlag = None,
    *,
    token: TokenFlag = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Copy topics of another cluster from now on. The copies take no publishes until a promote."""
    for flag, value in (("--from", context.params["source"]), ("--topics", topics)):
        if not value:
            raise typer.BadParameter(f"give {flag}", ctx=context)
    settings = options.new_settings(context.params)
    with connected(context, url) as client:
        mirror = client.create_mirror(name, token=token, **settings)
    _print_changed(mirror, "added", json=json)


@app.command()
@with_flags(declared(options.FLAGS, is_new=False))
def alter(
    context: typer.Context,
    name: Name,
    topics: TopicsFlag = None,
    *,
    token: TokenFlag = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Change settings of a mirror. Settings that are not given stay the same."""
    changes = options.settings_from(context.params)
    if not changes and token is None:
        raise typer.BadParameter("nothing to change: give at least one setting", ctx=context)
    with connected(context, url) as client:
        mirror = client.alter_mirror(name, token=token, **changes)
    _print_changed(mirror, "altered", json=json)


@app.command("list")
def list_(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """List mirrors and how far behind they are."""
    with connected(context, url) as client:
        mirrors = client.list_mirrors()
    print_listing(
        mirrors,
        json=json,
        none="there are no mirrors yet; add one with: quiver mirror add NAME --from URL --topics PATTERN",
        columns=COLUMNS,
        row=row,
    )


@app.command()
def describe(context: typer.Context, name: Name, json: Json = False, url: UrlFlag = None) -> None:
    """Show a mirror's settings, and for each partition how far its copy is."""
    with connected(context, url) as client:
        mirror = client.describe_mirror(name)
    if json:
        print_json(mirror)
        return
    print_mirror(mirror)


@app.command()
def pause(context: typer.Context, name: Name, json: Json = False, url: UrlFlag = None) -> None:
    """Copy nothing until the mirror is resumed. It then goes on where it stopped."""
    with connected(context, url) as client:
        mirror = client.alter_mirror(name, paused=True)
    _print_changed(mirror, "paused", json=json)


@app.command()
def resume(context: typer.Context, name: Name, json: Json = False, url: UrlFlag = None) -> None:
    """Go on copying after a pause."""
    with connected(context, url) as client:
        mirror = client.alter_mirror(name, paused=False)
    _print_changed(mirror, "resumed", json=json)


@app.command()
def remove(context: typer.Context, name: Name, url: UrlFlag = None) -> None:
    """Copy no more. The copies stay, and take no publishes until they are promoted."""
    with connected(context, url) as client:
        client.delete_mirror(name)
    tell(f"removed mirror {name}; its copies stay")


@app.command()
def promote(
    context: typer.Context,
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="Copies to promote, or patterns.", show_default=False
        ),
    ],
    fence: Annotated[
        bool, typer.Option(help="Stop the source first, and wait for what it still has.")
    ] = True,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Longest time to wait, for each topic: for the source to answer, for its open "
            "transactions to end, and for the rest to be copied.",
        ),
    ] = "10s",
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Make copies writable, and let their subscriptions deliver.

    Without an answer of the source, the copies go on with what they have.
    """
    seconds(timeout)  # a mistake is told before connecting
    with connected(context, url) as client:
        promoted = client.promote_topics(topics, fence=fence, timeout=timeout)
    if json:
        print_json(promoted)
        return
    print_promoted(promoted)


def _print_changed(mirror: MirrorInfo, verb: str, *, json: bool) -> None:
    if json:
        print_json(mirror)
        return
    tell(f"{verb} mirror {mirror.name}")
