"""The addresses and folders of a cluster on this machine.

The addresses are chosen once and stored in the cluster's folder, so that clients find the nodes again
after a restart.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

import msgspec

from quiver.errors import InvalidSetting

FILE = "cluster.json"
HOST = "127.0.0.1"
NODES_MAX = 32
_STEP = 10
_ETCD_FROM = 500
"""Where etcd's ports begin after the first of all, if those are chosen."""


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    http: str
    native: str


class EtcdPlace(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    client: str
    peer: str


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a cluster."""

    nodes: tuple[NodePlace, ...] = ()
    etcd: tuple[EtcdPlace, ...] = ()

    @property
    def endpoints(self) -> str:
        return ",".join(f"http://{member.client}" for member in self.etcd)


def layout_in(
    folder: str, *, nodes: int | None, etcd_members: int | None, base_port: int | None
) -> Layout:
    """The cluster that is to run in a folder: as it was, with more nodes if more are wanted."""
    known = _remembered(folder)
    if known is not None and base_port is not None:
        raise InvalidSetting(
            f"--base-port: the cluster in {folder} already has its ports; leave the flag out, or "
            "choose another folder with --data"
        )
    if known is not None and etcd_members not in (None, len(known.etcd)):
        raise InvalidSetting(
            f"--etcd-members: the cluster in {folder} has {len(known.etcd)}, which cannot be changed; "
            "leave the flag out, or choose another folder with --data"
        )
    with _Ports() as ports:
        made = _grown(
            known or Layout(),
            nodes or (len(known.nodes) if known is not None else 3),
            etcd_members or 1,
            ports,
            base_port,
        )
    if made != known:
        _remember(folder, made)
    return msgspec.structs.replace(made, nodes=made.nodes[: nodes or len(made.nodes)])


def _grown(
    layout: Layout, nodes: int, etcd_members: int, ports: _Ports, base_port: int | None
) -> Layout:
    def two(first: int | None) -> tuple[str, str]:
        chosen = ports.take(2) if first is None else [first, first + 1]
        return f"{HOST}:{chosen[0]}", f"{HOST}:{chosen[1]}"

    def place(start: int, index: int) -> int | None:
        return None if base_port is None else base_port + start + _STEP * index

    new_nodes = []
    for index in range(len(layout.nodes), nodes):
        http, native = two(place(0, index))
        new_nodes.append(NodePlace(id=f"node-{index + 1}", http=http, native=native))
    new_members = []
    for index in range(0 if layout.etcd else etcd_members):
        client, peer = two(place(_ETCD_FROM, index))
        new_members.append(EtcdPlace(id=f"etcd-{index + 1}", client=client, peer=peer))
    return Layout(nodes=(*layout.nodes, *new_nodes), etcd=(*layout.etcd, *new_members))


class _Ports:
    """Free ports, each given once: they are held until all have been chosen."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def __enter__(self) -> _Ports:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._held:
            one.close()

    def take(self, count: int) -> list[int]:
        held = [socket.socket() for _ in range(count)]
        self._held += held
        for one in held:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in held]


def _remembered(folder: str) -> Layout | None:
    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Layout)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise InvalidSetting(
            f"{path} is not the description of a cluster: {error}; choose another folder with --data"
        ) from error


def _remember(folder: str, layout: Layout) -> None:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, FILE)
    with open(f"{path}.new", "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(layout), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def client_url(nodes: Iterable[NodePlace]) -> str:
    """What a client is given to find the cluster by."""
    return "quiver://" + ",".join(node.native for node in nodes)
