"""What the disks of stopped nodes hold: every replica of every partition, read from its files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from quiver.cluster.records import NodeId, PartitionId
from quiver.log.disk.real_disk import RealDisk
from quiver.log.files import LOG
from quiver.log.scan import scan
from quiver.testing.simulator.history import Copy
from tests.chaos.machine import Machine
from tests.chaos.workload import value_in

_WINDOW_BYTES = 1 << 20

Values = tuple[tuple[int, int, str], ...]


def copies(machines: Iterable[Machine], topic: str) -> dict[PartitionId, list[Copy]]:
    """Each partition of a topic as each node holds it. Stop the nodes first."""
    found: dict[PartitionId, list[Copy]] = {}
    for machine in machines:
        assert not machine.is_running, "a running node has its files open"
        for folder in sorted(machine.data.glob(f"partitions/{topic}@*/*/data")):
            values = stored_in(folder)
            copy = Copy(node=NodeId(machine.name), watermark=len(values), values=values)
            found.setdefault(PartitionId(f"{topic}/{folder.parent.name}"), []).append(copy)
    return found


def stored_in(folder: Path) -> Values:
    """Offset, epoch and value of each message in a log's folder; damage is a ``CorruptLog``."""
    disk = RealDisk()
    return tuple(
        (offset, entry.epoch, value_in(payload))
        for path in sorted(folder.glob(f"*{LOG}"))
        for _, entry in scan(disk, str(path), 0, path.stat().st_size, _WINDOW_BYTES)
        for offset, payload in enumerate(
            entry.record_batch().column("payload").to_pylist(), entry.base_offset
        )
    )
