"""The image of the Dockerfile, built and run in boxes: its own commands, user, variables and mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.integration.deploy.box import USER, Box, children, end
from tests.integration.deploy.dockerfile import Stage, stages
from tests.paths import REPOSITORY
from tests.ports import free_port
from tests.serving import environment

CONTAINER = REPOSITORY / "deploy" / "container"
BUILD, FINAL = stages(CONTAINER / "Dockerfile")
SECONDS_MAX = 60.0


class Image:
    """What ``COPY --from=build`` takes from the build: the folder of the program."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "opt"
        self._folder = folder

    def build(self) -> None:
        """Run the commands of the build, in a box, with what is copied there and nothing else."""
        copied = self._folder / "build"
        for each in (copied, self.program):
            each.mkdir()
        _copy(BUILD, REPOSITORY, copied)
        pip = Path.home() / ".config" / "pip"
        shared = {"/build": copied, "/opt/quiver": self.program}
        shared |= {str(pip): pip} if pip.is_dir() else {}
        box = Box(self._folder / "builder", shared, read_only=False)
        variables = {**environment(), "PYTHONPATH": "", "PATH": "$PATH"}
        for step in BUILD.all("RUN"):
            command = ["/bin/sh", "-c", step.text]
            done = box.run(command, user=0, environment=variables, folder="/build")
            assert done.returncode == 0, f"{step.text}\n{done.stdout}"
        shutil.copy(CONTAINER / "probe.py", self.program / "probe.py")


class Container:
    """A container of the image with a read-only root. Its ports are free ones of the machine."""

    def __init__(
        self, image: Image, folder: Path, variables: Mapping[str, str], tmpfs: Mapping[str, str]
    ) -> None:
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self.data.chmod(0o700)
        os.chown(self.data, USER, USER)
        self.http, self.native = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        shared = {"/opt/quiver": image.program, "/data": self.data}
        self._box = Box(folder / "box", shared, read_only=True)
        self._probes = Box(folder / "probes", shared, read_only=True)
        self._environment = {
            "HOME": "/",
            **FINAL.environment,
            "QUIVER_HTTP": f"0.0.0.0:{self.http.rpartition(':')[2]}",
            "QUIVER_NATIVE": f"0.0.0.0:{self.native.rpartition(':')[2]}",
            **variables,
        }
        self._log: IO[bytes] = (folder / "log").open("w+b")
        self._process = self._box.start(
            FINAL.command,
            environment=self._environment,
            tmpfs=tmpfs,
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def log(self) -> str:
        return Path(str(self._log.name)).read_text()

    @property
    def pid(self) -> int:
        """Of the node: the only child of ``unshare``."""
        (child,) = children(self._process)
        return child

    def probe(self, path: str | None = None) -> subprocess.CompletedProcess[str]:
        """The image's health check, as the engine would run it, or with another path."""
        options, command = FINAL.health_check
        command = command if path is None else [*command[:-1], path]
        return self._probes.run(
            command,
            seconds_max=float(options["timeout"].removesuffix("s")) + SECONDS_MAX,
            environment=self._environment,
        )

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert self._process.poll() is None, f"the container ended: {self.log}"
            assert time.monotonic() < deadline, f"not in time: {what}: {self.log}"
            time.sleep(0.02)

    def wait_ready(self) -> None:
        self.wait_for(lambda: "node is ready" in self.log, "the node is ready")

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds_max: float) -> int:
        return self._process.wait(seconds_max)

    def close(self) -> None:
        end(self._process)
        self._log.close()


@contextmanager
def container(
    image: Image, folder: Path, *, tmpfs: Mapping[str, str] | None = None, **variables: str
) -> Iterator[Container]:
    running = Container(image, folder, variables, tmpfs or {})
    try:
        yield running
    finally:
        running.close()


def _copy(stage: Stage, source: Path, target: Path) -> None:
    """What the stage's ``COPY`` instructions copy to its working folder."""
    for one in stage.all("COPY"):
        *names, place = one.text.split()
        for name in names:
            if (source / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(source / name, target / place, ignore=ignored)
            else:
                shutil.copy(source / name, target / place)
