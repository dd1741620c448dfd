"""``quiver serve``: run a node until SIGTERM or SIGINT.

This is the only command that imports the server. Settings come from defaults, ``--config``, the
environment and flags, in this order. All mistakes in them are reported before anything is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from quiver.cli.support.exit_codes import run
from quiver.cli.support.output import print_line, print_table
from quiver.cli.support.ready_file import ReadyFile
from quiver.config import Address, Given, LoadedConfig, NodeConfig, load_config
from quiver.config.document import resulting_settings, toml_document
from quiver.config.processes import config_of, is_shared, place_of, process_count
from quiver.errors import InvalidSetting, QuiverError

_CLOSE_S_MAX = 45.0
"""More than a node's own bounds after it has drained: closing its logs."""
FLAGS = {
    "name": "--name",
    "data": "--data",
    "http": "--http",
    "native": "--native",
    "role": "--role",
    "upstream": "--upstream",
    "processes": "--processes",
    "logging.level": "--log-level",
    "logging.format": "--log-format",
    "security.authentication": "--authentication",
    "security.key_file": "--key-file",
    "security.insecure": "--insecure",
}


def serve(
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="QUIVER_CONFIG",
            help="Read settings from this TOML file.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Data folder of the node.")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Address for HTTP and WebSocket. Port 0 takes a free port; off disables HTTP.",
        ),
    ] = None,
    native: Annotated[
        str | None,
        typer.Option(
            "--native",
            metavar="HOST:PORT",
            help="Address for the native protocol, which clients use. Port 0 takes a free port.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the node.")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="broker or forwarder. A forwarder stores nothing and serves clients for --upstream.",
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", metavar="URL", help="URL of the nodes that a forwarder serves."),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            "--processes",
            metavar="N",
            help="Number of processes that serve the data folder together; auto: one for each core.",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            help="Lowest level to log: debug, info, warning or error.",
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format",
            metavar="FORMAT",
            help="Log format: auto, pretty or json.",
        ),
    ] = None,
    authentication: Annotated[
        bool, typer.Option("--authentication", help="Require a token or a client certificate.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow other machines to connect without authentication.",
        ),
    ] = False,
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="File with the key of the node or cluster: its metadata holds no secret without it.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set any setting. May be repeated."),
    ] = None,
    ready_file: Annotated[
        str | None,
        typer.Option(
            "--ready-file",
            metavar="PATH",
            help="When the node listens, write its process id and addresses to this file as JSON.",
        ),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Check the settings, print them and exit.")
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config",
            help="Print every setting as commented TOML and exit.",
        ),
    ] = False,
) -> None:
    """Run a node."""
    if print_config:
        print_line(toml_document().rstrip("\n"))
        return
    flags = flags_of(
        {
            "name": name,
            "data": data,
            "http": http,
            "native": native,
            "role": role,
            "upstream": upstream,
            "processes": "0" if processes == "auto" else processes,
            "logging.level": log_level,
            "logging.format": log_format,
            "security.authentication": "true" if authentication else None,
            "security.insecure": "true" if insecure else None,
            "security.key_file": key_file,
        },
        settings or [],
    )
    loaded = load_config(path=config, environment=os.environ, flags=flags)
    _require_startable(loaded.config)
    if check_config:
        _print_settings(loaded)
        return
    if is_shared(loaded.config):
        _run_processes(loaded.config, ready_file)
    else:
        _run(loaded.config, ready_file)


def flags_of(given: dict[str, str | None], pairs: list[str]) -> list[Given]:
    """The settings that the flags give."""
    flags = []
    for pair in pairs:
        setting, equals, value = pair.partition("=")
        if not equals:
            raise InvalidSetting(f"--set: write {pair!r} as NAME=VALUE")
        flags.append(Given(setting=setting, value=value, origin="--set"))
    for setting, flag in FLAGS.items():
        if (text := given.get(setting)) is not None:
            flags.append(Given(setting=setting, value=text, origin=flag))
    return flags


def _require_startable(config: NodeConfig) -> None:
    load_structlog()
    from quiver.edge.preflight import require_startable  # noqa: PLC0415 - the server is loaded late

    require_startable(config)


def _print_settings(loaded: LoadedConfig) -> None:
    print_line("ok")
    print_table(("SETTING", "VALUE", "FROM"), list(resulting_settings(loaded)))


def _run(config: NodeConfig, ready_file: str | None) -> None:
    import uvloop  # noqa: PLC0415 - the server is loaded only to be run

    from quiver.cli.support.logging import set_up_logging  # noqa: PLC0415
    from quiver.edge.run import run_node  # noqa: PLC0415

    set_up_logging(config.logging)

    file = None if ready_file is None else ReadyFile(ready_file)

    def on_ready(native: Address | None, http: Address | None) -> None:
        if file is not None:
            file.write(native, http)
        if config.logging.format != "json":
            _say(_welcome(native, http, config))

    with contextlib.nullcontext() if file is None else file:
        try:
            uvloop.run(run_node(config, on_ready))
        except OSError as error:
            raise _explained(error, config) from error


