"""What a node allows itself, from its settings and from what the system allows the process.

One budget of memory holds what grows with the load: caches of all logs, and requests that are not
answered yet. Of the files that may be open, at most half are connections; logs have the others, but for
a few that everything else needs.
"""

from __future__ import annotations

import resource

import msgspec
import structlog

from quiver.config.node import MIB, Limits
from quiver.edge.limits.process_memory import ProcessMemory, process_memory

_SHARE = 4
"""The budget is one part in so many of the memory that the process may use."""
_BUDGET_BYTES_MIN = 64 * MIB
_OTHER_FILES = 256
"""Files that are neither connections nor logs: metadata, certificates, libraries."""
_LOG_FILES_MIN = 64

logger = structlog.get_logger()


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    memory: ProcessMemory
    memory_bytes_max: int
    """The budget: for caches and requests together."""
    cache_bytes_max: int
    """Of these, for caches."""
    requests_bytes_max: int
    """Of these, for unanswered requests of all connections."""
    files: int
    """How many files may be open."""
    connections_max: int
    log_files_max: int
    """How many files the logs keep open for writing."""


def sizing_of(limits: Limits, processes: int = 1) -> Sizing:
    """The sizes for this process on this machine, which may be one of several nodes."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sizes(limits, process_memory(), files, processes)


def sizes(limits: Limits, memory: ProcessMemory, files: int, processes: int = 1) -> Sizing:
    """``files`` is how many may be open, below zero if that is not limited."""
    derived = max(_BUDGET_BYTES_MIN, memory.size // _SHARE // processes)
    budget = limits.memory_bytes_max // processes if limits.memory_bytes_max else derived
    if files < 0:
        files = 4 * limits.connections_max
    connections = max(1, min(limits.connections_max, files // 2))
    return Sizing(
        memory=memory,
        memory_bytes_max=budget,
        cache_bytes_max=min(limits.tail_bytes_total, budget),
        requests_bytes_max=max(1, budget // 2),
        files=files,
        connections_max=connections,
        log_files_max=max(_LOG_FILES_MIN, files - connections - _OTHER_FILES),
    )


def log_sizing(sizing: Sizing, limits: Limits, node: str) -> None:
    """Say what was chosen, and what the system allows too little of."""
    chosen = msgspec.structs.asdict(sizing)
    memory = chosen.pop("memory")
    logger.info(
        "node is sized", node=node, memory_bytes=memory.size, memory_of=memory.source, **chosen
    )
    if sizing.connections_max < limits.connections_max:
        logger.warning(
            "few files may be open", files=sizing.files, connections_max=sizing.connections_max
        )
