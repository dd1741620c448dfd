"""A node's machine: a process on a host of the network, with a disk whose power can be cut."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from quiver.log.files import LOG
from tests.chaos.network import Network
from tests.power import PowerCutVolume
from tests.serving import Served

NATIVE_PORT, HTTP_PORT = 7401, 7400
_MIB = 1 << 20


class Machine:
    """``start`` the node on it, and ``close`` it. With ``disk_bytes`` its data is on a volume.

    A node that is not ``synced`` never waits for its disk, and must not be believed.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        network: Network,
        endpoints: str,
        *,
        settings: Sequence[str] = (),
        disk_bytes: int | None = None,
        synced: bool = True,
    ) -> None:
        self.name = name
        self.address = network.address(name)
        self.native = f"{self.address}:{NATIVE_PORT}"
        self.http = f"{self.address}:{HTTP_PORT}"
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._volume = None if disk_bytes is None else PowerCutVolume(str(self._folder), disk_bytes)
        self._launcher = network.on(name)
        self._synced = synced
        self._settings = (
            "metadata.store=etcd",
            f"metadata.endpoints={endpoints}",
            "limits.free_bytes_min=1MiB",
            *settings,
        )
        self._node: Served | None = None
        self._paused = False
        self.has_flipped_bits = False
        """Whether a file may be damaged that nobody has read since."""

    @property
    def data(self) -> Path:
        return self._folder / "data" if self._volume is None else Path(self._volume.path) / "data"

    @property
    def log(self) -> str:
        assert self._node is not None, "it was started"
        return self._node.log

    @property
    def is_running(self) -> bool:
        return self._node is not None

    def start(self, *, wait: bool = True) -> None:
        assert self._node is None, f"{self.name} runs"
        self._node = Served(
            self._folder,
            *("--name", self.name, "--native", self.native, "--http", self.http),
            *("--insecure", "--log-format", "json"),
            *(part for setting in self._settings for part in ("--set", setting)),
            data=self.data,
            launcher=self._launcher,
            synced=self._synced,
        )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        assert self._node is not None, "it was started"
        self._node.wait_ready()

    # ------------------------------------------------------------------ ways to fail

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        assert self._node is not None, "it was started"
        node, self._node = self._node, None
        try:
            return node.stop()
        finally:
            node.close()

    def kill(self) -> None:
        """SIGKILL: the kernel still has all that was written."""
        if self._node is not None:
            self.resume()
            self._node.close()
            self._node = None

    def pause(self) -> None:
        assert self._node is not None, "it was started"
        os.kill(self._node.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._paused and self._node is not None:
            os.kill(self._node.pid, signal.SIGCONT)
        self._paused = False

    def cut_power(self) -> None:
        """What was not synced is lost, and the process with it.

        The process goes first: one that outlives its disk can confirm, in the name of a sync that was
        under way, what never got there.
        """
        assert self._volume is not None, "only a volume's power can be cut"
        self.kill()
        self._volume.cut()
        self._volume.remount()

    def write_back(self) -> None:
        """Let the kernel write what it has, as it may at any time."""
        assert self._volume is not None, "there is a volume to write to"
        self._volume.flush()

    def lose_data(self) -> None:
        """The data folder is gone, as with a new disk. Stop the node first."""
        assert self._node is None, "a running node has its files open"
        shutil.rmtree(self.data)
        self.has_flipped_bits = False

    def fill_disk(self) -> None:
        """Leave no room on the disk."""
        with self._ballast.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(_MIB))
                file.flush()

    def remove_ballast(self) -> None:
        """There is room on the disk again."""
        if self._volume is not None:
            self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        assert self._volume is not None, "only a volume can be filled"
        return Path(self._volume.path) / "ballast"

    def flip_bits(self, rng: random.Random, count: int) -> list[str]:
        """Change single bits in stored segments; the files. Stop the node first."""
        assert self._node is None, "a running node has its files mapped"
        segments = [path for path in sorted(self.data.rglob(f"*{LOG}")) if path.stat().st_size]
        assert segments, f"{self.name} has stored nothing"
        self.has_flipped_bits = True
        hit = []
        for _ in range(count):
            path = rng.choice(segments)
            content = bytearray(path.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            hit.append(str(path))
        return hit

    def close(self) -> None:
        self.kill()
        if self._volume is not None:
            self._volume.close()
