"""Nodes of a cluster: known by a secret, on the native port, and with TLS by their certificate too."""

from __future__ import annotations

from typing import Any

import pytest

from quiver import protocol
from quiver.config import Security
from quiver.edge.auth.authority import Authority
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.credentials import Credentials, names_host
from quiver.edge.auth.principal import PEER
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.calls.table import CALLS
from quiver.edge.principal_clients import bearer_token
from quiver.errors import PermissionDenied, Unauthenticated
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore

SECRET = "peer_" + "1" * 64
NODE = {"subjectAltName": (("IP Address", "10.0.0.1"), ("DNS", "n1.example"))}
SHOP = {"subjectAltName": (("DNS", "shop.example"),)}


def authority(*, node_certificates: bool = False) -> Authority:
    clock = ManualClock()
    return Authority(
        clock,
        tokens=TokenStore(MemoryStore(clock), clock),
        security=Security(authentication=True),
        accepts_peer=lambda token: token == SECRET,
        is_node=(lambda one: names_host(one, {"n1.example"})) if node_certificates else None,
    )


def shown(**rest: Any) -> Credentials:
    return Credentials(token=SECRET, **rest)


def test_the_secret_of_the_nodes_counts_on_the_native_port_only() -> None:
    assert authority().authenticate(shown(is_native=True)) is PEER
    with pytest.raises(Unauthenticated):
        authority().authenticate(shown())


@pytest.mark.parametrize("certificate", [None, SHOP, {"subject": ((("commonName", "n1"),),)}])
def test_with_tls_a_node_also_shows_the_certificate_of_a_node(
    certificate: dict[str, Any] | None,
) -> None:
    asking = authority(node_certificates=True)
    assert asking.authenticate(shown(is_native=True, certificate=NODE)) is PEER
    with pytest.raises(Unauthenticated):
        asking.authenticate(shown(is_native=True, certificate=certificate))


@pytest.mark.parametrize(
    ("host", "is_named"),
    [
        ("n1.example", True),
        ("N1.Example", True),
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("a.nodes.example", True),
        ("a.b.nodes.example", False),
        ("nodes.example", False),
        ("2001:db8::1", True),
    ],
)
def test_a_certificate_names_the_hosts_of_its_alternative_names(host: str, is_named: bool) -> None:
    names = (
        ("DNS", "n1.example"),
        ("DNS", "*.nodes.example"),
        ("IP Address", "10.0.0.1"),
        ("IP Address", "2001:DB8:0:0:0:0:0:1"),
    )
    assert names_host({"subjectAltName": names}, {host}) == is_named


def test_a_forwarder_and_a_node_take_no_secret_of_nodes_over_http() -> None:
    assert bearer_token("Bearer qv_1") == "qv_1"
    with pytest.raises(Unauthenticated):
        bearer_token(f"Bearer {SECRET}")


@pytest.mark.parametrize(
    "request_",
    [
        protocol.CreateToken(name="me", grants=["admin:*"]),
        protocol.ListTokens(),
        protocol.RevokeToken(token_id="0"),
        protocol.RotatePeerSecret(),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_node_makes_no_tokens_for_itself(request_: protocol.AnyRequest) -> None:
    caller = Caller(authority(), ManualClock(), PEER)
    with pytest.raises(PermissionDenied):
        caller.admit(request_, CALLS[type(request_)], 0)


def test_a_node_whose_secret_was_replaced_is_let_go() -> None:
    accepted = {SECRET}
    clock = ManualClock()
    asking = Authority(clock, accepts_peer=accepted.__contains__)
    caller = Caller(asking, clock, PEER, peer_secret=SECRET)
    caller.require_standing()
    accepted.clear()
    with pytest.raises(Unauthenticated, match="secret of the nodes"):
        caller.require_standing()
