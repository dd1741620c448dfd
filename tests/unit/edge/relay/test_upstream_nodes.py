"""Which nodes a forwarder connects clients with."""

from __future__ import annotations

from quiver.edge.relay.upstream_nodes import NODES_MAX, UpstreamNodes


def test_those_in_the_settings_are_nodes_from_the_start() -> None:
    nodes = UpstreamNodes(["a:1", "b:1"])
    assert "a:1" in nodes
    assert "c:1" not in nodes
    assert nodes.addresses == ["a:1", "b:1"]


def test_a_node_names_the_live_ones_and_those_in_the_settings_stay_nodes() -> None:
    nodes = UpstreamNodes(["a:1"])
    nodes.learn(["10.0.0.1:1", "10.0.0.2:1"])
    assert "10.0.0.2:1" in nodes
    assert "a:1" in nodes
    nodes.learn(["10.0.0.3:1"])
    assert "10.0.0.2:1" not in nodes  # it lives no more


def test_a_node_on_its_own_names_none_and_changes_nothing() -> None:
    nodes = UpstreamNodes(["a:1"])
    nodes.learn([])
    assert nodes.addresses == ["a:1"]


def test_each_time_another_one_is_the_first_and_all_are_tried() -> None:
    nodes = UpstreamNodes(["seed:1"])
    nodes.learn(["a:1", "b:1", "c:1"])
    turns = [nodes.in_turn() for _ in range(3)]
    assert {turn[0] for turn in turns} == {"a:1", "b:1", "c:1"}
    assert all(set(turn) == {"a:1", "b:1", "c:1", "seed:1"} for turn in turns)
    assert all(turn[-1] == "seed:1" for turn in turns)


def test_what_it_remembers_is_bounded() -> None:
    nodes = UpstreamNodes(["seed:1"])
    nodes.learn([f"n{number}:1" for number in range(NODES_MAX + 5)])
    assert len(nodes.addresses) == NODES_MAX
