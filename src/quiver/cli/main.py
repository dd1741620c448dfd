"""The ``quiver`` command: its groups, its commands and its global options.

Nothing is imported before it is needed: a command comes when it is used, the client library with the
first connection, the server with ``quiver serve``.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from quiver.cli.support.exit_codes import run
from quiver.cli.support.lazy_group import LazyCommand, lazy_group
from quiver.cli.support.output import Json, print_json, print_line, print_table
from quiver.cli.support.session import DEFAULT_URL
from quiver.version import __version__

COMMANDS = {
    name: LazyCommand(f"quiver.cli.{home}", text, name == "sim")
    for name, home, text in (
        ("serve", "commands.serve:serve", "Run a node."),
        ("topic", "commands.topic:app", "Create, list, describe, alter and delete topics."),
        ("queue", "commands.queue:app", "Create, list, describe, alter, seek and delete queues."),
        (
            "subscription",
            "commands.subscription:app",
            "Create, list, describe, alter, seek and delete subscriptions.",
        ),
        (
            "publish",
            "commands.publish:publish",
            "Publish messages from arguments, a file or standard input.",
        ),
        ("tail", "commands.tail:tail", "Print the messages of a topic."),
        (
            "consume",
            "commands.consume:consume",
            "Receive messages, print and acknowledge them, until Ctrl-C.",
        ),
        (
            "peek",
            "commands.peek:peek",
            "Print the first pending messages without receiving them.",
        ),
        (
            "message",
            "commands.message:message",
            "Show a message and its state in each subscription.",
        ),
        ("cancel", "commands.cancel:cancel", "Cancel delayed messages that are not due yet."),
        (
            "purge",
            "commands.purge:purge",
            "Discard the pending messages of a queue or subscription, leased ones too.",
        ),
        (
            "redrive",
            "commands.redrive:redrive",
            "Send dead letters back to their queue or subscription.",
        ),
        (
            "transaction",
            "transaction.commands:app",
            "List, describe and abort transactions.",
        ),
        ("cluster", "commands.cluster:app", "Run, inspect and change a cluster."),
        (
            "top",
            "commands.top:top",
            "Watch a node: rates, lag, age of the oldest message, latency and alerts.",
        ),
        ("token", "commands.token:app", "Create, list and revoke tokens."),
        (
            "backup",
            "backup.commands:app",
            "Take, list, verify and restore backups of a running cluster.",
        ),
        (
            "mirror",
            "mirror.commands:app",
            "Copy topics from another cluster, and promote the copies.",
        ),
        (
            "doctor",
            "commands.doctor:doctor",
            "Check settings and machine: security, data folder, disk, clock, limits, ports and versions.",
        ),
        ("bench", "commands.bench:app", "Measure a node's publish rate, read rate and latency."),
        (
            "plan",
            "commands.plan:plan",
            "Compute the nodes, partitions and disks that a workload needs, and its first bottleneck.",
        ),
        ("pipeline", "commands.pipeline:app", "Run data pipelines on Spark."),
        ("sim", "commands.sim:sim", "Simulate a cluster with faults, from a seed."),
    )
}
"""In the order of the help. Each sentence is also the first of the command's own help."""

app = typer.Typer(
    name="quiver",
    cls=lazy_group(COMMANDS),
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


@app.command()
def version(json: Json = False) -> None:
    """Print the version, and the versions of the formats and the protocol."""
    from quiver.formats import EXCHANGED, REBUILT, STORED  # noqa: PLC0415 - help does not need it

    formats = (*STORED, *REBUILT, *EXCHANGED)
    if json:
        newest = {one.name: one.newest for one in formats}
        print_json({"version": __version__, "formats": newest})
        return
    print_line(f"quiver {__version__}")
    print_line("")
    print_table(
        ("FORMAT", ">VERSION", "MEANING"), [(one.name, one.newest, one.meaning) for one in formats]
    )


def main() -> None:
    if os.getpid() == 1:
        # Of a container. Linux ignores signals to process 1 that have no handler.
        signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(app))


def _terminate(number: int, _frame: object) -> NoReturn:
    """What every other process does at a signal that it does not handle."""
    os._exit(128 + number)
