"""Hosts with links that can be cut: each in a network namespace of its own, a router between them.

A cut is a rule of the router that drops what one host sends another, without a word to either, as a
broken link does: connections hang, they are not refused. Links are cut pair by pair and, if asked,
one way. The process that runs the tests is a host too, named ``OUTSIDE``. Root is needed; a machine
that cannot do this makes the tests fail, they are never skipped.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

OUTSIDE = "outside"
_NAMES = "quiver-chaos-"
_ATTEMPTS = 50
_PROCESSES_GONE_S_MAX = 60.0


class NetworkUnavailable(Exception):
    """This machine cannot have namespaces; the message says what is missing."""


class Network:
    """``close`` it: every process that still runs on one of its hosts is killed then."""

    def __init__(self, hosts: Sequence[str]) -> None:
        require_namespaces()
        remove_forgotten()
        self._hosts = {host: index + 1 for index, host in enumerate(hosts)}
        self._spaces: list[str] = []
        self._cuts: set[tuple[str, str]] = set()
        self._number = 0
        try:
            self._router = self._namespace("router")
            _run("ip", "netns", "exec", self._router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            self._connect_tests()
            for host in hosts:
                self._connect(host)
        except BaseException:
            self.close()
            raise

    def address(self, host: str) -> str:
        return f"10.213.{self._number}.{253 if host == OUTSIDE else self._hosts[host]}"

    def on(self, host: str) -> list[str]:
        """What to put before a command, so that it runs on the host.

        Not ``ip netns exec``: that also copies every mount, and keeps volumes mounted.
        """
        return ["nsenter", f"--net=/run/netns/{self._space(host)}"]

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Drop what ``one`` sends ``other`` and, unless ``one_way``, the other way round."""
        self._cut(one, other)
        if not one_way:
            self._cut(other, one)

    def heal(self, one: str, other: str) -> None:
        """Let everything between the two pass again."""
        for pair in ((one, other), (other, one)):
            if pair in self._cuts:
                self._rule("del", pair)
                self._cuts.remove(pair)

    def heal_all(self) -> None:
        for one, other in list(self._cuts):
            self.heal(one, other)

    def isolate(self, host: str, *others: str) -> None:
        """Cut a host off from these, or from all the others."""
        for other in others or [one for one in self._hosts if one != host]:
            self.cut(host, other)

    def close(self) -> None:
        for space in self._spaces:
            remove_namespace(space)
        self._spaces.clear()

    # ------------------------------------------------------------------ how it is made

    def _cut(self, source: str, target: str) -> None:
        if (source, target) not in self._cuts:
            self._rule("add", (source, target))
            self._cuts.add((source, target))

    def _rule(self, what: str, pair: tuple[str, str]) -> None:
        source, target = map(self.address, pair)
        _run(*_in(self._router), "rule", what, "from", source, "to", target, "blackhole")

    def _space(self, host: str) -> str:
        return f"{_NAMES}{os.getpid()}-{self._number}-{host}"

    def _namespace(self, host: str) -> str:
        name = self._space(host) if host != "router" else f"{_NAMES}{os.getpid()}-{id(self):x}"
        _run("ip", "netns", "add", name)
        self._spaces.append(name)
        _run(*_in(name), "link", "set", "lo", "up")
        return name

    def _connect_tests(self) -> None:
        """Take a subnet that nobody has, and a link from it to where the tests run."""
        for number in random.SystemRandom().sample(range(1, 255), _ATTEMPTS):
            device = f"qv-chaos-{number}"
            with contextlib.suppress(subprocess.CalledProcessError):
                _run(
                    *("ip", "link", "add", device, "type", "veth"),
                    *("peer", "name", "outside", "netns", self._router),
                )
                self._number = number
                break
        else:
            raise NetworkUnavailable("every subnet for tests is taken")
        router = self._address_of_router
        _run("ip", "link", "set", device, "up")
        _run("ip", "addr", "add", f"{self.address(OUTSIDE)}/32", "dev", device)
        _run("ip", "route", "add", router, "dev", device)
        _run(
            *("ip", "route", "add", f"10.213.{self._number}.0/24", "via", router),
            *("src", self.address(OUTSIDE)),
        )
        self._attach_to_router("outside", self.address(OUTSIDE))

    def _connect(self, host: str) -> None:
        space, device = self._namespace(host), f"to-{self._hosts[host]}"
        _run(
            *(*_in(self._router), "link", "add", device, "type", "veth"),
            *("peer", "name", "eth0", "netns", space),
        )
        router = self._address_of_router
        _run(*_in(space), "link", "set", "eth0", "up")
        _run(*_in(space), "addr", "add", f"{self.address(host)}/32", "dev", "eth0")
        _run(*_in(space), "route", "add", router, "dev", "eth0")
        _run(*_in(space), "route", "add", "default", "via", router)
        self._attach_to_router(device, self.address(host))

    def _attach_to_router(self, device: str, address: str) -> None:
        _run(*_in(self._router), "link", "set", device, "up")
        _run(*_in(self._router), "addr", "add", f"{self._address_of_router}/32", "dev", device)
        _run(*_in(self._router), "route", "add", f"{address}/32", "dev", device)

    @property
    def _address_of_router(self) -> str:
        return f"10.213.{self._number}.254"


def require_namespaces() -> None:
    missing = []
    if sys.platform != "linux":
        missing.append("Linux")
    if os.geteuid() != 0:
        missing.append("root")
    for tool, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            missing.append(f"the command {tool} ({package})")
    if missing:
        raise NetworkUnavailable(f"not here: {', '.join(missing)}")


def namespaces() -> list[str]:
    """Those that tests have made, of this process and of others."""
    listed = _run("ip", "netns", "list").splitlines()
    return [line.split()[0] for line in listed if line.startswith(_NAMES)]


def remove_forgotten() -> None:
    """Remove what tests that were killed have left behind."""
    for name in namespaces():
        pid = name.removeprefix(_NAMES).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(subprocess.CalledProcessError):
                remove_namespace(name)


def remove_namespace(name: str) -> None:
    """Kill whatever runs in it, wait until that is gone, and remove it."""
    deadline = time.monotonic() + _PROCESSES_GONE_S_MAX
    for pid in _pids(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(map(_runs, _pids(name))):
        assert time.monotonic() < deadline, f"processes in {name} do not end"
        time.sleep(0.01)
    _run("ip", "netns", "del", name)


def _runs(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _pids(name: str) -> Iterator[int]:
    yield from map(int, _run("ip", "netns", "pids", name).split())


def _in(space: str) -> list[str]:
    return ["ip", "-n", space]


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
