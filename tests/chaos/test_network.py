"""The network that chaos is made with: hosts come and go, links are cut and healed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.network import OUTSIDE, Network, namespaces

_ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 9000))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100))
    connection.close()
"""
_ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 9000), timeout=float(sys.argv[2])) as connection:
    connection.sendall(b"hello")
    sys.exit(connection.recv(100) != b"hello")
"""
_PATIENCE_S = 60.0
_SILENT_S = 0.5


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network(["a", "b", "c"])
    try:
        yield made
    finally:
        made.close()


@contextmanager
def echo_on(network: Network, host: str) -> Iterator[subprocess.Popen[str]]:
    server = subprocess.Popen(
        [*network.on(host), sys.executable, "-c", _ECHO, network.address(host)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == "ready\n"
        yield server
    finally:
        server.kill()
        server.wait(_PATIENCE_S)
        server.stdout.close()


def is_silent(network: Network, source: str, target: str) -> bool:
    """Whether a host gets no answer from the one that echoes, for a while."""
    return not answers(network, source, target, _SILENT_S)


def answers(network: Network, source: str, target: str, patience_s: float = _PATIENCE_S) -> bool:
    """Whether a host gets an answer from the one that echoes."""
    command = [] if source == OUTSIDE else network.on(source)
    asked = subprocess.run(
        [*command, sys.executable, "-c", _ASK, network.address(target), str(patience_s)],
        stderr=subprocess.DEVNULL,
        timeout=2 * _PATIENCE_S,
        check=False,
    )
    return asked.returncode == 0


def test_links_are_cut_and_healed_pair_by_pair(network: Network) -> None:
    with echo_on(network, "a"):
        network.cut("a", "b")
        assert is_silent(network, "b", "a")
        assert answers(network, "c", "a")
        network.heal("a", "b")
        assert answers(network, "b", "a")


def test_a_cut_may_be_one_way(network: Network) -> None:
    with echo_on(network, "a"), echo_on(network, "b"):
        network.cut("a", "b", one_way=True)
        assert is_silent(network, "b", "a"), "the answer does not come back"
        network.heal_all()
        assert answers(network, "b", "a")


def test_an_open_connection_hangs_when_its_link_is_cut_and_goes_on_when_it_is_healed(
    network: Network,
) -> None:
    with (
        echo_on(network, "a"),
        socket.create_connection((network.address("a"), 9000), timeout=_SILENT_S) as connection,
    ):
        network.cut(OUTSIDE, "a")
        connection.sendall(b"hello")
        with pytest.raises(TimeoutError):
            connection.recv(100)
        network.heal(OUTSIDE, "a")
        connection.settimeout(_PATIENCE_S)
        assert connection.recv(100) == b"hello"


def test_a_host_is_cut_off_from_all_others_and_not_from_the_tests(network: Network) -> None:
    with echo_on(network, "a"):
        network.isolate("a")
        assert is_silent(network, "b", "a")
        assert is_silent(network, "c", "a")
        assert answers(network, OUTSIDE, "a")


def test_nothing_is_left_of_a_network_that_is_closed() -> None:
    network = Network(["a", "b"])
    mine = [name for name in namespaces() if f"-{os.getpid()}-" in name]
    assert len(mine) == 3
    sleeper = subprocess.Popen([*network.on("a"), "sleep", "1000"])
    address = network.address("a")
    network.close()
    assert sleeper.wait(_PATIENCE_S) == -9
    assert not [name for name in namespaces() if f"-{os.getpid()}-" in name]
    if not namespaces():  # else another process may have taken the same addresses by now
        routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
        assert address.rpartition(".")[0] not in routes
