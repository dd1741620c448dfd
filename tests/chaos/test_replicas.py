"""Replicas are read from the disks of stopped nodes as clients have read them."""

from __future__ import annotations

from pathlib import Path

import quiver
from tests.chaos.replicas import stored_in
from tests.serving import served


def test_what_is_stored_is_read_from_the_files(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        with quiver.Client(node.url) as client:
            client.create_topic("orders")
            client.publish_many("orders", ["0.0", "0.1"])
            client.publish("orders", "0.2")
        node.stop()
    (folder,) = {path.parent for path in node.data.rglob("*.log") if "orders" in str(path)}
    values = stored_in(folder)
    assert [(offset, value) for offset, _, value in values] == [(0, "0.0"), (1, "0.1"), (2, "0.2")]
