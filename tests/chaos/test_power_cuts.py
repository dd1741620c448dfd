"""Power cuts of a whole cluster: every node at once loses whatever it had not synced.

The second test runs nodes that never sync and must see a loss: it shows that the first one could.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.accounting import findings
from tests.chaos.cluster import running
from tests.chaos.faults import stage

ROUNDS = int(os.environ.get("QUIVER_CHAOS_ROUNDS", "0"))
CUTS = max(2, 10 * ROUNDS)
"""Of three disks each."""
_DISK_BYTES = 64 << 20

pytestmark = [pytest.mark.long, pytest.mark.timeout(300 + 30 * CUTS)]


def test_nothing_confirmed_is_lost_when_every_node_loses_its_power(tmp_path: Path) -> None:
    with (
        running(tmp_path, etcd_members=1, disk_bytes=_DISK_BYTES) as cluster,
        stage(cluster, 0) as on_stage,
    ):
        for _ in range(CUTS):
            on_stage.workload.goes_on()
            cluster.cut_power()
            on_stage.heal()
        assert findings(on_stage.finish()) == []


def test_nodes_that_do_not_sync_lose_what_they_confirmed(tmp_path: Path) -> None:
    with (
        running(tmp_path, etcd_members=1, disk_bytes=_DISK_BYTES, synced=False) as cluster,
        stage(cluster, 0) as on_stage,
    ):
        for node in cluster.nodes.values():
            node.write_back()  # so that only messages are lost, and not the folders they were in
        on_stage.workload.goes_on(50)
        cluster.cut_power()
        on_stage.heal()
        found = findings(on_stage.finish())
    assert any("lost" in one for one in found), f"a cut lost nothing, it is not real: {found}"
