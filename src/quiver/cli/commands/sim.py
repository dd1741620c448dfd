"""``quiver sim``: simulate a cluster with faults, in this process and on virtual time.

It is for developers of Quiver, and hidden from ``quiver --help``. A seed always gives the same run.
"""

from __future__ import annotations

import random
import sys
from typing import Annotated

import typer

from quiver.cli.support.output import print_json, print_line

_SEEDS = 1 << 31


def sim(
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, max=_SEEDS, help="Run this seed and print its events."),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count", min=1, max=10_000_000, help="Number of seeds to run, starting at --seed."
        ),
    ] = 1,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, max=1e6, help="Run new seeds for this many seconds."),
    ] = None,
    mirrors: Annotated[
        bool,
        typer.Option("--mirrors", help="Simulate two clusters, of which one copies the other."),
    ] = False,
    transactions: Annotated[
        bool,
        typer.Option("--transactions", help="Simulate transactions in every seed."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each seed.")
    ] = False,
) -> None:
    """Simulate a cluster with faults, from a seed (for developers of Quiver).

    The exit code is 1 if a seed breaks a guarantee.
    """
    from quiver.testing.simulator.search import (  # noqa: PLC0415
        DEFAULTS,
        MIRRORS,
        TRANSACTIONS,
        outcomes,
        shortest,
        story_lines,
    )

    if mirrors and transactions:
        raise typer.BadParameter("give --mirrors or --transactions")
    settings = MIRRORS if mirrors else TRANSACTIONS if transactions else DEFAULTS
    first = seed if seed is not None else random.SystemRandom().randrange(_SEEDS)
    seeds, failed, virtual_seconds = 0, 0, 0.0
    wanted = None if seconds is not None else count
    for outcome in outcomes(first, count=wanted, seconds=seconds, settings=settings):
        seeds += 1
        virtual_seconds += outcome.virtual_seconds
        failed += bool(outcome.findings)
        if as_json:
            print_json({"seed": outcome.seed, "findings": outcome.findings}, indent=False)
        elif outcome.findings:
            print_line(f"seed {outcome.seed} fails:")
            for line in story_lines(shortest(outcome, settings)):
                print_line(f"  {line}")
        elif count == 1 and seconds is None:
            for line in story_lines(outcome):
                print_line(line)
        sys.stdout.flush()
    if not as_json:
        print_line(
            f"{seeds:,} seeds from {first} on, {failed:,} failed, "
            f"{virtual_seconds / 3600:.2f} simulated hours"
        )
    if failed:
        raise typer.Exit(1)
