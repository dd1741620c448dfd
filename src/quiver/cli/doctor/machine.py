"""The machine: clock, open files, ports, and the versions of what Quiver stands on."""

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
    """Delays, expiry and retention go by the date."""
    if time.time() < _RELEASED:
        return failure("clock", "the date is in the past", "set it; use NTP")
    if _clock_state() == _UNSYNCHRONISED:
        return warning("clock", "it is not synchronised", "use NTP: delays and expiry go by it")
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
        return ok("open files", "as many files may be open as are needed")
    return warning(
        "open files",
        f"{most:,} files may be open: connections are held to {most // 2:,}",
        f"raise it (ulimit -n {wanted}), or lower limits.connections_max",
    )


def ports(config: NodeConfig) -> list[Finding]:
    """Whether somebody listens already where the node would."""
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
                    f"somebody listens on {address} already",
                    f"nothing to do if that is the node; else choose another with --{name}",
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
        return ok("java", "there is none; only pipelines on Spark need it")
    return ok("java", found)


def versions() -> Finding:
    known = [f"quiver {__version__}", f"Python {platform.python_version()}", ssl.OPENSSL_VERSION]
    for package in ("pyarrow", "uvloop", "msgspec"):
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            return failure("versions", f"{package} is missing", "install quivermq again")
    return ok("versions", ", ".join(known))
