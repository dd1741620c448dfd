"""The ``quiver`` command: its groups, its commands and its global options.

Nothing slow is imported before a command needs it: the client library comes with the first
connection, the server with ``quiver serve``.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from quiver.cli.backup import commands as backup
from quiver.cli.commands import (
    bench,
    cancel,
    cluster,
    consume,
    doctor,
    message,
    peek,
    pipeline,
    plan,
    publish,
    purge,
    queue,
    redrive,
    serve,
    sim,
    subscription,
    tail,
    token,
    top,
    topic,
)
from quiver.cli.support.exit_codes import run
from quiver.cli.support.lazy_group import add_noun
from quiver.cli.support.output import Json, print_json, print_line
from quiver.cli.support.plain_help import PlainGroup
from quiver.cli.support.session import DEFAULT_URL
from quiver.version import __version__

app = typer.Typer(
    name="quiver",
    cls=PlainGroup,
    help="Quiver: queues, topics and streams on one Arrow log.",
    epilog="Exit codes: 0 ok, 1 failed, 2 wrong usage or settings, 3 no node answers, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"quiver {__version__}")
        raise typer.Exit


@app.callback()
def options(
    url: Annotated[
        str,
        typer.Option("--url", metavar="URL", envvar="QUIVER_URL", help="URL of the node."),
    ] = DEFAULT_URL,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Quiver: queues, topics and streams on one Arrow log."""


app.command()(serve.serve)
add_noun(app, topic.app, "topic")
add_noun(app, queue.app, "queue")
add_noun(app, subscription.app, "subscription")
app.command()(publish.publish)
app.command()(tail.tail)
app.command()(consume.consume)
app.command()(peek.peek)
app.command()(message.message)
app.command()(cancel.cancel)
app.command()(purge.purge)
app.command()(redrive.redrive)
add_noun(app, cluster.app, "cluster")
app.command()(top.top)
add_noun(app, token.app, "token")
add_noun(app, backup.app, "backup")
app.command()(doctor.doctor)
add_noun(app, bench.app, "bench")
app.command()(plan.plan)
add_noun(app, pipeline.app, "pipeline")
app.command(hidden=True)(sim.sim)


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        print_json({"version": __version__})
    else:
        _print_version(True)


def main() -> None:
    if os.getpid() == 1:
        # Of a container. Linux ignores signals to process 1 that have no handler.
        signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(app))


def _terminate(number: int, _frame: object) -> NoReturn:
    """What every other process does at a signal that it does not handle."""
    os._exit(128 + number)
