"""Checks of the machine: clock, open files, ports, Java and versions of packages."""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import shutil
import socket
import ssl
import time
from importlib.metadata import PackageNotFoundError, version

from quiver.cli.doctor.finding import Finding, failure, ok, warning
from quiver.config import Address, NodeConfig
from quiver.version import __version__

_RELEASED = 1_750_000_000
"""Seconds since 1970: no clock that is right shows less."""
_UNSYNCHRONISED = 5


def clock() -> Finding:
    """Delays, expiry and retention depend on the clock."""
    if time.time() < _RELEASED:
        return failure("clock", "the date is in the past", "set the clock; use NTP")
    if _clock_state() == _UNSYNCHRONISED:
        return warning(
            "clock", "the clock is not synchronised", "use NTP: delays and expiry depend on it"
        )
    return ok("clock", "the date is plausible")


def _clock_state() -> int:
    """What the kernel says of its clock; 0 where it cannot be asked."""
    try:
        return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))
    except (OSError, AttributeError):
        return 0


def open_files(config: NodeConfig) -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * config.limits.connections_max
    if most == resource.RLIM_INFINITY or most >= wanted:
        return ok("open files", "the limit is high enough")
    return warning(
        "open files",
        f"the limit is {most:,}, which allows {most // 2:,} connections",
        f"raise the limit (ulimit -n {wanted}), or lower limits.connections_max",
    )


def ports(config: NodeConfig) -> list[Finding]:
    """Whether the node's addresses are free."""
    addresses = ((name, getattr(config, name)) for name in config.__struct_fields__)
    return [_port(name, one) for name, one in addresses if isinstance(one, Address) and one.port]


def _port(name: str, address: Address) -> Finding:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return warning(
                    f"{name} port",
                    f"{address} is in use",
                    f"ignore this if the node is running; else choose another with --{name}",
                )
            return failure(
                f"{name} port",
                f"cannot listen on {address}: {error.strerror or error}",
                f"choose another with --{name}",
            )
    return ok(f"{name} port", f"{address} is free")


def java() -> Finding:
    found = shutil.which("java")
    if found is None:
        return ok("java", "not found; only Spark pipelines need it")
    return ok("java", found)


def versions() -> Finding:
    known = [f"quiver {__version__}", f"Python {platform.python_version()}", ssl.OPENSSL_VERSION]
    for package in ("pyarrow", "uvloop", "msgspec"):
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            return failure("versions", f"{package} is missing", "install quivermq again")
    return ok("versions", ", ".join(known))
