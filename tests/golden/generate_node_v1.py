"""Writes the folder ``node-v1``: ``python -m tests.golden.generate_node_v1``.

It was run once, by the version that is in ``described.json``. The folder is never written again: it
is what a node of that version leaves, and every later version has to start on it. ``stopped`` is the
data folder of a node that closed in order, ``killed`` the same folder a moment before, as a killed
node leaves it.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from quiver import AsyncClient, Retention
from quiver.config import Alerts, Limits, NodeConfig, Security, Web
from quiver.embedded import EmbeddedDialer
from quiver.testing.clock import ManualClock
from quiver.version import __version__
from tests.golden.content_node_v1 import Notes, fill
from tests.golden.described import described

FOLDER = Path(__file__).parent / "node-v1"
HOLD_S = 600.0
"""How long leases and delays last; the test's clock goes on where this one stood still."""


class Golden(msgspec.Struct):
    """What is stored beside the data."""

    version: str
    time_us: int
    """When the node was closed, on its clock."""
    notes: Notes
    described: dict[str, Any]


@asynccontextmanager
async def node(
    data: Path, clock: ManualClock, retention_interval_s: float = 60
) -> AsyncIterator[AsyncClient]:
    """A node in this process whose time stands still. It says nothing that depends on the machine."""
    config = NodeConfig(
        data=str(data),
        limits=Limits(retention_interval_s=retention_interval_s, free_bytes_min=0),
        web=Web(webhook_targets="127.0.0.0/8"),
        security=Security(authentication=True),
        alerts=Alerts(defaults=False),
    )
    async with AsyncClient(dialer=EmbeddedDialer(config, clock)) as client:
        yield client


async def write(data: Path, killed: Path) -> Golden:
    clock = ManualClock()
    async with node(data, clock, retention_interval_s=1) as client:
        notes = await fill(client, HOLD_S)
        await client.create_subscription(
            "hooked", ["plain"], push={"url": "http://127.0.0.1:9/hook", "batch": 5}
        )
        await _short(client, clock)
        told = await described(client)
        await asyncio.sleep(1)  # longer than anything waits that is written at leisure
        shutil.copytree(data, killed)
    return Golden(__version__, clock.time_us(), notes, told)


async def _short(client: AsyncClient, clock: ManualClock) -> None:
    """A topic of several segments whose oldest messages are gone."""
    limits = Retention(age=None, messages=3)
    await client.create_topic("short", retention=limits, segment_age_s=1)
    for number in range(8):
        await client.publish("short", b"short-%d" % number)
        await clock.advance(2)
    while (await client.describe_topic("short")).partitions[0].start_offset != 5:
        await clock.advance(1)


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(folder.rglob("*")):
            packed.add(path, path.relative_to(folder).as_posix(), recursive=False)


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is there: it is never written again")
    with TemporaryDirectory() as temporary:
        data, killed = Path(temporary) / "data", Path(temporary) / "killed"
        golden = asyncio.run(write(data, killed))
        FOLDER.mkdir()
        pack(data, FOLDER / "stopped.tar.gz")
        pack(killed, FOLDER / "killed.tar.gz")
    text = msgspec.json.format(msgspec.json.encode(golden), indent=1)
    (FOLDER / "described.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
