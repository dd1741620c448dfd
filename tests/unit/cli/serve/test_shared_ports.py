"""The addresses of several processes: kept for them, and for nobody else."""

from __future__ import annotations

import socket

import pytest

from quiver.cli.serve.shared_ports import SharedPorts
from quiver.config import Address, NodeConfig
from quiver.errors import QuiverError

ANY = Address("127.0.0.1", 0)


def test_each_process_has_a_port_of_its_own_beside_those_of_all() -> None:
    with SharedPorts(NodeConfig(native=ANY, http=ANY), 3) as ports:
        config = ports.within(NodeConfig(native=ANY, http=ANY))
        assert config.native == ports.native
        assert config.http == ports.http
        addresses = [ports.native, ports.http, *ports.own]
        assert len({str(one) for one in addresses}) == 5
        assert 0 not in {one.port for one in addresses if one is not None}


def test_several_processes_may_listen_at_a_port_that_is_kept() -> None:
    with SharedPorts(NodeConfig(native=ANY, http=None), 1) as ports:
        address = ports.native.host, ports.native.port
        with (
            socket.create_server(address, reuse_port=True),
            socket.create_server(address, reuse_port=True),
        ):
            pass


def test_a_port_at_which_processes_listen_is_refused_to_others_that_would_share_it() -> None:
    with (
        SharedPorts(NodeConfig(native=ANY, http=None), 1) as ports,
        socket.create_server((ports.native.host, ports.native.port), reuse_port=True),
        pytest.raises(QuiverError, match="the address is in use; choose another with --native"),
    ):
        SharedPorts(NodeConfig(native=ports.native, http=None), 1)


def test_an_own_port_that_is_taken_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = NodeConfig(native=ANY, http=None, process_port=taken.getsockname()[1])
        with pytest.raises(QuiverError, match="process_port"):
            SharedPorts(config, 1)
