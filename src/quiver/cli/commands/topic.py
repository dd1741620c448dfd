"""``quiver topic``: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.support import topic_options as flags
from quiver.cli.support.create import IfNotExists, created
from quiver.cli.support.exit_codes import tell
from quiver.cli.support.flags import with_flags
from quiver.cli.support.output import Json, Yes, print_json, print_line, print_listing, print_table
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.setting_flags import declared
from quiver.cli.support.text import (
    plural,
    shown_bytes,
    shown_count,
    shown_duration,
    shown_size,
    shown_time,
)
from quiver.model.topic import Retention, RetentionScope, TopicSettings, is_internal
from quiver.protocol import TopicInfo

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(help="The topic.", show_default=False)]


@app.command()
@with_flags(declared(flags.FLAGS, is_new=True))
def create(
    context: typer.Context,
    name: Name,
    *,
    if_not_exists: IfNotExists = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Create a topic."""
    settings = flags.new_settings(context.params)
    with connected(context, url) as client:
        topic, verb = created(
            lambda exist_ok: client.create_topic(name, exist_ok=exist_ok, **settings), if_not_exists
        )
    _print_changed(topic, verb, json=json)


@app.command()
@with_flags(declared(flags.CHANGEABLE, is_new=False))
def alter(
    context: typer.Context,
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(help="Cannot be changed: use quiver cluster split.")
    ] = None,
    *,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Change settings of a topic. Settings that are not given stay the same."""
    changes = flags.settings_from(context.params)
    if not changes:
        raise typer.BadParameter("nothing to change: give at least one setting", ctx=context)
    with connected(context, url) as client:
        topic = client.alter_topic(name, **changes)
    _print_changed(topic, "altered", json=json)


@app.command("list")
def list_(
    context: typer.Context,
    all_: Annotated[bool, typer.Option("--all", help="List Quiver's internal topics too.")] = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """List topics."""
    with connected(context, url) as client:
        listed = sorted(client.list_topics(), key=lambda topic: topic.name)
    topics = [topic for topic in listed if all_ or not is_internal(topic.name)]
    print_listing(
        topics,
        json=json,
        none="there are no topics yet; create one with: quiver topic create NAME",
        columns=("TOPIC", ">PARTITIONS", "DURABILITY", "ACKS", "RETENTION", "CREATED"),
        row=lambda topic: (
            topic.name,
            len(topic.partitions),
            topic.settings.durability,
            topic.settings.acks,
            _shown_retention(topic.settings.retention),
            shown_time(topic.created_us)[:19] + "Z",
        ),
    )


@app.command()
def describe(context: typer.Context, name: Name, json: Json = False, url: UrlFlag = None) -> None:
    """Show a topic's settings and partitions."""
    with connected(context, url) as client:
        topic = client.describe_topic(name)
    if json:
        print_json(topic)
        return
    print_table(("TOPIC", topic.name), setting_rows(topic))
    print_line("")
    print_table(
        (">PARTITION", "LEADER", ">FIRST OFFSET", ">NEXT OFFSET", ">MESSAGES", ">BYTES"),
        [
            (
                partition.index,
                partition.leader or "this node",
                shown_count(partition.start_offset),
                shown_count(partition.next_offset),
                shown_count(_span(partition.start_offset, partition.next_offset)),
                shown_bytes(partition.bytes),
            )
            for partition in topic.partitions
        ],
    )


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    yes: Yes = False,
    url: UrlFlag = None,
) -> None:
    """Delete a topic and all its messages."""
    with connected(context, url) as client:
        if not yes:
            held = shown_count(messages_in(client.describe_topic(name)))
            typer.confirm(
                f"Delete topic {name} and its messages ({held})? This cannot be undone",
                abort=True,
                err=True,
            )
        client.delete_topic(name)
    tell(f"deleted topic {name}")


def _print_changed(topic: TopicInfo, verb: str, *, json: bool) -> None:
    if json:
        print_json(topic)
        return
    tell(f"{verb} topic {topic.name} with {plural(len(topic.partitions), 'partition')}")


def setting_rows(topic: TopicInfo) -> list[tuple[str, str]]:
    settings = topic.settings
    return [
        ("number", str(topic.number)),
        ("created", shown_time(topic.created_us)),
        ("partitions", str(len(topic.partitions))),
        ("durability", _shown_durability(settings)),
        ("acks", settings.acks),
        ("retention", _shown_retention(settings.retention)),
        ("compression", settings.compression),
        ("message_bytes_max", shown_size(settings.message_bytes_max)),
        ("segment_bytes", shown_size(settings.segment_bytes)),
        ("segment_age", shown_duration(settings.segment_age_s)),
        ("dedup_window", _shown_dedup_window(topic)),
    ]


def _shown_dedup_window(topic: TopicInfo) -> str:
    forgotten = sum(one.dedup_forgotten for one in topic.partitions)
    window = shown_duration(float(topic.settings.dedup_window))
    return f"{window}; {forgotten:,} ids forgotten early" if forgotten else window


def _shown_durability(settings: TopicSettings) -> str:
    if settings.durability != "interval":
        return settings.durability
    return f"interval of {settings.sync_interval_ms} ms"


def _shown_retention(retention: Retention) -> str:
    limits = []
    of = " of the topic" if retention.scope is RetentionScope.TOPIC else ""
    if retention.age_s is not None:
        limits.append(shown_duration(retention.age_s))
    if retention.size is not None:
        limits.append(f"{shown_size(retention.size)}{of}")
    if retention.messages is not None:
        limits.append(f"{retention.messages:,} messages{of}")
    if retention.acked:
        limits.append("acked")
    if retention.unread is not None:
        limits.append(f"unread {retention.unread}")
    if retention.limits_unread:
        held = [] if retention.unread_size is None else [shown_size(retention.unread_size)]
        held += [] if retention.unread_age_s is None else [shown_duration(retention.unread_age_s)]
        limits.append(f"unread up to {' or '.join(held)}, then {retention.unread_overflow}")
    return ", ".join(limits) or "forever"


def messages_in(topic: TopicInfo) -> int | None:
    spans = [_span(each.start_offset, each.next_offset) for each in topic.partitions]
    return None if None in spans else sum(span for span in spans if span is not None)


def _span(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start
