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
from quiver.errors import InvalidSetting
from quiver.model.units import seconds

if TYPE_CHECKING:
    from quiver.spark.pipelines.runner import PipelineSettings

app = typer.Typer(help="Run data pipelines on Spark.", no_args_is_help=True)
run_app = typer.Typer(help="Run one of the pipelines.", no_args_is_help=True)
app.add_typer(run_app, name="run")

PIPELINES = {
    "archive": "topics into a table, by topic, date and hour",
    "metrics": "key figures by window, into a topic and a table",
    "logs": "log lines into a table, frequent errors into a topic of alerts",
    "dedupe": "a copy of a topic without repetitions",
    "dead-letters": "a report of what failed, and how to send it back",
    "replay": "rows of a table back into a topic",
}

TopicsArgument = Annotated[str, typer.Argument(help="A topic, or a pattern.", show_default=False)]
ToFlag = Annotated[str, typer.Option("--to", metavar="FOLDER", help="Where the table is.")]
IntoFlag = Annotated[str, typer.Option("--into", metavar="TOPIC", help="The topic to write to.")]
FormatFlag = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="delta, iceberg or parquet.")
]
WindowFlag = Annotated[str, typer.Option("--window", metavar="TIME", help="Length of a window.")]
WatermarkFlag = Annotated[
    str, typer.Option("--watermark", metavar="TIME", help="How late messages may come.")
]


class CheckpointFlags:
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="FOLDER", help="Where progress is kept between runs."),
    ] = None


class StreamFlags:
    """Of pipelines that go on until they are stopped."""

    once: Annotated[
        bool, typer.Option("--once", help="End when all that is there now is processed.")
    ] = False
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Time between batches.")] = (
        "1 second"
    )
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            metavar="NAME",
            help="Tell this subscription of the topics how far it has come: its lag is seen.",
        ),
    ] = None


class RunFlags:
    """Of every pipeline."""

    master: Annotated[
        str, typer.Option("--master", metavar="MASTER", help="The Spark cluster.")
    ] = "local[*]"
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a page with charts.")
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A further setting of Spark."),
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
        str, typer.Option("--idle", metavar="TIME", help="How long nothing was written.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Remove what queries leave behind that nobody starts again.

    A query whose topics were removed cannot go on from its checkpoint.
    """
    _require_spark()
    from quiver.spark.write.cleanup import remove_sinks, sinks  # noqa: PLC0415

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
    raw: Annotated[bool, typer.Option("--raw", help="Keep payloads as bytes.")] = False,
    schema: Annotated[
        str | None, typer.Option("--schema", help="Of JSON payloads, as DDL or a file.")
    ] = None,
) -> None:
    """Archive topics into a table."""
    settings = _settings(context, f"{to}-checkpoint")
    from quiver.spark.pipelines.runs import run_archive  # noqa: PLC0415 - Spark only when needed

    count = run_archive(settings, topics, to, table_format=format_, json=not raw, schema=schema)
    _print(context, f"{count:,} messages archived in {to}", messages=count, to=to)


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
    """Compute key figures by window."""
    settings = _settings(context, f"{to}-checkpoint")
    from quiver.spark.pipelines.measuring import run_metrics  # noqa: PLC0415

    count = run_metrics(
        settings, topics, to, into=into, window=window, watermark=watermark, table_format=format_
    )
    said = (
        f"{count:,} messages measured; windows that ended {watermark} before the last of them "
        f"are in {to} and in topic {into}"
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
        int, typer.Option("--least", min=1, help="How often an error comes to be an alert.")
    ] = 5,
    format_: FormatFlag = "parquet",
) -> None:
    """Aggregate log lines."""
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
        f"{count:,} lines in {to}; alerts of windows that ended {watermark} before the last of them "
        f"are in topic {into}"
    )
    _print(context, said, messages=count, to=to, into=into)


@run_app.command()
@with_flags(CheckpointFlags, StreamFlags, RunFlags)
def dedupe(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    into: IntoFlag,
    by: Annotated[
        str | None, typer.Option("--by", metavar="SQL", help="What makes messages the same.")
    ] = None,
    within: Annotated[
        str, typer.Option("--within", metavar="TIME", help="How far apart repetitions come.")
    ] = "10 minutes",
) -> None:
    """Copy a topic without repetitions."""
    settings = _settings(context, f"{into}-checkpoint")
    from quiver.spark.pipelines.runs import run_dedupe  # noqa: PLC0415

    same = {} if by is None else {"by": by}
    count = run_dedupe(settings, topic, into, within=within, **same)
    said = f"{count:,} messages of {topic} looked at; the copy is topic {into}"
    _print(context, said, messages=count, into=into)


@run_app.command("dead-letters")
@with_flags(RunFlags)
def dead_letters(
    context: typer.Context,
    topics: Annotated[str, typer.Argument(help="Dead-letter topics, as a pattern.")] = r".*\.dlq",
    to: Annotated[
        str | None, typer.Option("--to", metavar="FOLDER", help="Write the groups there too.")
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
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="The table.")],
    into: IntoFlag,
    format_: FormatFlag = "parquet",
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only rows for which this holds.")
    ] = None,
    per_second: Annotated[
        int, typer.Option("--rate", min=1, help="Messages each second, at most.")
    ] = 10_000,
) -> None:
    """Replay a table into a topic. The name of the checkpoint is the name of the replay."""
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
    """How a run ended."""
    if context.params["json"]:
        print_json(values)
    else:
        print_line(said)


def _settings(context: typer.Context, checkpoint: str) -> PipelineSettings:
    """What was said on the command line, once node, Java and Spark are known to be there.

    ``checkpoint`` is where progress is kept unless that was said too.
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
            f"pipelines need the package {error.name}: pip install 'quivermq[spark]'"
        ) from error
