"""A cluster on this machine: the addresses it keeps, and the command lines of its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.cli.cluster.layout import Layout, client_url, layout_in
from quiver.cli.cluster.programs import etcd_command, etcd_program, serve_flags
from quiver.errors import InvalidSetting, QuiverError


def layout(
    folder: Path,
    nodes: int | None = None,
    etcd_members: int | None = None,
    base_port: int | None = None,
) -> Layout:
    return layout_in(str(folder), nodes=nodes, etcd_members=etcd_members, base_port=base_port)


def test_three_nodes_and_one_etcd_unless_told_otherwise(tmp_path: Path) -> None:
    made = layout(tmp_path / "cluster")
    assert [node.id for node in made.nodes] == ["node-1", "node-2", "node-3"]
    assert [member.id for member in made.etcd] == ["etcd-1"]


def test_no_two_parts_share_a_port(tmp_path: Path) -> None:
    made = layout(tmp_path, nodes=5, etcd_members=3)
    addresses = [
        *(place for node in made.nodes for place in (node.http, node.native)),
        *(place for member in made.etcd for place in (member.client, member.peer)),
    ]
    assert len(set(addresses)) == len(addresses) == 16


def test_a_cluster_keeps_its_addresses(tmp_path: Path) -> None:
    assert layout(tmp_path, nodes=2) == layout(tmp_path)


def test_more_nodes_are_added_to_those_there_are(tmp_path: Path) -> None:
    before, after = layout(tmp_path, nodes=2), layout(tmp_path, nodes=4)
    assert after.nodes[:2] == before.nodes
    assert after.etcd == before.etcd
    assert len(after.nodes) == 4


def test_fewer_nodes_are_the_first_and_the_others_are_not_forgotten(tmp_path: Path) -> None:
    before = layout(tmp_path, nodes=3)
    assert layout(tmp_path, nodes=1).nodes == before.nodes[:1]
    assert layout(tmp_path, nodes=3) == before


def test_ports_can_be_chosen(tmp_path: Path) -> None:
    made = layout(tmp_path, nodes=2, base_port=7400)
    assert [(node.http, node.native) for node in made.nodes] == [
        ("127.0.0.1:7400", "127.0.0.1:7401"),
        ("127.0.0.1:7410", "127.0.0.1:7411"),
    ]
    assert made.endpoints == "http://127.0.0.1:7900"
    assert client_url(made.nodes) == "quiver://127.0.0.1:7401,127.0.0.1:7411"


def test_what_cannot_change_is_refused(tmp_path: Path) -> None:
    layout(tmp_path, etcd_members=3)
    with pytest.raises(InvalidSetting, match="--base-port"):
        layout(tmp_path, base_port=7400)
    with pytest.raises(InvalidSetting, match="--etcd-members"):
        layout(tmp_path, etcd_members=1)
    assert len(layout(tmp_path, etcd_members=3).etcd) == 3


def test_a_file_that_is_something_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[]")
    with pytest.raises(InvalidSetting, match="is not the description of a cluster"):
        layout(tmp_path)


def test_without_etcd_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(QuiverError, match=r"pip install 'quivermq\[etcd\]'"):
        etcd_program()


def test_nodes_know_every_etcd_and_every_etcd_the_others(tmp_path: Path) -> None:
    made = layout(tmp_path, etcd_members=3)
    flags = serve_flags("folder", made.nodes[1], made, ["limits.idle_timeout_s=5"])
    assert flags[:5] == ["serve", "--name", "node-2", "--data", "folder/node-2"]
    assert f"metadata.endpoints={made.endpoints}" in flags
    assert "limits.idle_timeout_s=5" in flags
    command = etcd_command("etcd", "folder", made.etcd[0], made)
    peers = command[command.index("--initial-cluster") + 1]
    assert peers == ",".join(f"{one.id}=http://{one.peer}" for one in made.etcd)
