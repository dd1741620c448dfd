"""``quiver cluster``: run one on this machine, look at one, and change who holds and leads what."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.cluster.text import Summary, shown_nodes, shown_partitions, summary_of
from quiver.cli.cluster.up import up
from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import Json, Yes, print_json, print_line, print_table, progress
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import harmless, plural
from quiver.errors import InvalidSetting, QuiverError
from quiver.model.units import seconds
from quiver.protocol import ClusterInfo

if TYPE_CHECKING:
    from quiver import Client

_LOOK_S = 0.5

app = typer.Typer(no_args_is_help=True, help="Run, look at and change a cluster.")
app.command()(up)

Partition = Annotated[
    str, typer.Argument(metavar="TOPIC/INDEX", help="The partition.", show_default=False)
]
Topic = Annotated[
    str | None, typer.Argument(help="Only this topic's partitions.", show_default=False)
]
Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait until it is done, for so long at most."),
]


@app.command()
def status(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """Tell whether all is well."""
    with connected(context, url) as client:
        summary = summary_of(client.describe_cluster())
    if json:
        print_json(summary)
        return
    for line in _lines(summary):
        print_line(line)


@app.command()
def nodes(context: typer.Context, json: Json = False, url: UrlFlag = None) -> None:
    """List the nodes."""
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
    """List the partitions: who leads, who holds them, who is in sync."""
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
        typer.Option("--transfer", metavar="TOPIC/INDEX", help="Have another node lead this one."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NODE", help="Which; the best of the others without it."),
    ] = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """List which node leads which partitions, or have another lead one."""
    if to is not None and transfer is None:
        raise typer.BadParameter("--to is for --transfer", ctx=context)
    place = None if transfer is None else _place(transfer)
    with connected(context, url) as client:
        if place is not None:
            client.transfer_lead(*place, to)
        cluster = client.describe_cluster()
    if transfer is not None and not json:
        tell(f"{transfer} is handed over")
        return
    led: dict[str, list[str]] = defaultdict(list)
    for one in cluster.partitions:
        led[one.leader or ""].append(f"{one.topic}/{one.index}")
    if json:
        print_json({node.id: led[node.id] for node in cluster.nodes} | _without_leader(led))
        return
    print_table(
        ("NODE", ">LEADS", "PARTITIONS"),
        [(one.id, len(led[one.id]), " ".join(led[one.id])) for one in cluster.nodes]
        + [("(nobody)", len(led[""]), " ".join(led[""])) for _ in led[""][:1]],
    )


def _without_leader(led: dict[str, list[str]]) -> dict[str, list[str]]:
    return {"": led[""]} if led[""] else {}


@app.command()
def move(
    context: typer.Context,
    partition: Partition,
    nodes: Annotated[
        list[str],
        typer.Argument(metavar="NODE...", help="Who shall hold it, the leader first."),
    ],
    wait: Wait = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Have these nodes hold a partition; it is copied while it is used."""
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
            _wait(client, moving, wait_s, f"{partition} has not moved")
        cluster = client.describe_cluster()
    if json:
        here = [one for one in cluster.partitions if (one.topic, one.index) == (topic, index)]
        print_json(here[0] if here else None)
        return
    what = "is held by" if wait_s is not None else "is on its way to"
    tell(f"{partition} {what} {', '.join(map(harmless, nodes))}")


@app.command()
def split(
    context: typer.Context,
    partition: Partition,
    index: Annotated[
        int | None,
        typer.Argument(
            metavar="[INDEX]",
            help="The same without a slash: the topic, then the partition.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Have a partition give half of its keys to a new one, while it is used."""
    topic, parent = _place(partition if index is None else f"{partition}/{index}")
    with connected(context, url) as client:
        child = client.split_partition(topic, parent)
    if json:
        print_json(child)
        return
    tell(
        f"half of the keys of {harmless(topic)}/{parent} go to partition {child.index} from now on"
    )


@app.command()
def decommission(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node.", show_default=False)],
    cancel: Annotated[bool, typer.Option("--cancel", help="Let it stay after all.")] = False,
    wait: Wait = None,
    yes: Yes = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Empty a node, so that it can be stopped for good."""
    wait_s = None if wait is None else seconds(wait)

    def held(cluster: ClusterInfo) -> int:
        return sum(one.holds for one in cluster.nodes if one.id == node)

    with connected(context, url) as client:
        if not cancel and not yes:
            count = plural(held(client.describe_cluster()), "replica")
            typer.confirm(f"Move {count} away from {node}?", abort=True, err=True)
        client.decommission(node, cancel=cancel)
        if wait_s is not None and not cancel:
            _wait(client, held, wait_s, f"{node} is not empty")
        cluster = client.describe_cluster()
    if json:
        here = [one for one in cluster.nodes if one.id == node]
        print_json(here[0] if here else None)
    elif cancel:
        tell(f"{node} stays")
    elif held(cluster):
        tell(f"{node} is being emptied; see how far it is with: quiver cluster nodes")
    else:
        tell(f"{node} is empty: stop it whenever you like")


def _wait(
    client: Client, left: Callable[[ClusterInfo], int], wait_s: float, otherwise: str
) -> None:
    """Look again until nothing is left to do, for so long at most."""
    deadline = time.monotonic() + wait_s
    before = left(client.describe_cluster())
    with progress("moving", before) as advance:
        while (now := left(client.describe_cluster())) > 0:
            advance(before - now)
            before = now
            if time.monotonic() > deadline:
                raise QuiverError(f"{otherwise} after {wait_s:g} s; it goes on by itself")
            time.sleep(_LOOK_S)


def _place(text: str) -> tuple[str, int]:
    topic, _, index = text.rpartition("/")
    if not topic or not (index.isascii() and index.isdigit()) or len(index) > 5:
        raise InvalidSetting(f"not a partition: {text!r}; write it as orders/0")
    return topic, int(index)


def _lines(summary: Summary) -> list[str]:
    parts = summary.partitions
    return [
        f"health      {summary.health}",
        f"nodes       {summary.nodes.alive} alive"
        + "".join(f", {one} is down" for one in summary.nodes.down)
        + "".join(f", {one} is being emptied" for one in summary.nodes.draining),
        f"controller  {summary.controller or '-'}",
        f"partitions  {parts.total:,}: {parts.led:,} with a leader, {parts.under_replicated:,} with "
        f"replicas out of sync, {parts.below_min_in_sync:,} that take no durable publishes, "
        f"{parts.moving:,} being moved",
    ]
