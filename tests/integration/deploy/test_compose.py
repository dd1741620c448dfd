"""The compose files: their structure, and a cluster that starts from what they say."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import quiver
from tests.integration.deploy.image import CONTAINER, FINAL
from tests.integration.deploy.variables import loaded, stop_seconds_max
from tests.serving import command, environment, eventually

FILES = ("compose.yaml", "compose.cluster.yaml")
TOP = {"name", "services", "volumes"}
OF_SERVICES = {
    *(
        "image",
        "build",
        "init",
        "restart",
        "read_only",
        "tmpfs",
        "cap_drop",
        "security_opt",
        "ulimits",
    ),
    *("stop_grace_period", "ports", "volumes", "environment", "depends_on", "healthcheck"),
}
SECONDS_MAX = 60.0


def document(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((CONTAINER / name).read_text())
    return read


def services(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = document(name)["services"]
    return found


EVERY = [(file, name) for file in FILES for name in services(file)]


def is_quiver(service: dict[str, Any]) -> bool:
    return bool(service["image"].startswith("quiver:"))


@pytest.mark.parametrize("file", FILES)
def test_the_file_has_only_what_compose_knows(file: str) -> None:
    assert {key for key in document(file) if not key.startswith("x-")} == TOP
    for service in services(file).values():
        assert set(service) <= OF_SERVICES


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_a_service_writes_to_its_volume_alone_and_has_no_privileges(file: str, name: str) -> None:
    service = services(file)[name]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["init"] is True
    for mounted in service.get("volumes", []):
        volume, path = mounted.split(":")
        assert volume in document(file)["volumes"]
        assert path in ("/data", "/etcd-data")


@pytest.mark.parametrize("file", FILES)
def test_no_two_services_share_a_volume(file: str) -> None:
    mounted = [
        one.split(":")[0] for each in services(file).values() for one in each.get("volumes", [])
    ]
    assert sorted(mounted) == sorted(document(file)["volumes"])


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_images_are_pinned_and_ours_is_of_this_version(file: str, name: str) -> None:
    service = services(file)[name]
    tag = service["image"].rpartition(":")[2]
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
    if is_quiver(service):
        assert tag == quiver.__version__
        context = (CONTAINER / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_ports_are_open_to_this_machine_alone(file: str, name: str) -> None:
    """Without TLS, tokens must not leave the machine."""
    for port in services(file)[name].get("ports", []):
        address, outside, inside = port.rsplit(":", 2)
        assert address == "127.0.0.1"
        assert outside == inside
        assert inside in FINAL.one("EXPOSE").text.split()


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_what_is_waited_for_has_a_health_check(file: str, name: str) -> None:
    """That of the image, for a node; etcd's image has none."""
    every = services(file)
    for other, how in every[name].get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        assert is_quiver(every[other]) or every[other]["healthcheck"]["test"][0] == "CMD"
    assert not (is_quiver(every[name]) and "healthcheck" in every[name])


@pytest.mark.parametrize(
    ("file", "name"), [one for one in EVERY if is_quiver(services(one[0])[one[1]])]
)
def test_a_node_starts_with_its_variables_and_has_the_time_to_stop(file: str, name: str) -> None:
    service = services(file)[name]
    config = loaded(service.get("environment", {})).config
    assert config.security.authentication
    grace = float(service["stop_grace_period"].removesuffix("s"))
    assert grace >= stop_seconds_max(config)


def test_the_cluster_has_three_nodes_and_three_members_of_etcd_by_their_own_names() -> None:
    every = services("compose.cluster.yaml")
    nodes = [name for name, one in every.items() if "QUIVER_METADATA_STORE" in one["environment"]]
    members = [name for name, one in every.items() if "ETCD_NAME" in one["environment"]]
    assert (len(nodes), len(members)) == (3, 3)
    for name in nodes:
        config = loaded(every[name]["environment"]).config
        assert (config.name, config.advertise) == (name, f"{name}:7401")
        assert config.metadata.endpoints == ",".join(f"http://{one}:2379" for one in members)
    upstream = every["forwarder"]["environment"]["QUIVER_UPSTREAM"]
    assert upstream == "quiver://" + ",".join(f"{name}:7401" for name in nodes)
    peers = ",".join(f"{name}=http://{name}:2380" for name in members)
    assert {every[name]["environment"]["ETCD_INITIAL_CLUSTER"] for name in members} == {peers}


