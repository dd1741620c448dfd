"""``quiver pipeline``: data pipelines on Spark. The work is in ``quiver.spark.pipelines``."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.support.flags import with_flags
from quiver.cli.support.output import Json, print_json, print_line, print_table, progress
from quiver.cli.support.session import UrlFlag, connected, url_of
from quiver.cli.support.text import plural
from quiver.errors import InvalidSetting
from quiver.model.units import seconds

if TYPE_CHECKING:
    from quiver.spark.pipelines.runner import PipelineSettings

app = typer.Typer(help="Run data pipelines on Spark.", no_args_is_help=True)
run_app = typer.Typer(help="Run one of the pipelines.", no_args_is_help=True)
app.add_typer(run_app, name="run")

PIPELINES = {
    "archive": "write topics to a table, partitioned by topic, date and hour",
    "metrics": "aggregate metrics by time window, into a topic and a table",
    "logs": "write log lines to a table, and frequent errors to a topic",
    "dedupe": "copy a topic without duplicates",
    "dead-letters": "report dead letters, and how to redrive them",
    "replay": "publish rows of a table to a topic",
}

TopicsArgument = Annotated[
    str, typer.Argument(help="The topic, or a pattern of names.", show_default=False)
]
ToFlag = Annotated[str, typer.Option("--to", metavar="FOLDER", help="Folder of the table.")]
IntoFlag = Annotated[str, typer.Option("--into", metavar="TOPIC", help="Topic to write to.")]
FormatFlag = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="Table format: delta, iceberg or parquet.")
]


def spark_interval(text: str) -> str:
    """A time as Spark reads it, from ``1h30m`` or from Spark's own form, ``90 minutes``."""
    if _SPARK_INTERVAL.fullmatch(text):
        return text
    duration_ms = round(seconds(text) * 1000)
    if duration_ms < 0:
        raise InvalidSetting(f"{text!r} is not a duration: it is below 0")
    return f"{duration_ms} milliseconds"


_SPARK_INTERVAL = re.compile(r"\d+ (milli|micro)?(second|minute|hour|day|week)s?")
WindowFlag = Annotated[
    str,
    typer.Option(
        "--window",
        metavar="TIME",
        help="Length of a time window, as in 1m.",
        callback=spark_interval,
    ),
]
WatermarkFlag = Annotated[
    str,
    typer.Option(
        "--watermark",
        metavar="TIME",
        help="How late a message may arrive, as in 1m.",
        callback=spark_interval,
    ),
]


class CheckpointFlags:
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            help="Folder that stores the progress between runs.",
        ),
    ] = None


class StreamFlags:
    """Flags of pipelines that run until they are stopped."""

    once: Annotated[
        bool, typer.Option("--once", help="Process the messages that exist now, then exit.")
    ] = False
    every: Annotated[
        str,
        typer.Option(
            "--every",
            metavar="TIME",
            help="Time between batches, as in 1s.",
            callback=spark_interval,
        ),
    ] = "1 second"
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            metavar="NAME",
            help="Move this subscription along with the pipeline, so that its lag is the pipeline's.",
        ),
    ] = None


class RunFlags:
    """Flags of every pipeline."""

    master: Annotated[str, typer.Option("--master", metavar="MASTER", help="Spark master URL.")] = (
        "local[*]"
    )
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write an HTML report to this file."),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting. May be repeated."),
    ] = None
    json: Json = False
    url: UrlFlag = None


@app.command("list")
def list_(json: Json = False) -> None:
    """List the pipelines."""
    if json:
        print_json([{"pipeline": name, "about": about} for name, about in PIPELINES.items()])
    else:
        print_table(["pipeline", "what it does"], list(PIPELINES.items()))


