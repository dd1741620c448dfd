"""Writes the folder ``cluster-v1``: ``python -m tests.golden.generate_cluster_v1``.

It was run once, by the version that is in ``described.json``. The folder is never written again: it
is what three nodes of that version leave behind, and every later version has to start on it. Of the
nodes one was killed, and the others were stopped, one after the other. ``metadata.json`` is what they
had in etcd: keys and values, without those of a node that lives.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from quiver import AsyncClient
from quiver.version import __version__
from tests.golden.content_node_v1 import Notes, fill
from tests.golden.described import described
from tests.golden.generate_node_v1 import pack
from tests.integration.three_nodes import NAMES, ThreeNodes

FOLDER = Path(__file__).parent / "cluster-v1"
HOLD_S = 10.0
"""How long leases and delays last: they are over before the data is described."""
PINNED = ("plain", 0)
"""The partition that an operator has moved."""


class Golden(msgspec.Struct):
    """What is stored beside the data."""

    version: str
    notes: Notes
    admin: str
    """The token that the cluster made itself."""
    replicas: dict[str, list[str]]
    """Who holds each partition."""
    epochs: dict[str, int]
    described: dict[str, Any]


def etcd_call(endpoint: str, path: str, request: dict[str, str]) -> dict[str, Any]:
    """One call of etcd's JSON gateway, without any code of ours."""
    asked = urllib.request.Request(f"{endpoint}{path}", json.dumps(request).encode())
    with urllib.request.urlopen(asked, timeout=60) as reply:
        told: dict[str, Any] = json.load(reply)
    return told


def stored(endpoint: str) -> dict[str, str]:
    """Every key that no lease holds, and its value in base64."""
    everything = {"key": _base64(b"\0"), "range_end": _base64(b"\0")}
    found = etcd_call(endpoint, "/v3/kv/range", everything)["kvs"]
    return {
        base64.b64decode(one["key"]).decode(): one.get("value", "")
        for one in found
        if "lease" not in one
    }


def load(endpoint: str, metadata: dict[str, str]) -> None:
    """Put what ``stored`` gave into an empty etcd."""
    for key, value in metadata.items():
        etcd_call(endpoint, "/v3/kv/put", {"key": _base64(key.encode()), "value": value})


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def first_token(folder: Path) -> str:
    (path,) = folder.glob("*/data/admin.token")
    return path.read_text().strip()


async def write(nodes: ThreeNodes, token: str) -> Golden:
    async with AsyncClient(nodes.url, token=token) as client:
        notes = await fill(client, HOLD_S)
        await client.move_partition(*PINNED, ["node-2", "node-3"])
        await client.transfer_lead("orders", 0)
        await client.transfer_lead("work", 0)
        await lapsed(client)
        await asyncio.to_thread(nodes.wait_whole)
        placed = (await client.describe_cluster()).partitions
        return Golden(
            version=__version__,
            notes=notes,
            admin=token,
            replicas={f"{one.topic}/{one.index}": sorted(one.replicas) for one in placed},
            epochs={f"{one.topic}/{one.index}": one.epoch for one in placed},
            described=await described(client),
        )


async def lapsed(client: AsyncClient) -> None:
    """Nobody holds anything any more; one message is scheduled."""
    while True:
        work = await client.describe_subscription("work")
        by_key = await client.describe_subscription("by-key")
        if (work.leased, work.delayed, by_key.leased) == (0, 1, 0):
            return
        await asyncio.sleep(0.1)


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is there: it is never written again")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        nodes = ThreeNodes(folder, "--authentication")
        try:
            nodes.etcd.start()
            nodes.start(*NAMES)
            nodes.token = first_token(folder)
            golden = asyncio.run(write(nodes, nodes.token))
            nodes.kill("node-1")
            nodes.stop("node-2")
            nodes.stop("node-3")
            metadata = stored(nodes.etcd.endpoint)
        finally:
            nodes.close()
        FOLDER.mkdir()
        for name in NAMES:
            pack(folder / name / "data", FOLDER / f"{name}.tar.gz")
    (FOLDER / "metadata.json").write_text(json.dumps(metadata, indent=1, sort_keys=True) + "\n")
    text = msgspec.json.format(msgspec.json.encode(golden), indent=1)
    (FOLDER / "described.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
