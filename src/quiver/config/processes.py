"""Several processes that serve one data folder together: the place of each, and its settings.

They share the metadata and the addresses that clients are told. Each has a folder in the data folder,
and an address of its own, by which others reach exactly it.
"""

from __future__ import annotations

import os

import msgspec

from quiver.config.address import Address
from quiver.config.node import NodeConfig
from quiver.errors import InvalidSetting

FOLDER = "processes"
"""The folder in the data folder that has one for each process."""
PORTS_ABOVE = 10
"""How far the own ports begin above the port of ``native``, if nothing else is set."""


class ProcessPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One process of those that serve a data folder together, beside its settings as a node."""

    number: int
    count: int
    """How many processes there are."""
    host: str
    """What the machine is called: the name in the settings of all."""
    folder: str
    """The data folder of all."""
    native: Address
    """Where all of them listen."""


def process_name(config: NodeConfig, number: int) -> str:
    """The name of a process as a node."""
    return f"{config.name}.{number}"


def config_of(config: NodeConfig, number: int, count: int, own: Address) -> NodeConfig:
    """The settings of one of ``count`` processes, which alone listens at ``own``."""
    limits = msgspec.structs.replace(
        config.limits, tail_bytes_total=config.limits.tail_bytes_total // count
    )
    host, _, port = config.advertise.rpartition(":")
    is_address = host and port.isdigit()
    return msgspec.structs.replace(
        config,
        name=process_name(config, number),
        data=os.path.join(config.data, FOLDER, str(number)),
        native=own,
        advertise=host.strip("[]") if is_address else config.advertise,
        limits=limits,
    )


def place_of(config: NodeConfig, number: int, count: int) -> ProcessPlace:
    return ProcessPlace(
        number=number, count=count, host=config.name, folder=config.data, native=config.native
    )


def own_port(config: NodeConfig, number: int) -> int:
    """The port of a process's own address; 0 if any will do."""
    if config.process_port:
        return config.process_port + number
    return config.native.port + PORTS_ABOVE + number if config.native.port else 0


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def known_processes(config: NodeConfig) -> int:
    """How many processes have served the folder; 0 if it was never served by several."""
    folder = os.path.join(config.data, FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return max((int(name) + 1 for name in names if name.isdecimal()), default=0)


def process_count(config: NodeConfig) -> int:
    """How many processes to run: as many as the settings say, or as this machine and the folder need."""
    return config.processes or max(cores(), known_processes(config))


def require_single(config: NodeConfig, place: ProcessPlace | None) -> None:
    """``InvalidSetting`` if a folder of several processes is to be served by a node of its own."""
    if place is None and known_processes(config):
        raise InvalidSetting(
            f"{config.data} is served by several processes: start it with "
            "quiver serve --processes auto"
        )


def is_shared(config: NodeConfig) -> bool:
    """Whether the data folder is, or is to be, one of several processes."""
    return config.role == "broker" and (process_count(config) > 1 or known_processes(config) > 0)
