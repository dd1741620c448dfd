"""How queues and subscriptions are shown: settings, messages by state, consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiver.cli.support.output import print_line, print_table
from quiver.cli.support.text import shown_count, shown_duration, shown_time
from quiver.errors import SubscriptionNotFound
from quiver.model.subscription import Backoff, Push
from quiver.protocol import SubscriptionInfo

if TYPE_CHECKING:
    from quiver import Client

Rows = list[tuple[str, str]]


def described(client: Client, name: str, *, is_queue: bool) -> SubscriptionInfo:
    """The queue or subscription of this name; an error if it is of the other kind."""
    wanted, other = ("queue", "subscription") if is_queue else ("subscription", "queue")
    try:
        info = client.describe_subscription(name)
    except SubscriptionNotFound:
        raise SubscriptionNotFound(f"there is no {wanted} named {name!r}") from None
    if info.is_queue is not is_queue:
        raise SubscriptionNotFound(f"{name!r} is a {other}, not a {wanted}")
    return info


def pending(info: SubscriptionInfo) -> int:
    """How many messages are still to be acknowledged."""
    return (info.ready or 0) + (info.delayed or 0) + (info.leased or 0) + (info.unseen or 0)


def setting_rows(info: SubscriptionInfo) -> Rows:
    settings = info.settings
    return [
        ("number", str(info.number)),
        ("created", shown_time(info.created_us)),
        ("topics", ", ".join(settings.topics)),
        ("ordering", settings.ordering),
        ("guarantee", settings.guarantee),
        ("visibility", shown_duration(settings.visibility_s)),
        ("max_deliveries", str(settings.max_deliveries or "none")),
        ("dead_letter", dead_letter_of(info)),
        ("backoff", _shown_backoff(settings.backoff)),
        ("ageing", shown_duration(float(settings.ageing))),
        ("fairness", settings.fairness or "none"),
        ("session_timeout", shown_duration(float(settings.session_timeout))),
        ("filter", settings.filter or "none"),
        ("on_disconnect", settings.on_disconnect),
        ("max_processing", shown_duration(float(settings.max_processing))),
        ("push", "none" if settings.push is None else _shown_push(settings.push)),
    ]


def dead_letter_of(info: SubscriptionInfo) -> str:
    """The topic for dead letters."""
    return info.settings.dead_letter or f"{info.name}.dlq"


def print_depth(info: SubscriptionInfo) -> None:
    """Print the messages by state, the progress by partition, and which member reads which partitions."""
    print_line("")
    states = ("ready", "delayed", "leased", "unseen", "dead")
    print_table(
        ("STATE", ">MESSAGES"), [(state, shown_count(getattr(info, state))) for state in states]
    )
    print_line("")
    print_table(
        ("PARTITION", ">COMMITTED", ">END", ">LAG"),
        [
            (f"{one.topic}/{one.partition}", one.committed, one.end, shown_count(one.lag))
            for one in info.partitions or ()
        ],
    )
    if info.members is None:
        return
    print_line("")
    members = [(name, ", ".join(reads) or "none") for name, reads in sorted(info.members.items())]
    print_table(("MEMBER", "PARTITIONS"), members or [("none", "")])


def _shown_backoff(backoff: Backoff) -> str:
    least, most = float(backoff.min), float(backoff.max)
    if not most or not least:
        return "none"
    return f"{shown_duration(least)} to {shown_duration(most)}, factor {backoff.factor:g}"


def _shown_push(push: Push) -> str:
    signed = f"signed with {push.secret}" if push.secret else "not signed"
    return (
        f"{push.url}, {push.batch} at a time, {push.concurrency} pushes at once, "
        f"timeout {shown_duration(push.timeout_s)}, {signed}"
    )
