"""The settings of each of several processes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from quiver.config import Address, NodeConfig
from quiver.config.processes import (
    config_of,
    cores,
    is_shared,
    known_processes,
    own_port,
    process_count,
    require_single,
)
from quiver.errors import InvalidSetting

OWN = Address("127.0.0.1", 7412)


def test_each_process_has_its_name_folder_address_and_share_of_the_cache() -> None:
    config = NodeConfig(name="box", data="/data", advertise="box.example.com:9000")
    own = config_of(config, 1, 4, OWN)
    assert (own.name, own.data, own.native) == ("box.1", "/data/processes/1", OWN)
    assert own.advertise == "box.example.com"
    assert own.limits.tail_bytes_total == config.limits.tail_bytes_total // 4
    assert own.http == config.http


def test_an_advertised_address_of_version_6_keeps_its_host() -> None:
    own = config_of(NodeConfig(advertise="[2001:db8::1]:9000"), 0, 1, OWN)
    assert own.advertise == "2001:db8::1"


def test_own_ports_are_above_the_native_one_unless_they_are_set() -> None:
    config = NodeConfig(native=Address("127.0.0.1", 7401))
    assert [own_port(config, number) for number in (0, 1)] == [7411, 7412]
    given = msgspec.structs.replace(config, process_port=9000)
    assert own_port(given, 1) == 9001
    assert own_port(msgspec.structs.replace(config, native=Address("127.0.0.1", 0)), 1) == 0


def test_auto_is_one_for_each_core_and_never_fewer_than_the_folder_has(tmp_path: Path) -> None:
    config = NodeConfig(data=str(tmp_path), processes=0)
    assert process_count(config) == cores()
    (tmp_path / "processes" / "99").mkdir(parents=True)
    assert known_processes(config) == 100
    assert process_count(config) == 100


def test_a_folder_of_several_is_refused_to_a_node_of_its_own(tmp_path: Path) -> None:
    config = NodeConfig(data=str(tmp_path))
    assert not is_shared(config)
    require_single(config, None)
    (tmp_path / "processes" / "0").mkdir(parents=True)
    assert is_shared(config)
    with pytest.raises(InvalidSetting, match="--processes auto"):
        require_single(config, None)
