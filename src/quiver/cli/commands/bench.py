"""``quiver bench``: measure a node's publish rate, read rate and latency.

This module has the flags; ``quiver.cli.bench.run`` measures. ``--messages`` and ``--seconds`` bound each run.
``quiver bench --save FILE`` writes the measurement that ``quiver plan`` reads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.support.output import print_json, print_line
from quiver.cli.support.session import UrlFlag
from quiver.errors import InvalidSetting
from quiver.model.topic import PARTITIONS_MAX, Acks
from quiver.model.units import size_bytes

if TYPE_CHECKING:
    from quiver.cli.bench.run import BenchOptions

MESSAGES_MAX = 100_000_000
SECONDS_MAX = 3600.0
SIZE_MAX = 1 << 20
STAMP_BYTES = 24
"""Smallest message of ``bench latency``."""

MessagesFlag = Annotated[
    int, typer.Option("--messages", "-n", min=1, max=MESSAGES_MAX, help="Number of messages.")
]
SizeFlag = Annotated[
    str, typer.Option("--size", metavar="SIZE", help="Payload size of a message, as in 1KB.")
]
BatchFlag = Annotated[
    int, typer.Option("--batch", min=1, max=1 << 20, help="Most messages in a batch.")
]
RateFlag = Annotated[
    float | None,
    typer.Option(
        "--rate",
        min=0.1,
        max=1e9,
        help="Messages per second. Default: as fast as possible.",
    ),
]
TopicFlag = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="NAME",
        help="Existing topic to use. Default: create one and delete it afterwards.",
    ),
]
PartitionsFlag = Annotated[
    int,
    typer.Option(
        "--partitions",
        min=1,
        max=PARTITIONS_MAX,
        help="Number of partitions of the created topic.",
    ),
]
AcksFlag = Annotated[
    Acks | None,
    typer.Option("--acks", help="Which replicas must store a message before it is confirmed."),
]
SecondsFlag = Annotated[
    float, typer.Option("--seconds", min=0.1, max=SECONDS_MAX, help="Stop after this many seconds.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def everything(
    context: typer.Context,
    save: Annotated[
        str | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Run all measurements and write them to FILE for quiver plan.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0.1,
            max=60,
            help="With --save: seconds that each run takes.",
        ),
    ] = 2.0,
    disk: Annotated[
        str | None,
        typer.Option(
            "--disk",
            metavar="DIR",
            help="With --save: folder on the disk to measure. Default: the folder of FILE.",
        ),
    ] = None,
    json: JsonFlag = False,
    url: UrlFlag = None,
) -> None:
    """Measure a node's publish rate, read rate and latency."""
    if context.invoked_subcommand is not None:
        if save is not None or disk is not None:
            raise InvalidSetting("--save and --disk work only without publish, read or latency")
        if json or url is not None:
            raise InvalidSetting("give --json and --url after publish, read or latency")
        return
    if save is None:
        raise InvalidSetting(
            "choose what to measure: publish, read, latency, or everything with --save FILE"
        )
    from quiver.cli.bench.save import take_measurement  # noqa: PLC0415 - not for help
    from quiver.cli.plan.measurement import save as save_measurement  # noqa: PLC0415

    folder = disk or os.path.dirname(os.path.abspath(save))
    measured = take_measurement(context, folder, seconds)
    save_measurement(measured, save)
    if json:
        print_json(measured)
    else:
        print_line(
            f"saved as {save}; plan with: quiver plan --measurement {save} --rate … --size …"
        )


app = typer.Typer(
    no_args_is_help=True,
    callback=everything,
    invoke_without_command=True,
    help="Measure a node's publish rate, read rate and latency.",
)


@app.command()
def publish(
    context: typer.Context,
    messages: MessagesFlag = 100_000,
    size: SizeFlag = "100",
    batch: BatchFlag = 10_000,
    rate: RateFlag = None,
    topic: TopicFlag = None,
    partitions: PartitionsFlag = 1,
    acks: AcksFlag = None,
    seconds: SecondsFlag = 60.0,
    json: JsonFlag = False,
    url: UrlFlag = None,
) -> None:
    """Measure the publish rate."""
    from quiver.cli.bench.run import bench_publish, measure  # noqa: PLC0415 - not for help

    measure(context, _options(context), bench_publish).print(json=json)


@app.command()
def read(
    context: typer.Context,
    messages: MessagesFlag = 100_000,
    size: SizeFlag = "100",
    batch: BatchFlag = 10_000,
    topic: TopicFlag = None,
    partitions: PartitionsFlag = 1,
    seconds: SecondsFlag = 60.0,
    json: JsonFlag = False,
    url: UrlFlag = None,
) -> None:
    """Measure the read rate, from the beginning of the topic."""
    from quiver.cli.bench.run import bench_publish, bench_read, measure  # noqa: PLC0415 - as above

    prepare = None if topic else bench_publish
    measure(context, _options(context), bench_read, prepare).print(json=json)


@app.command()
def latency(
    context: typer.Context,
    messages: MessagesFlag = 5_000,
    size: SizeFlag = "100",
    batch: BatchFlag = 10_000,
    rate: RateFlag = 1_000.0,
    topic: TopicFlag = None,
    partitions: PartitionsFlag = 1,
    acks: AcksFlag = None,
    seconds: SecondsFlag = 60.0,
    json: JsonFlag = False,
    url: UrlFlag = None,
) -> None:
    """Measure the time from publish to delivery to a reader."""
    from quiver.cli.bench.run import bench_latency, measure  # noqa: PLC0415 - as above

    measure(context, _options(context, size_min=STAMP_BYTES), bench_latency).print(json=json)


def _options(context: typer.Context, size_min: int = 0) -> BenchOptions:
    from quiver.cli.bench.run import BenchOptions  # noqa: PLC0415 - not for help

    given = context.params
    size = size_bytes(given["size"])
    if not size_min <= size <= SIZE_MAX:
        raise InvalidSetting(f"--size must be between {size_min:,} and {SIZE_MAX:,}, not {size:,}")
    acks = given.get("acks")
    return BenchOptions(
        messages=given["messages"],
        size=size,
        batch=given["batch"],
        rate=given.get("rate"),
        topic=given["topic"],
        partitions=given["partitions"],
        acks=None if acks is None else str(acks),
        seconds=given["seconds"],
    )