@app.command()
def tidy(
    context: typer.Context,
    idle: Annotated[
        str,
        typer.Option(
            "--idle",
            metavar="TIME",
            help="Delete topics that had no writes for this long, as in 30d.",
        ),
    ] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be deleted.")
    ] = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Delete the internal topics of Spark queries that no longer run.

    A deleted query cannot continue from its checkpoint.
    """
    _require_spark()
    from quiver.spark.write.staged.cleanup import remove_sinks, sinks  # noqa: PLC0415

    idle_s = seconds(idle)
    with connected(context, url) as client:
        if dry_run:
            found = [one for one in sinks(client) if one.idle_s >= idle_s]
        else:
            found = remove_sinks(client, idle_s=idle_s)
    names = ("sink", "topics", "idle (s)")
    rows = [(one.name, len(one.topics), round(one.idle_s)) for one in found]
    if json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows)


@run_app.command()
@with_flags(CheckpointFlags, StreamFlags, RunFlags)
def archive(
    context: typer.Context,
    topics: TopicsArgument,
    to: ToFlag,
    format_: FormatFlag = "parquet",
    raw: Annotated[
        bool, typer.Option("--raw", help="Store payloads as bytes instead of parsing JSON.")
    ] = False,
    schema: Annotated[
        str | None,
        typer.Option("--schema", help="Schema of the JSON payloads, as DDL or as a file."),
    ] = None,
) -> None:
    """Write topics to a table."""
    settings = _settings(context, f"{to}-checkpoint")
    from quiver.spark.pipelines.runs import run_archive  # noqa: PLC0415 - Spark only when needed

    done = run_archive(settings, topics, to, table_format=format_, json=not raw, schema=schema)
    said = f"{done.messages:,} messages archived in {to}"
    if done.bad:
        said += f"; {plural(done.bad, 'bad record')} in {to}-bad"
    _print(context, said, messages=done.messages, bad=done.bad, to=to)


@run_app.command()
@with_flags(CheckpointFlags, StreamFlags, RunFlags)
def metrics(
    context: typer.Context,
    topics: TopicsArgument,
    to: ToFlag,
    into: IntoFlag = "metrics",
    window: WindowFlag = "1 minute",
    watermark: WatermarkFlag = "1 minute",
    format_: FormatFlag = "parquet",
) -> None:
    """Aggregate metrics by time window."""
    settings = _settings(context, f"{to}-checkpoint")
    from quiver.spark.pipelines.metrics_run import run_metrics  # noqa: PLC0415

    count = run_metrics(
        settings, topics, to, into=into, window=window, watermark=watermark, table_format=format_
    )
    said = (
        f"{count:,} messages processed; windows that ended more than {watermark} before the last "
        f"message are in {to} and in topic {into}"
    )
    _print(context, said, messages=count, to=to, into=into)


@run_app.command()
@with_flags(CheckpointFlags, StreamFlags, RunFlags)
def logs(
    context: typer.Context,
    topics: TopicsArgument,
    to: ToFlag,
    into: IntoFlag = "alerts",
    window: WindowFlag = "1 minute",
    watermark: WatermarkFlag = "1 minute",
    least: Annotated[
        int,
        typer.Option(
            "--least",
            min=1,
            help="Number of times an error must occur in a window to become an alert.",
        ),
    ] = 5,
    format_: FormatFlag = "parquet",
) -> None:
    """Write log lines to a table, and frequent errors to a topic."""
    settings = _settings(context, f"{to}-checkpoint")
    from quiver.spark.pipelines.runs import run_logs  # noqa: PLC0415

    count = run_logs(
        settings,
        topics,
        to,
        into=into,
        window=window,
        watermark=watermark,
        least=least,
        table_format=format_,
    )
    said = (
        f"{count:,} lines written to {to}; alerts of windows that ended more than {watermark} "
        f"before the last line are in topic {into}"
    )
    _print(context, said, messages=count, to=to, into=into)


@run_app.command()
@with_flags(CheckpointFlags, StreamFlags, RunFlags)
def dedupe(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    into: IntoFlag,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="SQL", help="SQL expression that is equal for duplicates."),
    ] = None,
    within: Annotated[
        str,
        typer.Option(
            "--within",
            metavar="TIME",
            help="Longest time between duplicates, as in 10m.",
            callback=spark_interval,
        ),
    ] = "10 minutes",
) -> None:
    """Copy a topic without duplicates."""
    settings = _settings(context, f"{into}-checkpoint")
    from quiver.spark.pipelines.runs import run_dedupe  # noqa: PLC0415

    same = {} if by is None else {"by": by}
    count = run_dedupe(settings, topic, into, within=within, **same)
    said = f"{count:,} messages of {topic} read; the copy is topic {into}"
    _print(context, said, messages=count, into=into)


@run_app.command("dead-letters")
@with_flags(RunFlags)
def dead_letters(
    context: typer.Context,
    topics: Annotated[str, typer.Argument(help="Pattern of the dead-letter topics.")] = r".*\.dlq",
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            help="Also write the groups to a table in this folder.",
        ),
    ] = None,
    window: WindowFlag = "1 hour",
) -> None:
    """Report dead letters by error, origin and time."""
    settings = _settings(context, "")
    from quiver.spark.pipelines.runs import run_dead_letters  # noqa: PLC0415

    groups = run_dead_letters(settings, topics, to, window=window)
    names = ("origin", "subscription", "error", "count", "send back with")
    if context.params["json"]:
        print_json([dict(zip(names, group, strict=True)) for group in groups])
    else:
        print_table(names, groups)


@run_app.command()
@with_flags(CheckpointFlags, RunFlags)
def replay(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of the table.")],
    into: IntoFlag,
    format_: FormatFlag = "parquet",
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="SQL condition that rows must meet."),
    ] = None,
    per_second: Annotated[
        int, typer.Option("--rate", min=1, help="Most messages per second.")
    ] = 10_000,
) -> None:
    """Publish rows of a table to a topic.

    The checkpoint identifies the replay: run again with the same one, it continues.
    """
    settings = _settings(context, f"{os.path.basename(os.path.abspath(source))}-to-{into}")
    from quiver.spark.pipelines.runs import run_replay  # noqa: PLC0415

    with progress("replaying", None) as advance:
        replayed = 0

        def on_progress(done: int, _total: int) -> None:
            nonlocal replayed
            advance(done - replayed)
            replayed = done

        count = run_replay(
            settings,
            source,
            into,
            table_format=format_,
            where=where,
            per_second=per_second,
            on_progress=on_progress,
        )
    _print(context, f"{count:,} messages replayed into {into}", messages=count, into=into)


def _print(context: typer.Context, said: str, **values: object) -> None:
    """Print the result of a run."""
    if context.params["json"]:
        print_json(values)
    else:
        print_line(said)


def _settings(context: typer.Context, checkpoint: str) -> PipelineSettings:
    """The settings from the flags, after a check that the node, Java and Spark are available.

    ``checkpoint`` is the default folder for progress.
    """
    _require_spark()
    from quiver.spark.pipelines.runner import PipelineSettings  # noqa: PLC0415
    from quiver.spark.session import require_java  # noqa: PLC0415

    flags = context.params
    conf = flags["conf"] or []
    wrong = [pair for pair in conf if not re.fullmatch(r"[\w.]+=.*", pair)]
    if wrong:
        raise InvalidSetting(f"--conf: write {wrong[0]!r} as NAME=VALUE")
    require_java()
    subscription = flags.get("subscription")
    with connected(context, flags["url"]) as client:
        if subscription is not None:
            client.describe_subscription(subscription)  # a mistake is told before Spark starts
    return PipelineSettings(
        url=url_of(context, flags["url"]),
        checkpoint=flags.get("checkpoint") or checkpoint,
        master=flags["master"],
        once=flags.get("once", True),
        every=flags.get("every", StreamFlags.every),
        report=flags["report"],
        subscription=subscription,
        spark=dict(pair.split("=", 1) for pair in conf),
    )


def _require_spark() -> None:
    try:
        import_module("quiver.spark.pipelines")  # Spark only when needed
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"pipelines need the package {error.name}: install it with: pip install 'quivermq[spark]'"
        ) from error
