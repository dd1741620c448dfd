"""``quiver cluster``: run a local cluster, inspect a cluster, move its partitions and leaders."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.cluster.text import (
    Summary,
    shown_nodes,
    shown_partitions,
    summary_of,
)
from quiver.cli.cluster.up import up
from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import Json, Yes, print_json, print_line, print_table, progress
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import harmless, plural, shown_versions
from quiver.errors import InvalidSetting, QuiverError
from quiver.model.units import seconds
from quiver.protocol import ClusterInfo

if TYPE_CHECKING:
    from quiver import Client

_LOOK_S = 0.5

app = typer.Typer(no_args_is_help=True, help="Run, inspect and change a cluster.")
app.command()(up)

Partition = Annotated[
    str, typer.Argument(metavar="TOPIC/INDEX", help="The partition.", show_default=False)
]
Topic = Annotated[
    str | None, typer.Argument(help="List only partitions of this topic.", show_default=False)
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="TIME",
        help="Wait until it is done, at most this long, as in 5m.",
    ),
]


@app.command()
def status(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """Show the health of the cluster."""
    with connected(context, url) as client:
        summary = summary_of(client.describe_cluster())
    if json:
        print_json(summary)
        return
    for line in _lines(summary):
        print_line(line)


@app.command()
def nodes(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """List nodes."""
    with connected(context, url) as client:
        cluster = client.describe_cluster()
    if json:
        print_json(cluster.nodes)
        return
    print_table(*shown_nodes(cluster))


@app.command()
def partitions(
    context: typer.Context, topic: Topic = None, json: Json = False, url: UrlFlag = None
) -> None:
    """List partitions with their leader, replicas and in-sync replicas."""
    with connected(context, url) as client:
        found = client.describe_cluster().partitions
    found = [one for one in found if topic in (None, one.topic)]
    if json:
        print_json(found)
    elif found:
        print_table(*shown_partitions(found))
    else:
        tell("there are no partitions" + (f" of {topic}" if topic else " yet"))


@app.command()
def leaders(
    context: typer.Context,
    transfer: Annotated[
        str | None,
        typer.Option(
            "--transfer",
            metavar="TOPIC/INDEX",
            help="Move the leader of this partition to another node.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="NODE",
            help="With --transfer: the new leader. Default: the best other replica.",
        ),
    ] = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """List the partitions that each node leads, or move a leader."""
    if to is not None and transfer is None:
        raise typer.BadParameter("--to needs --transfer", ctx=context)
    place = None if transfer is None else _place(transfer)
    with connected(context, url) as client:
        if place is not None:
            client.transfer_lead(*place, to)
        cluster = client.describe_cluster()
    holders = [one for one in cluster.nodes if one.role == "full"]
    if transfer is not None and not json:
        tell(f"the leader of {transfer} is being moved")
        return
    led: dict[str, list[str]] = defaultdict(list)
    for one in cluster.partitions:
        led[one.leader or ""].append(f"{one.topic}/{one.index}")
    if json:
        print_json({node.id: led[node.id] for node in holders} | _without_leader(led))
        return
    print_table(
        ("NODE", ">LEADS", "PARTITIONS"),
        [(one.id, len(led[one.id]), " ".join(led[one.id])) for one in holders]
        + [("(none)", len(led[""]), " ".join(led[""])) for _ in led[""][:1]],
    )


def _without_leader(led: dict[str, list[str]]) -> dict[str, list[str]]:
    return {"": led[""]} if led[""] else {}


@app.command()
def move(
    context: typer.Context,
    partition: Partition,
    nodes: Annotated[
        list[str],
        typer.Argument(metavar="NODE...", help="Nodes that get the replicas, the leader first."),
    ],
    wait: Wait = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Move a partition's replicas to these nodes. It stays available meanwhile."""
    topic, index = _place(partition)
    wait_s = None if wait is None else seconds(wait)

    def moving(cluster: ClusterInfo) -> int:
        return sum(
            one.topic == topic and one.index == index and set(one.replicas) != set(nodes)
            for one in cluster.partitions
        )

    with connected(context, url) as client:
        client.move_partition(topic, index, nodes)
        if wait_s is not None:
            _wait(client, moving, wait_s, f"{partition} is still being moved")
        cluster = client.describe_cluster()
    if json:
        here = [one for one in cluster.partitions if (one.topic, one.index) == (topic, index)]
        print_json(here[0] if here else None)
        return
    what = "has moved to" if wait_s is not None else "is being moved to"
    tell(f"{partition} {what} {', '.join(map(harmless, nodes))}")


