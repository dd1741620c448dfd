"""Whether a node may listen where it was told to: to other machines only if it knows who they are."""

from __future__ import annotations

import ipaddress

from quiver.config.address import Address
from quiver.config.node import NodeConfig
from quiver.errors import InvalidSetting


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect there. A name that is not known to be so, is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def exposed(config: NodeConfig) -> list[str]:
    """The settings that have the node listen to other machines."""
    addresses = ((name, getattr(config, name)) for name in config.__struct_fields__)
    return [
        name
        for name, address in addresses
        if isinstance(address, Address) and not is_loopback(address.host)
    ]


def require_safe(config: NodeConfig) -> None:
    """Refuse to serve other machines without authentication, unless that was asked for in words."""
    security = config.security
    open_to_all = exposed(config)
    if open_to_all and not security.authentication and not security.insecure:
        where = ", ".join(f"{name} ({getattr(config, name)})" for name in open_to_all)
        raise InvalidSetting(
            f"{where} can be reached from other machines without authentication: require tokens "
            "with --authentication (docs/howto/secure.md), or allow it with --insecure"
        )
