"""All checks, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from quiver.cli.doctor import access, disk, machine
from quiver.cli.doctor.certificate import certificate
from quiver.cli.doctor.finding import Finding
from quiver.cli.doctor.folder import version_of_folder
from quiver.config import NodeConfig


def examine(config: NodeConfig, planned: str | None = None) -> Iterator[Finding]:
    """Run all checks for these settings. ``planned`` is the version of Quiver to be run next."""
    yield access.authentication(config)
    yield access.encryption(config)
    yield access.stored_secrets(config)
    yield from access.private_files(config)
    about_certificate = certificate(config, datetime.now(UTC))
    if about_certificate is not None:
        yield about_certificate
    yield version_of_folder(config, planned)
    yield disk.free_space(config)
    yield disk.sync(config)
    yield machine.clock()
    yield machine.open_files(config)
    yield from machine.ports(config)
    yield machine.java()
    yield machine.versions()
