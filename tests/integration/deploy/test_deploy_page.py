"""The page on deploying: its commands name files, services, values and commands that there are.

Its ``bash`` blocks are run with those of the other pages.
"""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pages.command_line import commands

from tests.integration.deploy.test_chart import VERSION, helm, rendered
from tests.integration.deploy.test_compose import services
from tests.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "howto" / "deploy.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [
    shlex.split(line.removeprefix("sudo ").removeprefix("-u quiver "), posix=True)
    for kind, text in BLOCKS
    if kind == "text"
    for line in text.splitlines()
]
COMMANDS = {
    command.path: {option for param in command.command.params for option in param.opts}
    for command in commands()
}


def lines_of(program: str) -> list[list[str]]:
    found = [line for line in LINES if Path(line[0]).name == program]
    assert found, f"the page uses {program}"
    return found


def option(line: list[str], name: str) -> str:
    return line[line.index(name) + 1]


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", PAGE))
    assert len(named) > 8
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()


def test_files_are_installed_where_the_unit_looks_for_them() -> None:
    targets = {Path(line[-2]).name: line[-1] for line in lines_of("install")}
    unit = (REPOSITORY / "deploy" / "systemd" / "quiver.service").read_text()
    assert f"--config {targets['quiver.toml']}\n" in unit
    assert targets["quiver.service"] == "/etc/systemd/system/quiver.service"


def test_the_data_folder_belongs_to_the_node_before_doctor_looks_whether_it_can_be_written() -> (
    None
):
    (made,) = [line for line in lines_of("install") if "--directory" in line]
    unit = (REPOSITORY / "deploy" / "systemd" / "quiver.service").read_text()
    assert f"WorkingDirectory={made[-1]}\n" in unit
    assert f"User={option(made, '--owner')}\n" in unit
    assert f"StateDirectoryMode={option(made, '--mode')}\n" in unit
    (doctor,) = [line for line in lines_of("quiver") if line[1] == "doctor"]
    assert LINES.index(made) < LINES.index(doctor)


def test_the_first_token_is_waited_for_and_belongs_to_whoever_takes_it() -> None:
    steps = [line for line in LINES if "admin.token" in " ".join(line)]
    assert [line[0] for line in steps][:3] == ["timeout", "mv", "chown"]


def test_compose_commands_name_services_that_there_are() -> None:
    for line in lines_of("docker"):
        if line[1] == "compose":
            known = services(Path(option(line, "--file")).name)
            (verb,) = [word for word in line if word in ("up", "exec", "kill")]
            rest = line[line.index(verb) + 1 :]
            assert verb == "up" or rest[0] in known


def test_quiver_commands_are_ones_that_there_are() -> None:
    for line in lines_of("quiver"):
        words = ["quiver", *line[1:]]
        path = max((one for one in COMMANDS if words[: len(one.split())] == one.split()), key=len)
        assert {word for word in words if word.startswith("--")} <= COMMANDS[path]


@pytest.mark.process
def test_the_chart_takes_the_values_of_the_page(tmp_path: Path) -> None:
    for line in lines_of("helm"):
        values = [
            word
            for flag, value in pairwise(line)
            if flag.startswith("--set")
            for word in (flag, value.replace("\\,", ",").replace(",", "\\,"))
        ]
        done = helm("template", "quiver", "deploy/helm/quiver", "--kube-version", VERSION, *values)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.process
def test_the_certificate_covers_the_names_that_nodes_and_clients_use(tmp_path: Path) -> None:
    (text,) = [text for kind, text in BLOCKS if kind == "yaml"]
    names = yaml.safe_load(text)["spec"]["dnsNames"]
    manifests = rendered(tmp_path, {}, name="quiver")
    assert "Service quiver" in manifests
    nodes = manifests["StatefulSet quiver"]["spec"]["serviceName"]
    assert names == [
        *("quiver", "quiver.queues", "quiver.queues.svc.cluster.local"),
        f"*.{nodes}.queues.svc.cluster.local",
    ]
