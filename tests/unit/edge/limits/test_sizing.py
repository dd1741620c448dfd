"""What a node allows itself follows from the machine, and from its settings first."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from quiver.config.node import MIB, Limits
from quiver.edge.limits.process_memory import ProcessMemory, process_memory
from quiver.edge.limits.sizing import log_sizing, sizes, sizing_of

GIB = 1 << 30
MEMINFO = "MemTotal:       16384000 kB\nMemFree:         1000 kB\n"
MACHINE = 16384000 * 1024


def cgroup(root: Path, files: dict[str, str]) -> ProcessMemory:
    """What a system with these files lets the process use."""
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return process_memory(str(root))


def test_without_a_limit_the_process_may_use_the_machine(tmp_path: Path) -> None:
    found = cgroup(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert found == ProcessMemory(MACHINE, "machine")


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "536870912\n"}, 536870912),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "1073741824"}, GIB),
        ("0::/a/b\n", {"a/b/memory.high": "268435456", "a/memory.max": "1073741824"}, 256 * MIB),
        # In a container the path is that of the host, and the top is the container's own.
        ("0::/docker/abc\n", {"memory.max": "1073741824"}, GIB),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "1073741824"}, GIB),
        ("4:cpu,memory:/x\n", {"memory/memory.limit_in_bytes": "536870912"}, 536870912),
    ],
)
def test_the_lowest_limit_of_the_cgroups_counts(
    tmp_path: Path, own: str, files: dict[str, str], limit: int
) -> None:
    below = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert cgroup(tmp_path, {"proc/self/cgroup": own} | below) == ProcessMemory(limit, "cgroup")


@pytest.mark.parametrize("text", ["9223372036854771712", "", "-1", "many"])
def test_a_limit_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": text,
    }
    assert cgroup(tmp_path, files).source == "machine"


def test_a_system_that_says_nothing_has_an_assumed_size(tmp_path: Path) -> None:
    assert process_memory(str(tmp_path)) == ProcessMemory(GIB, "unknown")


def test_the_budget_is_a_quarter_of_the_memory_unless_it_is_set() -> None:
    memory = ProcessMemory(8 * GIB, "machine")
    assert sizes(Limits(), memory, 20_000).memory_bytes_max == 2 * GIB
    small = sizes(Limits(), ProcessMemory(128 * MIB, "cgroup"), 20_000)
    assert (small.memory_bytes_max, small.cache_bytes_max) == (64 * MIB, 64 * MIB)
    given = sizes(Limits(memory_bytes_max=100 * MIB), memory, 20_000)
    assert (given.memory_bytes_max, given.cache_bytes_max) == (100 * MIB, 100 * MIB)
    assert given.requests_bytes_max == 50 * MIB


@pytest.mark.parametrize(
    ("files", "connections", "logs"),
    [(1_000_000, 10_000, 989_744), (20_000, 10_000, 9_744), (1024, 512, 256), (64, 32, 64)],
)
def test_connections_and_logs_share_the_files(files: int, connections: int, logs: int) -> None:
    sizing = sizes(Limits(), ProcessMemory(GIB, "machine"), files)
    assert (sizing.connections_max, sizing.log_files_max) == (connections, logs)


def test_files_without_a_limit_limit_no_connections() -> None:
    sizing = sizes(Limits(connections_max=5_000), ProcessMemory(GIB, "machine"), -1)
    assert sizing.connections_max == 5_000
    assert sizing.log_files_max > 5_000


def test_the_log_says_what_was_chosen() -> None:
    limits = Limits()
    with structlog.testing.capture_logs() as lines:
        log_sizing(sizes(limits, ProcessMemory(GIB, "cgroup"), 1024), limits, "node-1")
    sized, few = lines
    assert sized["event"] == "node is sized"
    assert (sized["memory_bytes"], sized["memory_of"]) == (GIB, "cgroup")
    assert (sized["memory_bytes_max"], sized["connections_max"]) == (256 * MIB, 512)
    assert few["event"] == "few files may be open"
    with structlog.testing.capture_logs() as lines:
        log_sizing(sizes(limits, ProcessMemory(GIB, "cgroup"), 1 << 20), limits, "node-1")
    assert len(lines) == 1


def test_this_machine_has_a_size() -> None:
    sizing = sizing_of(Limits())
    assert sizing.memory.size > 64 * MIB
    assert sizing.files > 0
