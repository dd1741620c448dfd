"""``quiver queue``: manage queues. A queue is a topic with a subscription of the same name."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from quiver.cli.commands.topic import messages_in
from quiver.cli.commands.topic import setting_rows as topic_rows
from quiver.cli.support import subscription_options, topic_options
from quiver.cli.support.create import IfNotExists, created
from quiver.cli.support.exit_codes import tell
from quiver.cli.support.flags import with_flags
from quiver.cli.support.output import Json, Yes, print_json, print_line, print_listing, print_table
from quiver.cli.support.seek import SeekFlags, go_on
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.setting_flags import declared
from quiver.cli.support.subscription_text import (
    dead_letter_of,
    described,
    print_depth,
    setting_rows,
)
from quiver.cli.support.text import shown_count, shown_duration, shown_time
from quiver.protocol import SubscriptionInfo

app = typer.Typer(
    no_args_is_help=True, help="Create, list, describe, alter, seek and delete queues."
)

Name = Annotated[str, typer.Argument(help="The queue.", show_default=False)]


@app.command()
@with_flags(
    declared(subscription_options.FLAGS, is_new=True), declared(topic_options.FLAGS, is_new=True)
)
def create(
    context: typer.Context,
    name: Name,
    *,
    if_not_exists: IfNotExists = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Create a queue."""
    of_topic = topic_options.new_settings(context.params)
    settings = subscription_options.new_settings(context.params, [name])
    with connected(context, url) as client:
        info, verb = created(
            lambda exist_ok: client.create_queue(name, exist_ok=exist_ok, **of_topic, **settings),
            if_not_exists,
        )
    _print_changed(info, verb, json=json)


@app.command()
@with_flags(
    declared(subscription_options.CHANGEABLE, is_new=False),
    declared(topic_options.CHANGEABLE, is_new=False),
)
def alter(
    context: typer.Context,
    name: Name,
    *,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Change settings of a queue. Settings that are not given stay the same."""
    of_topic = topic_options.settings_from(context.params)
    settings = subscription_options.settings_from(context.params)
    if not of_topic and not settings:
        raise typer.BadParameter("nothing to change: give at least one setting", ctx=context)
    with connected(context, url) as client:
        info = described(client, name, is_queue=True)
        # checked first, so that an error there does not leave only the topic altered
        subscription_options.check_changes(info.settings, settings)
        if of_topic:
            client.alter_topic(name, **of_topic)
        if settings:
            info = client.alter_subscription(name, **settings)
    _print_changed(info, "altered", json=json)


@app.command("list")
def list_(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """List queues."""
    with connected(context, url) as client:
        infos = [info for info in client.list_subscriptions() if info.is_queue]
    print_listing(
        infos,
        json=json,
        none="there are no queues yet; create one with: quiver queue create NAME",
        columns=(
            *("QUEUE", "ORDERING", "GUARANTEE", "VISIBILITY"),
            *(">DELIVERIES", "DEAD LETTERS", "CREATED"),
        ),
        row=lambda info: (
            info.name,
            info.settings.ordering,
            info.settings.guarantee,
            shown_duration(info.settings.visibility_s),
            info.settings.max_deliveries or "any",
            dead_letter_of(info) if info.settings.max_deliveries else "none",
            shown_time(info.created_us)[:19] + "Z",
        ),
    )


@app.command()
def describe(context: typer.Context, name: Name, json: Json = False, url: UrlFlag = None) -> None:
    """Show a queue's settings, its messages by state and its consumer group."""
    with connected(context, url) as client:
        info = described(client, name, is_queue=True)
        topic = client.describe_topic(name)
    if json:
        print_json(msgspec.to_builtins(info) | {"topic": topic})
        return
    print_table(("QUEUE", info.name), setting_rows(info))
    print_line("")
    print_table(("TOPIC", topic.name), topic_rows(topic))
    print_depth(info)


@app.command()
@with_flags(SeekFlags)
def seek(context: typer.Context, name: Name, *, url: UrlFlag = None) -> None:
    """Move a queue to another position.

    Messages before the position are acknowledged. Messages after it are delivered, again if need be.
    """
    go_on(context, name, url, is_queue=True)


@app.command()
def delete(context: typer.Context, name: Name, yes: Yes = False, url: UrlFlag = None) -> None:
    """Delete a queue and all its messages. Its dead-letter queue stays if it ever had a message."""
    with connected(context, url) as client:
        described(client, name, is_queue=True)
        if not yes:
            held = shown_count(messages_in(client.describe_topic(name)))
            typer.confirm(
                f"Delete queue {name} and its messages ({held})? This cannot be undone",
                abort=True,
                err=True,
            )
        client.delete_subscription(name)
    tell(f"deleted queue {name}")


def _print_changed(info: SubscriptionInfo, verb: str, *, json: bool) -> None:
    if json:
        print_json(info)
        return
    tell(f"{verb} queue {info.name}")
