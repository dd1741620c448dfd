"""Every command there is, walked: what holds for all of them holds for each, also for the next one.

The tables name every command; one that is missing in them fails a test, and so does one that is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages.command_line import Command, commands

from quiver.cli.support.exit_codes import ExitCode, run
from tests.serving import Commands, Served, app, command, environment, served, unused_address
from tests.terminal import terminal

pytestmark = pytest.mark.process

ALL = list(commands())
LEAVES = [one for one in ALL if not one.is_group]
PATHS = {one.path for one in LEAVES}
Capture = pytest.CaptureFixture[str]

SILENT = {
    *("quiver queue delete", "quiver subscription delete", "quiver topic delete"),
    *("quiver queue seek", "quiver subscription seek", "quiver token revoke", "quiver serve"),
    "quiver mirror remove",
}
"""They have nothing to say but that it is done: no ``--json``."""

CALLS = {
    "quiver bench latency": "--messages 1",
    "quiver bench publish": "--messages 1",
    "quiver bench read": "--messages 1",
    "quiver cancel": "none 0pg50dvkjqqg00000400000000000001",
    "quiver cluster decommission": "none --yes",
    "quiver cluster leaders": "",
    "quiver cluster move": "none/0 node-1",
    "quiver cluster nodes": "",
    "quiver cluster partitions": "",
    "quiver cluster rotate-secret": "",
    "quiver cluster split": "none/0",
    "quiver cluster status": "",
    "quiver consume": "none --wait 0s",
    "quiver message": "none 0pg50dvkjqqg00000400000000000001",
    "quiver mirror add": "none --from quiver://127.0.0.1:1 --topics some",
    "quiver mirror alter": "none --rate 1MB",
    "quiver mirror describe": "none",
    "quiver mirror list": "",
    "quiver mirror pause": "none",
    "quiver mirror promote": "none",
    "quiver mirror remove": "none",
    "quiver mirror resume": "none",
    "quiver peek": "none",
    "quiver pipeline run archive": "none --to here --once --subscription none",
    "quiver pipeline run dead-letters": "none",
    "quiver pipeline run dedupe": "none --into copy --once --subscription none",
    "quiver pipeline run logs": "none --to here --once --subscription none",
    "quiver pipeline run metrics": "none --to here --once --subscription none",
    "quiver pipeline run replay": "here --into none",
    "quiver pipeline tidy": "",
    "quiver publish": "none payload",
    "quiver purge": "none --yes",
    "quiver queue alter": "none --visibility 1m",
    "quiver queue create": "none",
    "quiver queue delete": "none --yes",
    "quiver queue describe": "none",
    "quiver queue list": "",
    "quiver queue seek": "none --to latest",
    "quiver redrive": "none",
    "quiver subscription alter": "none --visibility 1m",
    "quiver subscription create": "none --topic some",
    "quiver subscription delete": "none --yes",
    "quiver subscription describe": "none",
    "quiver subscription list": "",
    "quiver subscription seek": "none --to latest",
    "quiver tail": "none",
    "quiver token create": "none --grant consume:x",
    "quiver token list": "",
    "quiver token revoke": "0123456789abcdef",
    "quiver top": "--once",
    "quiver topic alter": "none --acks all",
    "quiver topic create": "none",
    "quiver topic delete": "none --yes",
    "quiver topic describe": "none",
    "quiver topic list": "",
    "quiver transaction abort": "1",
    "quiver transaction describe": "1",
    "quiver transaction list": "",
}
"""Each command that needs a node, called rightly, on something that is not there."""
SUCCEED = {
    *("quiver cluster leaders", "quiver cluster nodes", "quiver cluster partitions"),
    *("quiver cluster status", "quiver pipeline tidy"),
    *("quiver bench latency", "quiver bench publish", "quiver bench read", "quiver top"),
    *("quiver mirror add", "quiver mirror list"),
    *("quiver queue create", "quiver queue list", "quiver subscription list"),
    *("quiver subscription create", "quiver token list", "quiver token create"),
    *("quiver topic create", "quiver topic list"),
    *("quiver transaction abort", "quiver transaction describe", "quiver transaction list"),
}
"""They need nothing that is there, or make it."""
OF_THEIR_OWN = {"quiver backup create", "quiver backup restore", "quiver doctor"}
"""What they say depends on more than a node: they have tests of their own."""
WITH_SPARK = {
    "quiver pipeline run dead-letters",
    "quiver pipeline run replay",
}
"""They find out what is there once Spark runs: Spark's tests have them."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("QUIVER_"):
            monkeypatch.delenv(variable)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node"), "--authentication") as running:
        yield running


