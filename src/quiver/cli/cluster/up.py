"""``quiver cluster up``: etcd and several nodes on this machine, until SIGTERM or SIGINT."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.support.output import print_json, print_line

if TYPE_CHECKING:
    from quiver.cli.cluster.local_cluster import LocalCluster

_NODES_MAX = 32
_BASE_PORT_MAX = 64_000


def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            max=_NODES_MAX,
            help="Number of nodes. Default: 3, or as many as the folder has.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Folder for the cluster's data.")
    ] = "./cluster",
    etcd_members: Annotated[
        int | None,
        typer.Option(
            "--etcd-members",
            min=1,
            max=5,
            help="Number of etcd members: 1 or 3.",
            show_default=False,
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            metavar="PORT",
            min=1024,
            max=_BASE_PORT_MAX,
            help="First node: HTTP on PORT, native on PORT+1. Next node: PORT+10. Default: free "
            "ports.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting for all nodes. May be repeated."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when all nodes are ready.")
    ] = False,
) -> None:
    """Run etcd and several nodes on this machine."""
    import asyncio  # noqa: PLC0415 - help does not need it

    from quiver.cli.cluster.layout import layout_in  # noqa: PLC0415
    from quiver.cli.cluster.local_cluster import LocalCluster  # noqa: PLC0415

    layout = layout_in(data, nodes=nodes, etcd_members=etcd_members, base_port=base_port)

    async def run() -> bool:
        cluster = LocalCluster(data, layout, settings or [])
        return await cluster.run(lambda: _print_ready(cluster, json=json))

    if not asyncio.run(run()):
        raise typer.Exit(1)


def _print_ready(cluster: LocalCluster, *, json: bool) -> None:
    from quiver.cli.cluster.layout import client_url  # noqa: PLC0415

    nodes, pids = cluster.layout.nodes, cluster.pids
    if json:
        listed = [
            {"id": one.id, "pid": pids[one.id], "http": one.http, "native": one.native}
            for one in nodes
        ]
        etcd = {"endpoints": cluster.layout.endpoints, "pids": list(cluster.etcd_pids.values())}
        print_json({"nodes": listed, "etcd": etcd}, indent=False)
    else:
        print_line(f"{len(nodes)} nodes are ready (stop them with Ctrl-C):")
        for one in nodes:
            print_line(f"  {one.id}  quiver://{one.native}  http://{one.http}  pid {pids[one.id]}")
        print_line(f"etcd is at {cluster.layout.endpoints}")
        print_line("Try in another terminal:")
        print_line(f"  export QUIVER_URL={client_url(nodes)}")
        print_line("  quiver topic create orders --partitions 3")
        print_line("  quiver cluster partitions")
    sys.stdout.flush()
