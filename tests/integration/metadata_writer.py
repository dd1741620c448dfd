"""A process that commits to a metadata store for as long as it lives, and says what was committed.

Each writer counts upwards in two keys that a commit changes together. The lines that it reports:

    ack WRITER NUMBER REVISION     the writer's two keys hold this number, as of this revision
    failed ERROR                   the disk is gone, as after a power cut, or what is on it is damaged
"""

from __future__ import annotations

import asyncio

import uvloop

from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import Expect, Put
from quiver.errors import QuiverError
from quiver.model.clock import SystemClock
from tests.killable import report

WRITERS = 4
SIDES = ("left", "right")
_FILLING = b" " * 2000
"""Makes the write-ahead log long enough that it is moved into the database now and then."""


def main(path: str, synced: bool = True) -> None:
    """Commit to the store at ``path`` until the process is killed or the disk fails."""
    try:
        uvloop.run(_commit(path, synced))
    except* QuiverError as failures:
        report("failed", type(failures.exceptions[0]).__name__)


def key_of(side: str, writer: int) -> str:
    return f"{side}/{writer}"


def number_in(value: bytes) -> int:
    return int(value.strip())


async def _commit(path: str, synced: bool) -> None:
    store = await SqliteStore.open(path, SystemClock())
    if not synced:
        connection = store._database._connection
        await store._call(lambda: connection.execute("PRAGMA synchronous = NORMAL"))
    async with asyncio.TaskGroup() as tasks:
        for writer in range(WRITERS):
            tasks.create_task(_count_forever(store, writer))


async def _count_forever(store: SqliteStore, writer: int) -> None:
    keys = [key_of(side, writer) for side in SIDES]
    entry = await store.get(keys[0])
    number, revision = (number_in(entry.value), entry.revision) if entry else (0, 0)
    while True:
        number += 1
        value = str(number).encode() + _FILLING
        revision = await store.commit(
            [Expect(key, revision) for key in keys], [Put(key, value) for key in keys]
        )
        report("ack", writer, number, revision)
