"""The systemd unit: that systemd takes it, and that a node lives within what it allows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quiver
from quiver.config import load_config
from quiver.config.exposure import require_safe
from tests.integration.deploy.unit_file import sections
from tests.integration.deploy.variables import stop_seconds_max
from tests.paths import REPOSITORY
from tests.serving import Served

FOLDER = REPOSITORY / "deploy" / "systemd"
UNIT = FOLDER / "quiver.service"
SERVICE = sections(UNIT)["Service"]
EXPOSURE_MAX = 20
"""Tenths of what ``systemd-analyze security`` counts from 0 (locked down) to 10."""
_DENY_WRITE_EXECUTE = """
import ctypes, os, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit("this kernel has no such limit")
os.execv(sys.argv[1], sys.argv[1:])
"""


def one(key: str) -> str:
    (value,) = SERVICE[key]
    return value


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_the_unit_has_what_a_service_needs() -> None:
    found = sections(UNIT)
    assert found.keys() == {"Unit", "Service", "Install"}
    assert found["Install"] == {"WantedBy": ["multi-user.target"]}
    assert found["Unit"]["After"] == found["Unit"]["Wants"] == ["network-online.target"]
    assert one("Type") == "exec", "the node does not notify systemd"
    assert (one("Restart"), one("RestartPreventExitStatus")) == ("on-failure", "2")


def test_the_unit_locks_the_node_down() -> None:
    for key in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome"):
        assert one(key) == "yes"
    assert one("ProtectSystem") == "strict"
    assert one("CapabilityBoundingSet") == one("AmbientCapabilities") == ""
    assert one("SystemCallErrorNumber") == "EPERM"
    assert int(one("LimitNOFILE")) >= 65536


def test_the_user_is_the_one_that_sysusers_makes() -> None:
    made = re.findall(r'^u (\w+) - "[^"]+" (\S+)$', (FOLDER / "quiver.sysusers").read_text(), re.M)
    assert made == [(one("User"), one("WorkingDirectory"))]


def test_the_settings_file_is_right_and_the_data_is_in_the_state_directory() -> None:
    config = load_config(path=str(FOLDER / "quiver.toml"), environment={}).config
    require_safe(config)
    assert config.security.authentication
    assert config.data == f"/var/lib/{one('StateDirectory')}" == one("WorkingDirectory")
    assert one("StateDirectoryMode") == "0700"
    assert seconds(one("TimeoutStopSec")) >= stop_seconds_max(config)


def test_the_command_is_one_that_quiver_knows() -> None:
    program, *arguments = shlex.split(one("ExecStart"))
    assert program == "/opt/quiver/bin/quiver"
    assert arguments == ["serve", "--config", f"/etc/quiver/{FOLDER.joinpath('quiver.toml').name}"]


# ------------------------------------------------------------------ systemd, and a node


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip(
            "systemd-analyze is of Debian's systemd: without it, the other tests hold the unit"
        )
    return subprocess.run(
        [tool, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def unit(tmp_path: Path) -> str:
    """The unit with a program that is there."""
    copied = tmp_path / UNIT.name
    copied.write_text(UNIT.read_text().replace("/opt/quiver/bin/quiver", sys.executable))
    return str(copied)


@pytest.mark.process
def test_systemd_finds_nothing_wrong_with_the_unit(unit: str) -> None:
    done = systemd_analyze("verify", "--man=no", unit)
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, told) == (0, [])


@pytest.mark.process
def test_systemd_counts_little_exposure(unit: str) -> None:
    done = systemd_analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd cannot look at files")
    assert done.returncode == 0, done.stdout[-500:]


@pytest.mark.process
def test_a_node_needs_no_memory_that_is_written_and_executed(tmp_path: Path) -> None:
    """MemoryDenyWriteExecute, by the kernel's own limit of the same kind."""
    assert one("MemoryDenyWriteExecute") == "yes"
    node = Served(tmp_path, launcher=[sys.executable, "-c", _DENY_WRITE_EXECUTE])
    try:
        try:
            node.wait_ready()
        except AssertionError:
            if "this kernel has no such limit" in node.log:
                pytest.skip("the kernel is older than 6.3")
            raise
        with quiver.Client(node.url) as q:
            q.create_queue("jobs")
            q.publish_many("jobs", [{"payload": f"{n}", "key": f"{n}"} for n in range(100)])
            messages = q.receive("jobs", 100, wait="5s")
            q.ack("jobs", messages)
            assert len(messages) == 100
        assert node.stop() == 0
    finally:
        node.close()