@app.command()
def split(
    context: typer.Context,
    partition: Partition,
    index: Annotated[
        int | None,
        typer.Argument(
            metavar="[INDEX]",
            help="The partition's number, if the first argument is only the topic.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Split a partition: a new one gets half of its keys. It stays available meanwhile."""
    topic, parent = _place(partition if index is None else f"{partition}/{index}")
    with connected(context, url) as client:
        child = client.split_partition(topic, parent)
    if json:
        print_json(child)
        return
    tell(f"split {harmless(topic)}/{parent}: half of its keys now go to partition {child.index}")


@app.command()
def decommission(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node.", show_default=False)],
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the decommission.")] = False,
    wait: Wait = None,
    yes: Yes = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Move all replicas off a node, so that it can be removed."""
    wait_s = None if wait is None else seconds(wait)

    def held(cluster: ClusterInfo) -> int:
        return sum(one.holds for one in cluster.nodes if one.id == node)

    with connected(context, url) as client:
        if not cancel and not yes:
            count = plural(held(client.describe_cluster()), "replica")
            typer.confirm(f"Move {count} away from {node}?", abort=True, err=True)
        client.decommission(node, cancel=cancel)
        if wait_s is not None and not cancel:
            _wait(client, held, wait_s, f"{node} still has replicas")
        cluster = client.describe_cluster()
    if json:
        here = [one for one in cluster.nodes if one.id == node]
        print_json(here[0] if here else None)
    elif cancel:
        tell(f"the decommission of {node} is cancelled")
    elif held(cluster):
        tell(f"{node} is being decommissioned; see its progress with: quiver cluster nodes")
    else:
        tell(f"{node} has no replicas left: it can be stopped")


@app.command("rotate-secret")
def rotate_secret(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """Replace the secret that the nodes know each other by.

    The nodes use the new one at once. The old one is accepted for ten more minutes.
    """
    with connected(context, url) as client:
        client.rotate_peer_secret()
    if json:
        print_json({"rotated": True})
    else:
        tell("the nodes use a new secret; the old one is accepted for ten more minutes")


def _wait(
    client: Client, left: Callable[[ClusterInfo], int], wait_s: float, otherwise: str
) -> None:
    """Poll until nothing is left to do, at most ``wait_s``."""
    deadline = time.monotonic() + wait_s
    before = left(client.describe_cluster())
    with progress("moving", before) as advance:
        while (now := left(client.describe_cluster())) > 0:
            advance(before - now)
            before = now
            if time.monotonic() > deadline:
                raise QuiverError(f"{otherwise} after {wait_s:g} s; the cluster continues with it")
            time.sleep(_LOOK_S)


def _place(text: str) -> tuple[str, int]:
    topic, _, index = text.rpartition("/")
    if not topic or not (index.isascii() and index.isdigit()) or len(index) > 5:
        raise InvalidSetting(f"{text!r} is not a partition; write it as orders/0")
    return topic, int(index)


def _lines(summary: Summary) -> list[str]:
    parts = summary.partitions
    return [
        f"health      {summary.health}",
        f"nodes       {summary.nodes.alive} alive"
        + "".join(f", {one} is down" for one in summary.nodes.down)
        + "".join(f", the disk of {one} is full" for one in summary.nodes.full)
        + "".join(f", {one} is being decommissioned" for one in summary.nodes.draining)
        + (
            f"; {plural(summary.nodes.forwarders, 'forwarder')}" if summary.nodes.forwarders else ""
        ),
        f"controller  {summary.controller or '-'}",
        f"partitions  {parts.total:,}: {parts.led:,} with a leader, {parts.under_replicated:,} "
        f"under-replicated, {parts.below_min_in_sync:,} below min_in_sync, {parts.moving:,} moving",
        *([f"versions    {shown_versions(summary.versions)}"] if len(summary.versions) > 1 else []),
    ]
