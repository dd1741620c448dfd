"""``quiver subscription``: manage subscriptions. Each reads topics with its own progress."""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.support import subscription_options as flags
from quiver.cli.support.create import IfNotExists, created
from quiver.cli.support.exit_codes import tell
from quiver.cli.support.flags import with_flags
from quiver.cli.support.output import Json, Yes, print_json, print_listing, print_table
from quiver.cli.support.seek import SeekFlags, go_on
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.setting_flags import declared
from quiver.cli.support.subscription_text import described, pending, print_depth, setting_rows
from quiver.cli.support.text import parse_position, plural, shown_duration, shown_time
from quiver.model.setting import setting_of
from quiver.model.subscription import SubscriptionSettings
from quiver.protocol import SubscriptionInfo

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list, describe, alter, seek and delete subscriptions.",
)

Name = Annotated[str, typer.Argument(help="The subscription.", show_default=False)]
_TOPIC_HELP = (
    "Topic to read, or a pattern such as 'orders.*'. May be repeated, up to "
    f"{setting_of(SubscriptionSettings, 'topics').entries_max:,} times."
)


@app.command()
@with_flags(declared(flags.FLAGS, is_new=True))
def create(
    context: typer.Context,
    name: Name,
    topic: Annotated[list[str], typer.Option("--topic", "-t", metavar="TOPIC", help=_TOPIC_HELP)],
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start position: earliest, latest, -1h, 2026-01-01T00:00 or an offset.",
        ),
    ] = "latest",
    *,
    if_not_exists: IfNotExists = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Create a subscription."""
    settings = flags.new_settings(context.params, topic)
    start = parse_position(from_, "--from")
    with connected(context, url) as client:
        info, verb = created(
            lambda exist_ok: client.create_subscription(
                name, topic, start=start, exist_ok=exist_ok, **settings
            ),
            if_not_exists,
        )
    _print_changed(info, verb, json=json)


@app.command()
@with_flags(declared(flags.CHANGEABLE, is_new=False))
def alter(
    context: typer.Context,
    name: Name,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help=_TOPIC_HELP)
    ] = None,
    *,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Change settings of a subscription. Settings that are not given stay the same."""
    changes = flags.settings_from(context.params)
    if topic:
        changes["topics"] = topic
    if not changes:
        raise typer.BadParameter("nothing to change: give at least one setting", ctx=context)
    with connected(context, url) as client:
        described(client, name, is_queue=False)
        info = client.alter_subscription(name, **changes)
    _print_changed(info, "altered", json=json)


@app.command("list")
def list_(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """List subscriptions. For queues see `quiver queue list`."""
    with connected(context, url) as client:
        infos = [info for info in client.list_subscriptions() if not info.is_queue]
    print_listing(
        infos,
        json=json,
        none="there are no subscriptions yet; create one with: quiver subscription create NAME -t TOPIC",
        columns=(
            *("SUBSCRIPTION", "TOPICS", "ORDERING", "GUARANTEE"),
            *("VISIBILITY", "FILTER", "CREATED"),
        ),
        row=lambda info: (
            info.name,
            ", ".join(info.settings.topics),
            info.settings.ordering,
            info.settings.guarantee,
            shown_duration(info.settings.visibility_s),
            info.settings.filter or "none",
            shown_time(info.created_us)[:19] + "Z",
        ),
    )


@app.command()
def describe(context: typer.Context, name: Name, json: Json = False, url: UrlFlag = None) -> None:
    """Show a subscription's settings, its messages by state and its consumer group."""
    with connected(context, url) as client:
        info = described(client, name, is_queue=False)
    if json:
        print_json(info)
        return
    print_table(("SUBSCRIPTION", info.name), setting_rows(info))
    print_depth(info)


@app.command()
@with_flags(SeekFlags)
def seek(context: typer.Context, name: Name, *, url: UrlFlag = None) -> None:
    """Move a subscription to another position.

    Messages before the position are acknowledged. Messages after it are delivered, again if need be.
    """
    go_on(context, name, url, is_queue=False)


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    yes: Yes = False,
    url: UrlFlag = None,
) -> None:
    """Delete a subscription and its progress. The messages stay in their topics."""
    with connected(context, url) as client:
        info = described(client, name, is_queue=False)
        if not yes:
            left = plural(pending(info), "pending message")
            typer.confirm(
                f"Delete subscription {name}, which has {left}? This cannot be undone",
                abort=True,
                err=True,
            )
        client.delete_subscription(name)
    tell(f"deleted subscription {name}")


def _print_changed(info: SubscriptionInfo, verb: str, *, json: bool) -> None:
    if json:
        print_json(info)
        return
    tell(f"{verb} subscription {info.name} of {', '.join(info.settings.topics)}")
