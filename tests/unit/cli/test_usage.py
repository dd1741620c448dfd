"""The command line without a node: help, usage, exit codes and how mistakes are told."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import typer

from quiver import errors
from quiver.cli.main import COMMANDS
from quiver.cli.support.exit_codes import HINTS, ExitCode, Unreachable, run
from quiver.cli.support.logging import set_up_logging
from quiver.config import Logging
from quiver.version import __version__
from tests.paths import REPOSITORY
from tests.serving import app

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("QUIVER_"):
            monkeypatch.delenv(variable)


def ending_of(action: Callable[[], object]) -> int:
    """The exit code of a command that does ``action``."""
    application = typer.Typer(pretty_exceptions_enable=False)
    application.command()(action)
    return run(application, [])


def raising(error: BaseException) -> Callable[[], object]:
    def action() -> None:
        raise error

    return action


def loaded_by_help(command: str) -> set[str]:
    """The modules that a process has loaded once it has shown the help of this command."""
    program = (
        "import sys; from quiver.cli.support.exit_codes import run; from quiver.cli.main import app; "
        f"assert run(app, [*'{command}'.split(), '--help']) == 0; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return set(done.stdout.splitlines()[-1].split())


class TestHelp:
    COMMANDS = (
        [],
        ["serve"],
        ["topic"],
        ["topic", "create"],
        ["topic", "list"],
        ["topic", "describe"],
        ["topic", "alter"],
        ["topic", "delete"],
        ["queue"],
        ["queue", "create"],
        ["queue", "list"],
        ["queue", "describe"],
        ["queue", "alter"],
        ["queue", "seek"],
        ["queue", "delete"],
        ["subscription"],
        ["subscription", "create"],
        ["subscription", "list"],
        ["subscription", "describe"],
        ["subscription", "alter"],
        ["subscription", "seek"],
        ["subscription", "delete"],
        ["publish"],
        ["tail"],
        ["consume"],
        ["peek"],
        ["message"],
        ["cancel"],
        ["purge"],
        ["redrive"],
        ["bench"],
        ["bench", "publish"],
        ["bench", "read"],
        ["bench", "latency"],
        ["plan"],
        ["version"],
    )

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_every_command_has_help(self, command: list[str], capsys: Capture) -> None:
        assert run(app, [*command, "--help"]) == ExitCode.OK
        shown = capsys.readouterr().out
        assert "Usage: quiver" in shown
        assert "<bool>" not in shown, "a flag has no type"

    def test_the_simulator_is_hidden_from_help_and_still_there(self, capsys: Capture) -> None:
        assert run(app, ["--help"]) == ExitCode.OK
        assert "Simulate" not in capsys.readouterr().out
        assert run(app, ["sim", "--help"]) == ExitCode.OK
        assert "Simulate a cluster" in capsys.readouterr().out

    def test_the_version_is_told(self, capsys: Capture) -> None:
        assert run(app, ["--version"]) == ExitCode.OK
        assert capsys.readouterr().out == f"quiver {__version__}\n"

    def test_the_versions_of_formats_are_told(self, capsys: Capture) -> None:
        assert run(app, ["version"]) == ExitCode.OK
        first, _, *rows = capsys.readouterr().out.splitlines()
        assert first == f"quiver {__version__}"
        assert [row.split()[:2] for row in rows[1:3]] == [["entries", "2"], ["checkpoints", "1"]]

    SLOW = ("aiohttp", "asyncio", "numpy", "pyarrow", "quiver.client", "quiver.edge", "structlog")
    """What the client and the server need; help must not load it."""

    @pytest.mark.process
    @pytest.mark.parametrize("command", ["", "topic", "consume", "redrive", "mirror add", "serve"])
    def test_help_loads_neither_client_nor_server(self, command: str) -> None:
        assert loaded_by_help(command) & {*self.SLOW} == set()

    @pytest.mark.process
    def test_help_of_quiver_loads_no_command(self) -> None:
        loaded = loaded_by_help("")
        assert loaded & {"quiver.cli.commands", "quiver.config", "quiver.model", "msgspec"} == set()
        assert "quiver.cli.commands.topic" in loaded_by_help("topic")

    @pytest.mark.process
    def test_text_on_the_command_line_is_taken_without_pydantic(self) -> None:
        """It is what typer checks values with, and it takes longer to load than the rest."""
        arguments = ["publish", "orders", "one", "two", "--header", "a=b", "--delay", "soon"]
        program = (
            "import sys; from quiver.cli.support.exit_codes import run; "
            "from quiver.cli.main import app; run(app, sys.argv[1:]); "
            "sys.exit('pydantic' in sys.modules)"
        )
        for given, is_loaded in (arguments, False), ([*arguments, "--priority", "1"], True):
            done = subprocess.run(
                [sys.executable, "-c", program, *given],
                check=False,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.stderr.startswith("error: 'soon' is not a duration")
            assert done.returncode == is_loaded

    def test_help_of_quiver_says_of_a_command_what_its_own_help_begins_with(self) -> None:
        for name, outline in COMMANDS.items():
            command = outline.load(name)
            said = command.help.splitlines()[0].partition(" (")[0].removesuffix(".") + "."
            assert (command.name, said, command.hidden) == (name, outline.help, outline.is_hidden)

    @pytest.mark.process
    def test_help_costs_little_more_than_what_it_is_drawn_with(self) -> None:
        """Of processor time, against the libraries' alone: so a slow or busy machine counts for both."""

        def taken_s(program: str, *arguments: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-c", program, *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

        libraries = "import typer, rich.console, rich.markdown, rich.panel, rich.table"
        ours = "from quiver.cli.main import main; main()"
        pairs = [(taken_s(ours, "--help"), taken_s(libraries)) for _ in range(3)]
        assert min(help_s / libraries_s for help_s, libraries_s in pairs) < 4


class TestReference:
    PAGE = (REPOSITORY / "docs/reference/cli.md").read_text()
    EXAMPLES = re.findall(
        r"^(?:other-program \| )?quiver (.*?)(?: +#.*| > .*)?$", PAGE, re.MULTILINE
    )

    @pytest.mark.parametrize("example", EXAMPLES)
    def test_every_example_on_the_page_has_flags_that_exist(self, example: str) -> None:
        assert run(app, [*shlex.split(example), "--help"]) == ExitCode.OK

    def test_every_exit_code_is_on_the_page(self) -> None:
        told = re.findall(r"^\| (\d+) \|", self.PAGE, re.MULTILINE)
        assert [int(code) for code in told] == list(ExitCode)


class TestUsage:
    @pytest.mark.parametrize(
        ("command", "error"),
        [
            (["topik"], "No such command 'topik'. Did you mean 'topic'"),
            (["topic", "create"], "Missing argument 'name'."),
            (
                ["topic", "create", "a", "--partitions", "0"],
                "--partitions must be between 1 and 4,096",
            ),
            (["topic", "create", "a", "--durability", "x"], "'fsync', 'interval', 'os'"),
            (
                ["topic", "create", "a", "--retention-age", "x"],
                "--retention-age: 'x' is not a duration",
            ),
            (
                ["topic", "create", "a", "--retention-bytes", "x"],
                "--retention-bytes: 'x' is not a size",
            ),
            (["topic", "create", "a", "--retention-messages", "x"], "'x' is not a whole number"),
            (["topic", "create", "a", "--retention-messages", "0"], "--retention-messages must be"),
            (["topic", "create", "a", "--message-bytes-max", "1TB"], "--message-bytes-max must be"),
            (["topic", "alter", "a"], "nothing to change"),
            (["publish", "a", "x", "--file", "y"], "give payloads or --file, not both"),
            (
                ["publish", "a", "x", "--key", "k", "--key-field", "f"],
                "--key or --key-field, not both",
            ),
            (["publish", "a", "x", "--header", "h"], "'h' is not a header"),
            (["publish", "a", "x", "--priority", "10"], "'--priority'"),
            (["publish", "a", "x", "--delay", "soon"], "'soon' is not a duration"),
            (["tail", "a", "--from", "yesterday"], "--from"),
            (["tail", "a", "--limit", "0"], "'--limit'"),
            (
                ["topic", "create", "a", "--dedup-window", "x"],
                "--dedup-window: 'x' is not a duration",
            ),
            (["queue", "create"], "Missing argument 'name'."),
            (["queue", "create", "a", "--visibility", "x"], "--visibility: 'x' is not a duration"),
            (["queue", "create", "a", "--visibility", "13h"], "visibility must be between"),
            (["queue", "create", "a", "--ordering", "x"], "'none', 'key', 'partition'"),
            (["queue", "create", "a", "--guarantee", "x"], "'at-most-once', 'at-least-once'"),
            (
                ["queue", "create", "a", "--max-deliveries", "-1"],
                "--max-deliveries must be between",
            ),
            (
                ["queue", "create", "a", "--backoff-max", "x"],
                "--backoff-max: 'x' is not a duration",
            ),
            (["queue", "create", "a", "--backoff-min", "1h"], "backoff.max must not be below"),
            (
                ["queue", "create", "a", "--fairness", "x"],
                "fairness must be 'key' or 'headers.NAME'",
            ),
            (
                ["queue", "create", "a", "--dedup-window", "2d"],
                "--dedup-window must be between 0s and 1d, not '2d'",
            ),
            (
                ["queue", "create", "a", "--segment-age", "x"],
                "--segment-age: 'x' is not a duration",
            ),
            (["queue", "alter", "a"], "nothing to change"),
            (["queue", "seek", "a"], "with either --to or --place"),
            (
                ["queue", "seek", "a", "--to", "1", "--place", "a/0=1"],
                "with either --to or --place",
            ),
            (["queue", "seek", "a", "--to", "soon"], "--to: 'soon' is not a position"),
            (["subscription", "create", "a"], "Missing option '--topic'"),
            (["subscription", "create", "a", "-t", "b*!"], "'b*!' is not a topic pattern"),
            (["subscription", "create", "a", "-t", "b", "--from", "x"], "--from"),
            (["subscription", "create", "a", "-t", "b", "--ageing", "x"], "--ageing"),
            (["subscription", "alter", "a"], "nothing to change"),
            (["subscription", "alter", "a", "--session-timeout", "x"], "--session-timeout"),
            (["subscription", "seek", "a", "--place", "b=1"], "is not the offset of a partition"),
            (["subscription", "seek", "a", "--place", "b/0=x"], "write it as orders/0=42"),
            (["consume", "a", "--limit", "0"], "'--limit'"),
            (["consume", "a", "--wait", "x"], "--wait: 'x' is not a duration"),
            (["consume", "a", "--nack", "--no-ack"], "only one of --nack, --reject and --no-ack"),
            (["consume", "a", "--nack", "--reject"], "only one of --nack, --reject and --no-ack"),
            (["consume", "a", "--error", "x"], "--error needs --nack or --reject"),
            (["consume", "a", "--delay", "1s"], "--delay needs --nack"),
            (["consume", "a", "--reject", "--delay", "1s"], "--delay needs --nack"),
            (["peek", "a", "--state", "x"], "'ready', 'delayed', 'leased'"),
            (["peek", "a", "--limit", "10001"], "'--limit'"),
            (["message", "a", "x"], "'x' is not a message id"),
            (["cancel", "a"], "Missing argument"),
            (["cancel", "a", "x"], "'x' is not a message id"),
            (["redrive", "a", "--rate", "0"], "'--rate'"),
            (["redrive", "a", "--limit", "0"], "'--limit'"),
            (["bench", "publish", "--messages", "0"], "'--messages'"),
            (["--wat"], "No such option: --wat"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_a_mistake_gets_one_line_and_exit_code_2(
        self, command: list[str], error: str, capsys: Capture
    ) -> None:
        assert run(app, command) == ExitCode.USAGE
        told = capsys.readouterr()
        assert told.out == ""
        lines = told.err.splitlines()
        assert lines[0].startswith("error: ")
        assert error in lines[0]
        assert all(line.startswith("hint: ") for line in lines[1:])

    @pytest.mark.parametrize(
        "command",
        [
            ["queue", "create", "a"],
            ["subscription", "create", "a", "-t", "b"],
            ["purge", "a"],
            ["redrive", "a"],
        ],
        ids=" ".join,
    )
    def test_a_mistake_in_a_filter_is_shown_in_its_place(
        self, command: list[str], capsys: Capture
    ) -> None:
        assert run(app, [*command, "--filter", "key = 'a' and priority >= 'x'"]) == ExitCode.USAGE
        told = capsys.readouterr()
        assert told.out == ""
        error, text, caret = told.err.splitlines()
        assert error.startswith("error: --filter: priority is a whole number")
        assert text == "  key = 'a' and priority >= 'x'"
        assert caret.index("^") == text.index("'x'")

    def test_without_arguments_the_help_is_shown(self, capsys: Capture) -> None:
        assert run(app, []) == ExitCode.USAGE
        told = capsys.readouterr()
        assert "Usage: quiver" in told.out
        assert told.err == ""


class TestEndings:
    def test_success(self) -> None:
        assert ending_of(lambda: None) == ExitCode.OK

    ONE_LINE = tuple({*errors.error_classes().values()} - {errors.InvalidFilter})
    """A filter's shows its place instead, see ``TestUsage``."""

    @pytest.mark.parametrize(
        "kind", sorted(ONE_LINE, key=lambda kind: kind.code), ids=lambda kind: kind.code
    )
    def test_every_quiver_error_is_one_line(
        self, kind: type[errors.QuiverError], capsys: Capture
    ) -> None:
        wrong_use = issubclass(kind, errors.InvalidSetting)
        expected = ExitCode.USAGE if wrong_use else ExitCode.FAILED
        assert ending_of(raising(kind("it\nbroke"))) == expected
        first, *rest = capsys.readouterr().err.splitlines()
        assert first == ("error: it" if wrong_use else "error: it broke")
        assert rest == ["error: broke"] if wrong_use else len(rest) <= 1

    @pytest.mark.parametrize(("kind", "hint"), HINTS, ids=lambda value: str(value)[:20])
    def test_known_errors_carry_a_hint(
        self, kind: type[errors.QuiverError], hint: str, capsys: Capture
    ) -> None:
        ending_of(raising(kind("broken")))
        assert capsys.readouterr().err == f"error: broken\nhint: {hint}\n"

    def test_a_node_that_does_not_answer(self, capsys: Capture) -> None:
        assert ending_of(raising(Unreachable("no node"))) == ExitCode.UNREACHABLE
        assert capsys.readouterr().err.startswith("error: no node\nhint: start a node")

    def test_declining_a_question(self, capsys: Capture) -> None:
        assert ending_of(raising(typer.Abort())) == ExitCode.FAILED
        assert capsys.readouterr().err == "aborted: nothing was changed\n"

    def test_what_may_succeed_later_says_so(self, capsys: Capture) -> None:
        ending_of(raising(errors.DiskFull()))
        assert "may be temporary; run the command again" in capsys.readouterr().err

    def test_a_certificate_that_is_not_trusted_is_no_matter_of_tokens(
        self, capsys: Capture
    ) -> None:
        ending_of(raising(errors.Unauthenticated("not trusted", certificate="a:1")))
        assert capsys.readouterr().err == "error: not trusted\n"

    def test_an_interruption(self, capsys: Capture) -> None:
        assert ending_of(raising(KeyboardInterrupt())) == ExitCode.INTERRUPTED
        assert "Traceback" not in capsys.readouterr().err

    def test_a_file_that_is_not_there(self, capsys: Capture) -> None:
        assert ending_of(lambda: os.listdir("/nowhere/at/all")) == ExitCode.FAILED
        assert capsys.readouterr().err == "error: /nowhere/at/all: No such file or directory\n"

    def test_a_fault_of_quiver_shows_no_traceback_unless_asked(
        self, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert ending_of(raising(ZeroDivisionError("by zero"))) == ExitCode.FAILED
        told = capsys.readouterr().err
        assert told.startswith("error: unexpected ZeroDivisionError: by zero\nhint: ")
        assert "Traceback" not in told
        monkeypatch.setenv("QUIVER_DEBUG", "1")
        ending_of(raising(ZeroDivisionError("by zero")))
        assert "Traceback" in capsys.readouterr().err

    @pytest.mark.process
    def test_a_reader_that_has_gone_is_no_error(self) -> None:
        program = "from quiver.cli.main import main; main()"
        child = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--print-config"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.close()
        assert child.stderr is not None
        told = child.stderr.read()
        child.stderr.close()
        assert (child.wait(60), told) == (0, b"")


class TestServeSettings:
    def test_print_config_prints_toml(self, capsys: Capture) -> None:
        assert run(app, ["serve", "--print-config"]) == ExitCode.OK
        assert set(tomllib.loads(capsys.readouterr().out)) >= {"logging", "limits"}

    def test_check_config_tells_each_value_and_its_origin(
        self, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "quiver.toml"
        path.write_text('name = "a"\n')
        monkeypatch.setenv("QUIVER_LIMITS_REQUESTS_MAX", "5")
        flags = ["--native", "0.0.0.0:1", "--insecure", "--set", "limits.idle_timeout_s=1m"]
        assert run(app, ["serve", "--check-config", "--config", str(path), *flags]) == ExitCode.OK
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == ["ok"]
        for expected in (
            ["name", '"a"', f"{path}:1"],
            ["native", '"0.0.0.0:1"', "--native"],
            ["limits.requests_max", "5", "QUIVER_LIMITS_REQUESTS_MAX"],
            ["limits.idle_timeout_s", "60", "--set"],
            ["data", '"./data"', "default"],
        ):
            assert expected in lines

    def test_check_config_lists_every_mistake_and_exits_with_2(self, capsys: Capture) -> None:
        flags = ["--native", "x", "--set", "limit.requests_max=5", "--log-level", "loud"]
        assert run(app, ["serve", "--check-config", *flags]) == ExitCode.USAGE
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(":")[1] for line in lines] == [" --set", " --native", " --log-level"]

    def test_a_set_flag_without_a_value(self, capsys: Capture) -> None:
        assert run(app, ["serve", "--check-config", "--set", "name"]) == ExitCode.USAGE
        assert capsys.readouterr().err == "error: --set: write 'name' as NAME=VALUE\n"


class TestLogging:
    def test_json_lines_hold_the_fields(self) -> None:
        stream = io.StringIO()
        set_up_logging(Logging(), stream)
        structlog.get_logger().info("hello", topic="orders")
        logging.getLogger("other").warning("from %s", "elsewhere")
        first, second = map(json.loads, stream.getvalue().splitlines())
        assert (first["message"], first["topic"], first["level"]) == ("hello", "orders", "info")
        assert (second["message"], second["level"]) == ("from elsewhere", "warning")

    def test_pretty_lines_are_for_people(self) -> None:
        stream = io.StringIO()
        set_up_logging(Logging(format="pretty"), stream)
        structlog.get_logger().info("hello", topic="orders")
        assert "hello" in stream.getvalue()
        assert "topic=orders" in stream.getvalue()
        assert "{" not in stream.getvalue()

    def test_lines_below_the_level_are_left_out(self) -> None:
        stream = io.StringIO()
        set_up_logging(Logging(level="error"), stream)
        structlog.get_logger().warning("hello")
        logging.getLogger("other").warning("hello")
        assert stream.getvalue() == ""

    def test_an_exception_is_part_of_its_line(self) -> None:
        stream = io.StringIO()
        set_up_logging(Logging(), stream)
        try:
            raise ValueError("odd")
        except ValueError:
            structlog.get_logger().exception("failed")
        (line,) = stream.getvalue().splitlines()
        assert "ValueError: odd" in json.loads(line)["exception"]


@pytest.mark.process
def test_a_node_has_no_highlighter_in_memory() -> None:
    loads = "from quiver.cli.commands.serve import load_structlog; load_structlog(); import quiver.edge.node"
    check = f"import sys; {loads}; import rich; sys.exit('pygments' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
