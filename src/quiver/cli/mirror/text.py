"""What ``quiver mirror`` prints of a mirror: its settings, its copies and how far they are."""

from __future__ import annotations

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import print_line, print_table
from quiver.cli.support.text import (
    harmless,
    plural,
    shown_bytes,
    shown_count,
    shown_size,
    shown_time,
)
from quiver.protocol import CopiedPartition, CopiedTopic, MirrorInfo, PromotedTopic

COLUMNS = ("MIRROR", "STATE", "TOPICS", ">COPIES", ">LAG", ">LAG BYTES", ">LAG TIME", "SOURCE")


def row(mirror: MirrorInfo) -> tuple[object, ...]:
    """A mirror in the list of all."""
    return (
        mirror.name,
        mirror.state,
        " ".join(mirror.settings.topics),
        sum(1 for one in mirror.topics if one.name),
        shown_count(mirror.lag_messages),
        shown_bytes(mirror.lag_bytes),
        shown_lag(mirror.lag_s),
        mirror.settings.source,
    )


def shown_lag(lag_s: float | None) -> str:
    """Seconds as ``0.2 s``; nothing known as a dash."""
    return "-" if lag_s is None else f"{lag_s:,.1f} s"


def print_mirror(mirror: MirrorInfo) -> None:
    print_table(("MIRROR", mirror.name), _setting_rows(mirror))
    print_line("")
    print_table(
        (
            *("TOPIC", ">PARTITION", ">NEXT OFFSET", ">SOURCE OFFSET", ">LAG", ">LAG BYTES"),
            *(">LAG TIME", ">STATE AGE", ">GAPS", "STATE"),
        ),
        [_partition_row(mirror, topic, one) for topic in mirror.topics for one in topic.partitions],
    )
    for problem in _problems(mirror):
        tell(problem)


def _setting_rows(mirror: MirrorInfo) -> list[tuple[str, str]]:
    settings = mirror.settings
    return [
        ("state", mirror.state),
        ("source", settings.source),
        ("source cluster", mirror.cluster or "-"),
        ("topics", " ".join(settings.topics)),
        ("copies are named", settings.rename),
        ("with subscriptions", "yes" if settings.with_subscriptions else "no"),
        ("with deletions", "yes" if settings.with_deletions else "no"),
        ("compression", settings.compression),
        ("rate", "no limit" if settings.rate is None else f"{shown_size(settings.rate_bytes)}/s"),
        ("token", "given" if mirror.has_token else "none"),
        ("copied", f"{shown_bytes(mirror.copied_bytes)} since the nodes started"),
        ("over the network", shown_bytes(mirror.fetched_bytes)),
        ("created", shown_time(mirror.created_us)),
    ]


def _state(mirror: MirrorInfo, one: CopiedPartition) -> str:
    if one.is_broken or one.error:
        return "broken" if one.is_broken else "waiting"
    return "paused" if mirror.state == "paused" else "copying"


def _partition_row(
    mirror: MirrorInfo, topic: CopiedTopic, one: CopiedPartition
) -> tuple[object, ...]:
    return (
        topic.name,
        one.index,
        shown_count(one.next_offset),
        shown_count(one.source_offset),
        shown_count(one.lag_messages),
        shown_bytes(one.lag_bytes),
        shown_lag(one.lag_s),
        shown_lag(one.state_lag_s),
        len(one.gaps),
        _state(mirror, one),
    )


def _problems(mirror: MirrorInfo) -> list[str]:
    found = [f"the source cannot be reached: {harmless(mirror.error)}"] if mirror.error else []
    for topic in mirror.topics:
        if topic.error:
            found.append(f"{topic.source} is not copied: {harmless(topic.error)}")
        for one in topic.partitions:
            place = f"{topic.name}/{one.index}"
            if one.error:
                found.append(f"{place}: {harmless(one.error)}")
            found += [
                f"{place}: offsets {begin:,} to {end - 1:,} are missing: retention at the source "
                "removed them first"
                for begin, end in one.gaps
            ]
    return found


def print_promoted(topics: list[PromotedTopic]) -> None:
    for one in topics:
        if one.is_complete:
            tell(f"promoted {one.name}: it has everything, and its source takes no more publishes")
        elif one.is_fenced:
            tell(f"promoted {one.name}: its source takes no more publishes")
        else:
            tell(f"promoted {one.name}: its source goes on")
        if one.error:
            tell(f"warning: {one.name} may lack messages of its source: {harmless(one.error)}")
    tell(f"{plural(len(topics), 'topic')} can be published to here")