# ------------------------------------------------------------------ the cluster at work


class Engine:
    """Starts the services of the cluster's file as processes, in the order that it asks for.

    Each service has a loopback address of its own instead of a name, and its own folder as volume.
    """

    def __init__(self, folder: Path) -> None:
        self.services = services("compose.cluster.yaml")
        self._folder = folder
        net = (
            f"127.{random.SystemRandom().randrange(10, 250)}.{random.SystemRandom().randrange(250)}"
        )
        self.address = {name: f"{net}.{10 + n}" for n, name in enumerate(self.services)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """In the order of the file, which no dependency contradicts."""
        for name, service in self.services.items():
            for other in service.get("depends_on", {}):
                self._wait_healthy(other)
            self._start(name, service)
        for name in self.services:
            self._wait_healthy(name)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def volume(self, name: str) -> Path:
        return self._folder / name

    def _start(self, name: str, service: dict[str, Any]) -> None:
        self.volume(name).mkdir(mode=0o700)
        program = command(*FINAL.command[1:]) if is_quiver(service) else [_beside_python("etcd")]
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                program, env=self._environment(name), stdout=log, stderr=log
            )

    def _environment(self, name: str) -> dict[str, str]:
        service = self.services[name]
        given = dict(FINAL.environment) if is_quiver(service) else {}
        given.pop("PATH", None)
        given |= service["environment"]
        own = {"0.0.0.0": self.address[name], "/data": str(self.volume(name))}
        own["/etcd-data"] = own["/data"]
        given = {key: _replaced(value, own) for key, value in given.items()}
        addresses = {f"{other}:": f"{address}:" for other, address in self.address.items()}
        return environment(**{key: _replaced(value, addresses) for key, value in given.items()})

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def is_healthy(self, name: str) -> bool:
        """What the health check of the file, or of the image, says."""
        service = self.services[name]
        if is_quiver(service):
            check = [sys.executable, str(CONTAINER / "probe.py"), FINAL.health_check[1][-1]]
        else:
            test = [
                one.replace("127.0.0.1", self.address[name])
                for one in service["healthcheck"]["test"]
            ]
            check = [_beside_python(test[1]), *test[2:]]
        asked = subprocess.run(
            check, env=self._environment(name), capture_output=True, timeout=60, check=False
        )
        return asked.returncode == 0

    def _wait_healthy(self, name: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not self.is_healthy(name):
            assert self.processes[name].poll() is None, f"{name} ended: {self.log(name)}"
            assert time.monotonic() < deadline, f"{name} is not healthy: {self.log(name)}"


def _replaced(text: str, by: dict[str, str]) -> str:
    for old, new in by.items():
        text = text.replace(old, new)
    return text


def _beside_python(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(tmp_path)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.process
@pytest.mark.long
def test_the_cluster_of_the_file_serves_through_its_forwarder_and_survives_a_node(
    engine: Engine,
) -> None:
    engine.start()
    token = (engine.volume("quiver-1") / "admin.token").read_text().strip()
    url = f"quiver://{engine.address['forwarder']}:7401"
    with quiver.Client(url, token=token) as q:
        q.create_queue("jobs")
        q.publish("jobs", "first")
        engine.processes["quiver-3"].kill()
        q.publish("jobs", "second")
        received = []
        while len(received) < 2:
            messages = q.receive("jobs", 2, wait="10s")
            assert messages, "every message is delivered"
            received += [message.text() for message in messages]
            q.ack("jobs", messages)
    assert sorted(received) == ["first", "second"]
    for name in ("forwarder", "quiver-2"):
        engine.processes[name].send_signal(signal.SIGTERM)
        assert engine.processes[name].wait(SECONDS_MAX) == 0
    for name in ("etcd-1", "etcd-2", "etcd-3"):
        engine.processes[name].kill()
    eventually(lambda: "does not answer" in engine.log("quiver-1"), "the node misses etcd")
    assert engine.is_healthy("quiver-1"), "a restart would not bring etcd back"
