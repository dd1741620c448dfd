"""Which forwarders live: while they are connected and say so."""

from __future__ import annotations

import pytest

from quiver.edge.live_forwarders import FORWARDERS_MAX, SILENT_S, LiveForwarders
from quiver.errors import Overloaded
from quiver.protocol import Announce, NodeInfo


def announce(name: str, instance: str = "", **rest: object) -> Announce:
    return Announce(name=name, instance=instance or name, **rest)  # type: ignore[arg-type]


def names(live: LiveForwarders, now: float, *nodes: str) -> list[str]:
    return [one.id for one in live.described([NodeInfo(id=node) for node in nodes], now)]


def test_a_forwarder_is_listed_after_the_nodes_with_its_role() -> None:
    live = LiveForwarders()
    live.announce(announce("edge", address="10.0.0.9:7401", http="10.0.0.9:7400"), object(), 0)
    node, forwarder = live.described([NodeInfo(id="node-1")], 1)
    assert (node.role, forwarder.role) == ("full", "forwarder")
    assert (forwarder.id, forwarder.address, forwarder.http) == (
        "edge",
        "10.0.0.9:7401",
        "10.0.0.9:7400",
    )


def test_it_is_gone_with_its_connection() -> None:
    live, connection = LiveForwarders(), object()
    live.announce(announce("edge"), connection, 0)
    live.leave(object())
    assert names(live, 1) == ["edge"]
    live.leave(connection)
    assert names(live, 1) == []


def test_the_end_of_an_old_connection_does_not_end_a_forwarder_that_has_another() -> None:
    live, old, new = LiveForwarders(), object(), object()
    live.announce(announce("edge"), old, 0)
    live.announce(announce("edge"), new, 1)
    live.leave(old)
    assert names(live, 2) == ["edge"]


def test_it_is_gone_after_it_was_silent_for_too_long() -> None:
    live = LiveForwarders()
    live.announce(announce("edge"), object(), 0)
    assert live.count(SILENT_S) == 1
    assert live.count(SILENT_S + 0.1) == 0


def test_forwarders_and_nodes_of_one_name_are_told_apart() -> None:
    live = LiveForwarders()
    live.announce(announce("node-1", "a", address="h:1"), object(), 0)
    live.announce(announce("node-1", "b", address="h:2"), object(), 0)
    assert names(live, 0, "node-1") == ["node-1", "node-1@h:1", "node-1@h:2"]


def test_those_that_can_call_webhooks_are_known() -> None:
    live = LiveForwarders()
    live.announce(announce("one", "b", calls_webhooks=True), object(), 0)
    live.announce(announce("two", "a", calls_webhooks=True), object(), 0)
    live.announce(announce("three", "c"), object(), 0)
    assert live.webhook_callers(0) == ["a", "b"]


def test_their_number_is_bounded() -> None:
    live = LiveForwarders()
    for number in range(FORWARDERS_MAX):
        live.announce(announce(str(number)), object(), 0)
    live.announce(announce("0"), object(), 0)
    with pytest.raises(Overloaded):
        live.announce(announce("more"), object(), 0)
    live.announce(announce("more"), object(), SILENT_S + 1)
