"""How a command ends: its exit code, and one line on standard error if it fails.

Every exception of a command passes through ``run``. A traceback appears only with
``QUIVER_DEBUG=1``. The exit codes are public.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum

import typer

from quiver.errors import (
    BackupNotFound,
    FolderInUse,
    InvalidFilter,
    InvalidSetting,
    MirrorNotFound,
    NodeNotFound,
    NotACluster,
    OffsetOutOfRange,
    PermissionDenied,
    QuiverError,
    StaleReceipt,
    SubscriptionExists,
    SubscriptionNotFound,
    TokenNotFound,
    TopicExists,
    TopicNotFound,
    Unauthenticated,
)


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    """The command line or a setting is wrong; nothing was done."""
    UNREACHABLE = 3
    """No node answers at the address."""
    INTERRUPTED = 130


class Unreachable(Exception):
    """No node answers at the address. This is not a ``QuiverError``: no node sent it."""


HINTS: tuple[tuple[type[QuiverError], str], ...] = (
    (TopicNotFound, "list the topics with: quiver topic list"),
    (TopicExists, "--if-not-exists accepts an existing topic that has the same settings"),
    (SubscriptionNotFound, "list them with: quiver queue list; quiver subscription list"),
    (SubscriptionExists, "--if-not-exists accepts an existing one that has the same settings"),
    (StaleReceipt, "give more time with a longer --visibility"),
    (FolderInUse, "stop the other node, or choose another folder with --data"),
    (
        Unauthenticated,
        "set QUIVER_TOKEN; the node's first token is in the file admin.token of its data folder",
    ),
    (
        PermissionDenied,
        "an admin creates a token with that grant: quiver token create NAME --grant GRANT",
    ),
    (TokenNotFound, "list the tokens with: quiver token list"),
    (MirrorNotFound, "list the mirrors with: quiver mirror list"),
    (NodeNotFound, "list the nodes with: quiver cluster nodes"),
    (NotACluster, "start a cluster on this machine with: quiver cluster up --nodes 3"),
    (BackupNotFound, "list the backups of a place with: quiver backup list --from PLACE"),
    (OffsetOutOfRange, "use earliest for the first message, latest for the end"),
)


def run(application: Callable[..., object], arguments: Sequence[str] | None = None) -> int:
    """Run the application, report its errors and return the exit code."""
    try:
        code = application(args=arguments, prog_name="quiver", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as end:
        # typer turns a broken pipe into an exit of its own
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        _silence_stdout()
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except typer.Abort:
        tell("aborted: nothing was changed")
        return ExitCode.FAILED
    except Exception as error:
        if os.environ.get("QUIVER_DEBUG"):
            traceback.print_exc()
        return _report(error)
    return code if isinstance(code, int) else ExitCode.OK


def tell(*lines: str) -> None:
    """Print lines on standard error."""
    try:
        for line in lines:
            print(line, file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        pass  # nobody is there to read it, and the exit code still says it


def _report(error: Exception) -> ExitCode:
    if isinstance(error, typer.TyperException):
        return _report_usage(error)
    if isinstance(error, QuiverError):
        return _report_quiver_error(error)
    if isinstance(error, Unreachable):
        tell(
            f"error: {_one_line(str(error))}",
            "hint: start a node with: quiver serve; or give its address with --url",
        )
        return ExitCode.UNREACHABLE
    if isinstance(error, OSError):
        tell(f"error: {_described(error)}")
        return ExitCode.FAILED
    tell(
        f"error: unexpected {type(error).__name__}: {_one_line(str(error))}",
        "hint: this is a bug in Quiver; QUIVER_DEBUG=1 shows the traceback",
    )
    return ExitCode.FAILED


def _report_usage(error: typer.TyperException) -> ExitCode:
    message = error.format_message()
    if message:  # an empty one means that the help was shown instead
        tell(f"error: {_one_line(message).removeprefix('Invalid value: ')}")
        context = getattr(error, "ctx", None)
        if context is not None:
            tell(f"hint: see {context.command_path} --help")
    return ExitCode.USAGE


def _report_quiver_error(error: QuiverError) -> ExitCode:
    if isinstance(error, InvalidSetting):
        first, *rest = error.message.splitlines()
        tell(f"error: {first}", *(f"error: {line}" for line in rest))
        return ExitCode.USAGE
    if isinstance(error, InvalidFilter):
        first, *place = error.message.splitlines()
        tell(f"error: --filter: {first}", *place)
        return ExitCode.USAGE
    tell(f"error: {_one_line(error.message)}")
    if error.details.keys() & {"certificate", "backup"}:  # the error says itself what helps
        return ExitCode.FAILED
    for kind, hint in HINTS:
        if isinstance(error, kind):
            tell(f"hint: {hint}")
            break
    else:
        if error.retryable:
            tell("hint: this may be temporary; run the command again")
    return ExitCode.FAILED


def _described(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _silence_stdout() -> None:
    """Whoever read the output has gone; let the interpreter flush the rest into nothing."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.__stdout__.fileno() if sys.__stdout__ else 1)
    os.close(nothing)
