"""The image: what its Dockerfile says, and that its commands, user, probes and signals work."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deploy.container import probe

import quiver
from quiver.config import NodeConfig
from tests.integration.deploy.box import USER, require_boxes
from tests.integration.deploy.image import BUILD, CONTAINER, FINAL, Container, Image, container
from tests.paths import REPOSITORY
from tests.serving import environment, served

pytestmark = pytest.mark.long

GRACE_S = 30.0
"""For a node that has nothing under way, on a machine that is busy."""


_LOADING = """
import time
from quiver.cli import main
main.run = lambda app: (print("loading", flush=True), time.sleep(120))
main.main()
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Built once, whichever of several workers comes first."""
    require_boxes()
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "image"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = Image(folder)
        if not folder.exists():
            folder.mkdir()
            built.build()
    return built


# ------------------------------------------------------------------ what the Dockerfile says


def test_both_stages_begin_with_the_same_pinned_slim_python() -> None:
    bases = {one.text.split()[0] for stage in (BUILD, FINAL) for one in stage.all("FROM")}
    assert bases == {"python:${PYTHON}"}
    (default,) = re.findall(r"^ARG PYTHON=(.*)$", (CONTAINER / "Dockerfile").read_text(), re.M)
    assert re.fullmatch(r"3\.1[1-9]-slim-\w+", default)


def test_the_user_is_a_number_that_is_not_root() -> None:
    """Kubernetes can tell from a number alone that an image does not run as root."""
    assert FINAL.one("USER").text == f"{USER}:{USER}"
    assert FINAL.one("VOLUME").words == ["/data"]
    assert f"--owner={USER} --group={USER} --mode=0700 /data" in FINAL.one("RUN").text


def test_the_label_has_the_version_of_the_package() -> None:
    labels = FINAL.one("LABEL").pairs
    assert labels["org.opencontainers.image.version"] == quiver.__version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_image_names_no_package_index_and_needs_no_curl() -> None:
    for name in ("Dockerfile", "Dockerfile.dockerignore", "probe.py"):
        text = (CONTAINER / name).read_text()
        assert re.search(r"index-url|find-links|trusted-host|https?://|curl|wget", text) is None


def test_the_ports_are_those_that_the_node_listens_on() -> None:
    ports = {
        FINAL.environment[name].rpartition(":")[2] for name in ("QUIVER_HTTP", "QUIVER_NATIVE")
    }
    assert set(FINAL.one("EXPOSE").text.split()) == ports
    assert ports == {str(NodeConfig().native.port), "7400"}


def test_what_is_copied_is_there_and_is_sent_to_the_builder() -> None:
    sent = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    for stage in (BUILD, FINAL):
        for one in stage.all("COPY"):
            if not one.text.startswith("--from="):
                for name in one.text.split()[:-1]:
                    assert (REPOSITORY / name).exists()
                    assert f"!{name}" in sent


def test_a_probe_ends_before_the_engine_ends_it() -> None:
    options, command = FINAL.health_check
    assert command == ["python", "/opt/quiver/probe.py", "readyz"]
    assert float(options["timeout"].removesuffix("s")) > probe.SECONDS_MAX
    assert FINAL.one("STOPSIGNAL").text == "SIGTERM"


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("0.0.0.0:7400", "127.0.0.1", 7400), ("[::]:80", "::1", 80), ("10.0.0.7:1", "10.0.0.7", 1)],
)
def test_a_probe_asks_where_the_node_listens(address: str, host: str, port: int) -> None:
    asked = probe.connection({"QUIVER_HTTP": address})
    assert (asked.host, asked.port) == (host, port)


def test_a_probe_of_a_node_without_http_says_so() -> None:
    with pytest.raises(OSError, match="turn the health check off"):
        probe.connection({"QUIVER_HTTP": "off"})


# ------------------------------------------------------------------ the image at work


def admin(running: Container) -> quiver.Client:
    token = (running.data / "admin.token").read_text().strip()
    return quiver.Client(f"quiver://{running.native}", token=token)


@pytest.mark.process
def test_a_container_serves_stops_at_sigterm_and_keeps_what_it_was_sent(
    image: Image, tmp_path: Path
) -> None:
    """Process 1, a numeric user without capabilities, a read-only root: as in Kubernetes."""
    with container(image, tmp_path) as first:
        assert first.probe().returncode == 1, "nothing is ready before it listens"
        first.wait_ready()
        asked = first.probe()
        assert (asked.returncode, asked.stdout) == (0, '200 {"status":"ok"}\n')
        assert first.probe("healthz").returncode == 0
        status = Path(f"/proc/{first.pid}/status").read_text()
        assert re.search(rf"^Uid:\s+{USER}\s+{USER}\s+{USER}\s+{USER}$", status, re.M)
        assert re.search(r"^CapBnd:\s+0+$", status, re.M)
        with admin(first) as q:
            q.create_queue("jobs")
            q.publish("jobs", "kept")
        first.send(signal.SIGTERM)
        assert first.wait(GRACE_S) == 0
        assert "node has stopped" in first.log
        assert first.probe().returncode == 1
    assert {path.stat().st_uid for path in first.data.rglob("*")} == {USER}
    again = tmp_path / "again"
    again.mkdir()
    os.rename(first.data, again / "data")
    with container(image, again) as second:
        second.wait_ready()
        with admin(second) as q:
            assert [message.text() for message in q.receive("jobs", wait="5s")] == ["kept"]


@pytest.mark.process
def test_the_root_of_a_container_cannot_be_written_to(image: Image, tmp_path: Path) -> None:
    with container(image, tmp_path, QUIVER_DATA="/srv/quiver") as refused:
        assert refused.wait(GRACE_S) == 2
        assert "the folder '/srv' cannot be written to" in refused.log


@pytest.mark.process
def test_a_probe_fails_in_time_while_the_node_hangs(image: Image, tmp_path: Path) -> None:
    with container(image, tmp_path) as running:
        running.wait_ready()
        running.send(signal.SIGSTOP)
        for path in ("readyz", "healthz"):
            began = time.monotonic()
            asked = running.probe(path)
            assert asked.returncode == 1
            assert "the node does not answer: timed out" in asked.stdout
            assert time.monotonic() - began >= probe.SECONDS_MAX
        running.send(signal.SIGCONT)
        running.wait_for(lambda: running.probe().returncode == 0, "it is ready again")


@pytest.mark.process
def test_a_full_disk_takes_no_container_down(image: Image, tmp_path: Path) -> None:
    """It still serves reads: to restart it, or to send nobody there, would take them away too."""
    full = {"/data": f"size=64m,mode=0700,uid={USER},gid={USER}"}
    with container(image, tmp_path, tmpfs=full) as running:
        running.wait_ready()
        running.wait_for(lambda: "disk_full" in running.probe().stdout, "the disk counts as full")
        asked = running.probe()
        assert asked.returncode == 0
        assert '"status":"disk_full"' in asked.stdout
        assert running.probe("healthz").returncode == 0
        running.send(signal.SIGTERM)
        assert running.wait(GRACE_S) == 0


@pytest.mark.process
def test_process_1_ends_at_sigterm_even_while_it_loads(tmp_path: Path) -> None:
    """Linux ignores a signal to process 1 that has no handler."""
    require_boxes()
    started = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", _LOADING],
        env=environment(),
        stdout=subprocess.PIPE,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == b"loading\n"
        (child,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert started.wait(GRACE_S) == 128 + signal.SIGTERM
    finally:
        started.kill()
        started.communicate()


@pytest.mark.process
def test_a_node_with_all_its_connections_is_alive_but_not_ready(tmp_path: Path) -> None:
    with (
        served(tmp_path, "--set", "limits.connections_max=1") as node,
        quiver.Client(node.url) as only,
    ):
        only.list_topics()
        variables = environment(QUIVER_HTTP=node.ready["http"])
        codes = {
            path: subprocess.run(
                [sys.executable, "-I", "-S", str(CONTAINER / "probe.py"), path],
                env=variables,
                capture_output=True,
                timeout=60,
                check=False,
            ).returncode
            for path in ("healthz", "readyz")
        }
    assert codes == {"healthz": 0, "readyz": 1}


@pytest.mark.process
def test_a_volume_of_kubernetes_belongs_to_root_and_the_group_alone(
    image: Image, tmp_path: Path
) -> None:
    """As fsGroup leaves it, with a folder that nobody else may read: the node makes one of its own."""
    data = {"/data": f"mode=2775,uid=0,gid={USER}", "/data/lost+found": "mode=0700,uid=0,gid=0"}
    with container(image, tmp_path, tmpfs=data, QUIVER_DATA="/data/quiver") as running:
        running.wait_ready()
        assert running.probe().returncode == 0


@pytest.mark.process
def test_a_container_that_nobody_configured_lets_nobody_in_without_a_token(
    image: Image, tmp_path: Path
) -> None:
    with container(image, tmp_path) as running:
        running.wait_ready()
        with (
            quiver.Client(f"quiver://{running.native}") as stranger,
            pytest.raises(quiver.errors.Unauthenticated),
        ):
            stranger.list_topics()
