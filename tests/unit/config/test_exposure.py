"""Where a node may listen: to other machines only with authentication, or when told in words."""

from __future__ import annotations

import pytest

from quiver.config import Address, NodeConfig, Security
from quiver.config.exposure import is_loopback, require_safe
from quiver.errors import InvalidSetting


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_alone_needs_no_authentication(host: str) -> None:
    assert is_loopback(host)
    require_safe(NodeConfig(native=Address(host, 7401)))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "node.example", "localhost.example"]
)
def test_other_machines_are_not_served_without_authentication(host: str) -> None:
    native = Address(host, 7401)
    with pytest.raises(InvalidSetting, match="--insecure"):
        require_safe(NodeConfig(native=native))
    require_safe(NodeConfig(native=native, security=Security(authentication=True)))
    require_safe(NodeConfig(native=native, security=Security(insecure=True)))
