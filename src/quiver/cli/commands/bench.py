"""``quiver bench``: how fast a node publishes and reads, and how long a message takes.

The runs are in ``bench_run``; here are their flags. Every run is bounded by ``--messages`` and by
``--seconds``. ``quiver bench --save FILE`` takes the measurement that ``quiver plan`` begins with.
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
"""What a message of ``bench latency`` holds at least."""

MessagesFlag = Annotated[
    int, typer.Option("--messages", "-n", min=1, max=MESSAGES_MAX, help="How many messages.")
]
SizeFlag = Annotated[str, typer.Option("--size", metavar="SIZE", help="Payload of a message.")]
BatchFlag = Annotated[
    int, typer.Option("--batch", min=1, max=1 << 20, help="Messages in a batch, at most.")
]
RateFlag = Annotated[
    float | None,
    typer.Option("--rate", min=0.1, max=1e9, help="Messages per second; else as fast as it goes."),
]
TopicFlag = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="NAME", help="A topic that exists; else one is made and removed."
    ),
]
PartitionsFlag = Annotated[
    int, typer.Option("--partitions", min=1, max=PARTITIONS_MAX, help="Of the topic that is made.")
]
AcksFlag = Annotated[Acks | None, typer.Option("--acks", help="Whom a publish waits for.")]
SecondsFlag = Annotated[
    float, typer.Option("--seconds", min=0.1, max=SECONDS_MAX, help="End after so long.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def everything(
    context: typer.Context,
    save: Annotated[
        str | None,
        typer.Option("--save", metavar="FILE", help="Measure all, and keep it for quiver plan."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=60, help="Of --save: how long each run is.")
    ] = 2.0,
    disk: Annotated[
        str | None,
        typer.Option("--disk", metavar="DIR", help="Of --save: on the disk to measure."),
    ] = None,
    json: JsonFlag = False,
    url: UrlFlag = None,
) -> None:
    """Measure how fast a node publishes and reads, and how long it takes."""
    if context.invoked_subcommand is not None:
        if save is not None or disk is not None:
            raise InvalidSetting("--save measures everything: give it without another command")
        if json or url is not None:
            raise InvalidSetting("give --json and --url after the name of what is measured")
        return
    if save is None:
        raise InvalidSetting("what shall be measured? publish, read, latency, or all with --save")
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
    help="Measure how fast a node publishes and reads, and how long it takes.",
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
    """Publish messages, and wait until all are stored."""
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
    """Read messages from the beginning; without --topic they are published first."""
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
    """Time messages from their publish to a reader that follows."""
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