def _run_processes(config: NodeConfig, ready_file: str | None) -> None:
    """Run several nodes over one data folder, each a process."""
    import gc  # noqa: PLC0415 - the server is loaded only to be run

    import uvloop  # noqa: PLC0415

    load_structlog()
    from quiver.cli.serve.shared_ports import SharedPorts  # noqa: PLC0415
    from quiver.cli.serve.supervisor import Supervisor, in_child  # noqa: PLC0415
    from quiver.cli.support.logging import set_up_logging  # noqa: PLC0415
    from quiver.edge.run import run_node  # noqa: PLC0415
    from quiver.edge.shared_folder import locked_folder, prepare_folder  # noqa: PLC0415

    set_up_logging(config.logging)
    count = process_count(config)
    file = None if ready_file is None else ReadyFile(ready_file)
    with (
        locked_folder(config),
        SharedPorts(config, count) as ports,
        contextlib.nullcontext() if file is None else file,
    ):
        shared = ports.within(config)

        def work(number: int, tell_ready: Callable[[], None]) -> int:
            set_up_logging(config.logging, process=number)
            own = config_of(shared, number, count, ports.own[number])
            node = run_node(own, lambda *_: tell_ready(), place_of(shared, number, count))
            return run(lambda **_: uvloop.run(node))

        def on_ready() -> None:
            if file is not None:
                file.write(ports.native, ports.http)
            if config.logging.format != "json":
                _say(_welcome(ports.native, ports.http, config))

        code = in_child(lambda: run(lambda **_: uvloop.run(prepare_folder(shared, count))))
        if not code:
            gc.collect()
            gc.freeze()
            stop_s_max = config.limits.drain_timeout_s + _CLOSE_S_MAX
            code = Supervisor(count, work, on_ready=on_ready, stop_s_max=stop_s_max).run()
    if code:
        raise typer.Exit(code)


def load_structlog() -> None:
    """Load it without rich, which would bring pygments, 12 MB in all, for tracebacks in colour."""
    is_hidden = "rich" not in sys.modules
    if is_hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import_module("structlog")
    finally:
        if is_hidden:
            del sys.modules["rich"]


def _say(lines: list[str]) -> None:
    """Print to standard output (standard error carries the log). A closed output is ignored."""
    with contextlib.suppress(OSError):
        print(*lines, sep="\n", flush=True)


def _welcome(native: Address | None, http: Address | None, config: NodeConfig) -> list[str]:
    """The node's addresses, and commands to try."""
    is_secure = bool(config.security.tls_certificate)
    lines = [] if native is None else _native_examples(native, config, is_secure)
    if http is not None:
        url = f"{'https' if is_secure else 'http'}://{http}"
        lines.append(
            f"HTTP is at {url}, the console at {url}/console, the API reference at {url}/docs"
        )
    return lines


def _native_examples(address: Address, config: NodeConfig, is_secure: bool) -> list[str]:
    at_default = address.port == NodeConfig().native.port
    scheme = "quivers" if is_secure else "quiver"
    url = "" if at_default and not is_secure else f"--url {scheme}://{address} "
    token = Path(config.data, "admin.token")
    needs_token = config.security.authentication and token.exists()
    return [
        f"Quiver listens on {scheme}://{address} (stop it with Ctrl-C). Try:",
        *([f"  export QUIVER_TOKEN=$(cat {shlex.quote(str(token))})"] if needs_token else []),
        f"  quiver {url}topic create orders --partitions 4",
        f"""  quiver {url}publish orders '{{"id": 1}}' --key customer-7""",
        f"  quiver {url}tail orders --follow",
    ]


def _explained(error: OSError, config: NodeConfig) -> Exception:
    address, flag = _address_in(error, config)
    if error.errno == errno.EADDRINUSE:
        return QuiverError(
            f"cannot listen on {address}: the address is in use; choose another with {flag}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return QuiverError(
            f"cannot listen on {address}: this machine has no such address; choose another with {flag}"
        )
    if error.errno == errno.EACCES and error.filename is None:
        return QuiverError(
            f"cannot listen on {address}: permission denied; choose another port with {flag}"
        )
    return error


def _address_in(error: OSError, config: NodeConfig) -> tuple[Address, str]:
    """The address that could not be bound, and its flag. The error's text names the address."""
    http = config.http
    if http is not None and f"'{http.host}', {http.port}" in str(error):
        return http, "--http"
    return config.native, "--native"
