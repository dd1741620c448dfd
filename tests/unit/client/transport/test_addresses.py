"""URLs of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from quiver.client.transport.addresses import addresses_in, host_and_port
from quiver.errors import InvalidSetting


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("quiver://127.0.0.1:7401", ["127.0.0.1:7401"]),
        ("quiver://localhost", ["localhost:7401"]),
        ("quiver://a:1,b:2,a:1/", ["a:1", "b:2"]),
        ("quiver://node-1.example.com:7500, node-2", ["node-1.example.com:7500", "node-2:7401"]),
        ("quiver://[::1]:7401,[fe80::1%eth0]", ["[::1]:7401", "[fe80::1%eth0]:7401"]),
    ],
)
def test_nodes_are_read_from_a_url(url: str, addresses: list[str]) -> None:
    assert addresses_in(url) == addresses


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:7401", "http://a", "quiver://", "quiver://a:b", "quiver://a:0",
     "quiver://a:70000", "quiver://a,,b", "quiver://a/b", "quiver://::1", None, 5],
)  # fmt: skip
def test_what_is_no_url_is_refused_with_an_example(url: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"not a Quiver URL|quiver://127\.0\.0\.1:7401"):
        addresses_in(url)


@pytest.mark.parametrize(("address", "parts"), [("a:1", ("a", 1)), ("[::1]:7401", ("::1", 7401))])
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts


@pytest.mark.parametrize("address", ["a", ":1", "a:", "a:x"])
def test_an_address_without_either_is_refused(address: str) -> None:
    with pytest.raises(InvalidSetting, match="not an address"):
        host_and_port(address)
