"""What a node concludes from the state of its cluster."""

from __future__ import annotations

import pytest

from quiver.cluster.records import NodeId, NodeRecord, decode, encode
from quiver.cluster.state import ClusterState
from quiver.errors import InvalidRequest
from quiver.formats import METADATA_VALUES, stored_versions

NEW = NodeRecord(id=NodeId("new"), version="0.2.0", formats=stored_versions())
OLD = NodeRecord(id=NodeId("old"), version="0.1.0")


def state(*nodes: NodeRecord) -> ClusterState:
    return ClusterState(nodes={node.id: node for node in nodes})


def test_what_all_nodes_read_may_be_used() -> None:
    state(NEW).require_read_by_all(METADATA_VALUES, METADATA_VALUES.newest)


def test_what_an_older_node_does_not_read_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidRequest, match=r"old \(Quiver 0\.1\.0\); upgrade these first"):
        state(NEW, OLD).require_read_by_all(METADATA_VALUES, 1)
    with pytest.raises(InvalidRequest):
        state(NEW).require_read_by_all(METADATA_VALUES, METADATA_VALUES.newest + 1)


def test_forwarders_store_nothing_and_hold_up_nothing() -> None:
    forwarder = NodeRecord(id=NodeId("edge"), role="forwarder")
    state(NEW, forwarder).require_read_by_all(METADATA_VALUES, 1)


def test_a_node_registers_what_it_reads() -> None:
    assert decode(encode(NEW), NodeRecord) == NEW
