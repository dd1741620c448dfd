"""A container without a container engine: namespaces for mounts and processes, and a root of its own.

The root is a tmpfs with the machine's folders, read-only. Each command is process 1 of its box, as in
a container. Needs root, and Linux's ``unshare``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_OWN = ("tmp", "data", "opt", "build", "proc", "root", "home", "lost+found")
"""Folders that the box has of its own, if at all."""
_VISIBLE = ("PIP_CERT", "PIP_FIND_LINKS", "PIP_CONFIG_FILE", "SSL_CERT_FILE")
"""Variables whose files the box shows, so that it can install packages as the machine does."""
USER = 10001
_PATH = f"{sys.base_prefix}/bin:/opt/python:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
"""Of a box: this interpreter without its virtual environment is its ``python``."""


def require_boxes() -> None:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("boxes need root, and unshare and setpriv of Debian's util-linux")
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if tried.returncode != 0:
        pytest.skip(f"this machine does not let tests mount: {tried.stderr.strip()}")


class Box:
    """``shared`` are paths in the box and the folders behind them."""

    def __init__(self, folder: Path, shared: Mapping[str, Path], *, read_only: bool) -> None:
        self._root = folder / "root"
        self._root.mkdir(parents=True)
        self._shared = shared
        self._read_only = read_only

    def start(
        self,
        command: Sequence[str],
        *,
        user: int = USER,
        environment: Mapping[str, str],
        folder: str = "/",
        tmpfs: Mapping[str, str] | None = None,
        **pipes: Any,
    ) -> subprocess.Popen[bytes]:
        """The command as process 1 of a new box. ``tmpfs`` are further mounts, with their options."""
        drop = ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
        if user != 0:
            drop += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        inside = shlex.join(["setpriv", *drop, *command])
        script = "\n".join(
            [
                "set -eu",
                *self._mounts(tmpfs or {}),
                "umask 0022",
                f"exec chroot {self._root} /bin/sh -c {shlex.quote(f'cd {folder} && exec {inside}')}",
            ]
        )
        path = environment["PATH"].replace("$PATH", _PATH)
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script],
            env={**environment, "PATH": path},
            stdin=subprocess.DEVNULL,
            **pipes,
        )

    def run(
        self, command: Sequence[str], seconds_max: float = 300, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        started = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
        try:
            output, _ = started.communicate(timeout=seconds_max)
        finally:
            end(started)
        return subprocess.CompletedProcess(command, started.returncode, output.decode())

    def _mounts(self, tmpfs: Mapping[str, str]) -> list[str]:
        root = self._root
        tops = [one for one in Path("/").iterdir() if one.name not in _OWN]
        shown = [sys.base_prefix, *(os.environ[one] for one in _VISIBLE if one in os.environ)]
        lines = ["mount --make-rprivate /", f"mount -t tmpfs -o mode=0755 none {root}"]
        for top in tops:
            if top.is_symlink():
                lines.append(f"ln -s {os.readlink(top)} {root}{top}")
            elif top.is_dir():
                lines.append(f"mkdir {root}{top} && mount --rbind {top} {root}{top}")
        lines += [
            f"mkdir {root}/proc && mount -t proc proc {root}/proc",
            f"mkdir {root}/tmp && mount -t tmpfs -o mode=1777 none {root}/tmp",
        ]
        lines.append(f"mkdir -p {root}/opt/python")
        lines.append(f"ln -s {os.path.realpath(sys.executable)} {root}/opt/python/python")
        for path in shown:
            if Path(path).is_dir() and Path(path).parts[1] in _OWN:
                lines.append(f"mkdir -p {root}{path} && mount --bind {path} {root}{path}")
            elif Path(path).is_file() and Path(path).parts[1] in _OWN:
                lines.append(f"mkdir -p $(dirname {root}{path}) && touch {root}{path}")
                lines.append(f"mount --bind {path} {root}{path}")
        for path, folder in self._shared.items():
            lines.append(f"mkdir -p {root}{path} && mount --bind {folder} {root}{path}")
        for path, options in tmpfs.items():
            lines.append(f"mkdir -p {root}{path} && mount -t tmpfs -o {options} none {root}{path}")
        if self._read_only:
            lines += [f"mount -o remount,ro,bind {root}{top}" for top in tops if _is_folder(top)]
            lines.append(f"mount -o remount,ro {root}")
        return lines


def children(process: subprocess.Popen[bytes]) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill process 1 of the box, and so all others in it: ``unshare`` alone would leave it behind."""
    if process.poll() is None:
        for pid in children(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _is_folder(top: Path) -> bool:
    return top.is_dir() and not top.is_symlink()