@pytest.fixture
def quiver(node: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands of somebody who may do everything."""
    monkeypatch.setenv("QUIVER_TOKEN", (node.data / "admin.token").read_text().strip())
    return Commands(node.url, capsys)


def words(path: str) -> list[str]:
    return path.split()[1:]


def walk(*kinds: str) -> pytest.MarkDecorator:
    chosen = ALL if "groups" in kinds else LEAVES
    return pytest.mark.parametrize("one", chosen, ids=lambda one: one.path)


def needs_java(path: str) -> None:
    if path.startswith("quiver pipeline run") and shutil.which("java") is None:
        pytest.skip("without Java a pipeline says that, and no more")


# ------------------------------------------------------------------ without a node


@walk("groups")
def test_it_says_what_it_is_for_and_so_does_every_flag(one: Command) -> None:
    assert one.command.help
    assert [param.name for param in one.command.params if not (param.help or param.hidden)] == []


@walk()
def test_what_it_tells_can_be_had_as_json(one: Command) -> None:
    assert ("--json" in one.flags) == (one.path not in SILENT)


@walk()
def test_a_flag_that_is_not_there_is_one_line_with_a_hint(one: Command, capsys: Capture) -> None:
    assert run(app, [*words(one.path), "--no-such-flag"]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    error, hint = told.err.splitlines()
    assert error.startswith("error: No such option: --no-such-flag")
    assert hint == f"hint: see {one.path} --help"


@pytest.mark.parametrize(
    "one",
    [one for one in LEAVES if any(param.required for param in one.command.params)],
    ids=lambda one: one.path,
)
def test_an_argument_that_is_missing_is_one_line_with_a_hint(one: Command, capsys: Capture) -> None:
    assert run(app, words(one.path)) == ExitCode.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    error, hint = told.err.splitlines()
    assert error.startswith("error: Missing ")
    assert hint == f"hint: see {one.path} --help"


def test_the_tables_here_name_every_command() -> None:
    assert {one.path for one in LEAVES if "--url" in one.flags} == set(CALLS) | OF_THEIR_OWN
    assert set(CALLS) >= SUCCEED | WITH_SPARK
    assert PATHS >= SILENT


@pytest.mark.parametrize("path", CALLS)
def test_without_a_node_it_ends_with_3_and_says_how_to_start_one(
    path: str, capsys: Capture
) -> None:
    needs_java(path)
    url = f"quiver://{unused_address()}"
    assert run(app, ["--url", url, *words(path), *CALLS[path].split()]) == ExitCode.UNREACHABLE
    told = capsys.readouterr()
    assert told.out == ""
    error, hint = told.err.splitlines()
    assert error.startswith("error: cannot connect to ")
    assert hint.startswith("hint: start a node with: quiver serve")


# ------------------------------------------------------------------ with a node


@pytest.mark.parametrize("path", sorted(set(CALLS) - SUCCEED - WITH_SPARK))
def test_what_is_not_there_is_one_line_with_a_hint(path: str, quiver: Commands) -> None:
    needs_java(path)
    told = quiver(*words(path), *CALLS[path].split())
    assert (told.code, told.out) == (ExitCode.FAILED, "")
    error, hint = told.err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("path", sorted(CALLS))
def test_without_a_token_it_says_where_the_first_one_is(
    path: str, node: Served, capsys: Capture
) -> None:
    needs_java(path)
    told = Commands(node.url, capsys)(*words(path), *CALLS[path].split())
    assert (told.code, told.out) == (ExitCode.FAILED, "")
    error, hint = told.err.splitlines()
    assert "requires a token" in error
    assert hint.startswith("hint: set QUIVER_TOKEN")


@pytest.mark.parametrize("path", sorted(path for path in PATHS if path.endswith(" list")))
def test_a_listing_is_a_list_as_json(path: str, quiver: Commands, tmp_path: Path) -> None:
    place = ("--from", str(tmp_path)) if path == "quiver backup list" else ()
    told = quiver(*words(path), *place, "--json")
    assert (told.code, told.err) == (0, "")
    assert isinstance(told.json, list)


def test_the_version_as_json(capsys: Capture) -> None:
    assert run(app, ["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"version", "formats"}


LONG = {
    "publishing": "publish work --file {lines}",
    "measuring": "bench publish --messages 1000",
    "preparing": "bench read --messages 1000",
    "redriving": "redrive work",
}
"""Work that may take long, by what its bar says."""


@pytest.mark.parametrize("said", LONG)
def test_long_work_has_a_bar_on_a_terminal(
    said: str, quiver: Commands, node: Served, tmp_path: Path
) -> None:
    quiver("queue", "create", "work", "--if-not-exists", "--max-deliveries", "1")
    quiver("publish", "work", "poison")
    quiver("consume", "work", "--limit", "1", "--nack", "--error", "broken")
    lines = tmp_path / "lines"
    lines.write_text("line\n" * 1000)
    arguments = LONG[said].format(lines=lines).split()
    token = {"QUIVER_TOKEN": os.environ["QUIVER_TOKEN"]}
    with terminal(command("--url", node.url, *arguments), **token) as shown:
        assert shown.wait() == 0, shown.drawn
        assert said in shown.drawn
    quiver("queue", "delete", "work", "--yes")


# ------------------------------------------------------------------ shell completion


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("quiver to", {"top", "topic", "token"}),
        ("quiver topic ", {"create", "alter", "list", "describe", "delete"}),
        ("quiver pipeline run de", {"dead-letters", "dedupe"}),
        ("quiver topic create orders --durab", {"--durability"}),
        ("quiver topic create orders --durability ", {"fsync", "interval", "os"}),
    ],
)
def test_the_shell_is_offered_what_can_come_next(line: str, offered: set[str]) -> None:
    variables = {
        "_QUIVER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
    }
    done = subprocess.run(
        command(), env=environment(**variables), capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == offered
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str) -> None:
    variables = environment(_QUIVER_COMPLETE=f"source_{shell}")
    done = subprocess.run(command(), env=variables, capture_output=True, text=True, check=True)
    assert f"complete_{shell}" in done.stdout


def test_bash_completes_with_what_is_printed(tmp_path: Path) -> None:
    """In a real shell, with ``quiver`` as it is installed."""
    program = tmp_path / "quiver"
    start = " ".join(f"'{part}'" for part in command())
    program.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_QUIVER_COMPLETE=source_bash quiver)"; COMP_WORDS=(quiver que); COMP_CWORD=1; '
        '_quiver_completion quiver; echo "${COMPREPLY[@]}"'
    )
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "queue\n"
