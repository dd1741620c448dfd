"""``quiver pipeline``: data pipelines on Spark. The work is in ``quiver.spark.pipelines``."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.exits import tell
from quiver.cli.output import print_json, print_line, print_table
from quiver.cli.session import UrlFlag, connected, url_of
from quiver.errors import InvalidSetting
from quiver.model.units import seconds

if TYPE_CHECKING:
    from quiver.spark.pipelines.running import PipelineSettings

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
CheckpointFlag = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="FOLDER", help="Where progress is kept between runs."),
]
MasterFlag = Annotated[str, typer.Option("--master", metavar="MASTER", help="The Spark cluster.")]
OnceFlag = Annotated[
    bool, typer.Option("--once", help="End when all that is there now is processed.")
]
EveryFlag = Annotated[str, typer.Option("--every", metavar="TIME", help="Time between batches.")]
ReportFlag = Annotated[
    str | None, typer.Option("--report", metavar="FILE", help="Write a page with charts.")
]
WindowFlag = Annotated[str, typer.Option("--window", metavar="TIME", help="Length of a window.")]
WatermarkFlag = Annotated[
    str, typer.Option("--watermark", metavar="TIME", help="How late messages may come.")
]
ConfFlag = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A further setting of Spark."),
]


@app.command("list")
def list_() -> None:
    """List the pipelines."""
    print_table(["pipeline", "what it does"], list(PIPELINES.items()))


@app.command()
def tidy(
    context: typer.Context,
    idle: Annotated[
        str, typer.Option("--idle", metavar="TIME", help="How long nothing was written.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    url: UrlFlag = None,
) -> None:
    """Remove what queries leave behind that nobody starts again.

    A query whose topics were removed cannot go on from its checkpoint.
    """
    _require_spark()
    from quiver.spark.leftovers import remove_sinks, sinks  # noqa: PLC0415

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
def archive(
    context: typer.Context,
    topics: TopicsArgument,
    to: ToFlag,
    format_: FormatFlag = "parquet",
    raw: Annotated[bool, typer.Option("--raw", help="Keep payloads as bytes.")] = False,
    schema: Annotated[
        str | None, typer.Option("--schema", help="Of JSON payloads, as DDL or a file.")
    ] = None,
    checkpoint: CheckpointFlag = None,
    master: MasterFlag = "local[*]",
    once: OnceFlag = False,
    every: EveryFlag = "1 second",
    report: ReportFlag = None,
    conf: ConfFlag = None,
    url: UrlFlag = None,
) -> None:
    """Archive topics into a table."""
    settings = _settings(
        context, url, checkpoint or f"{to}-checkpoint", master, once, every, report, conf
    )
    from quiver.spark.pipelines.runs import run_archive  # noqa: PLC0415 - Spark only when needed

    count = run_archive(settings, topics, to, table_format=format_, json=not raw, schema=schema)
    print_line(f"{count:,} messages archived in {to}")


@run_app.command()
def metrics(
    context: typer.Context,
    topics: TopicsArgument,
    to: ToFlag,
    into: IntoFlag = "metrics",
    window: WindowFlag = "1 minute",
    watermark: WatermarkFlag = "1 minute",
    format_: FormatFlag = "parquet",
    checkpoint: CheckpointFlag = None,
    master: MasterFlag = "local[*]",
    once: OnceFlag = False,
    every: EveryFlag = "1 second",
    report: ReportFlag = None,
    conf: ConfFlag = None,
    url: UrlFlag = None,
) -> None:
    """Compute key figures by window."""
    settings = _settings(
        context, url, checkpoint or f"{to}-checkpoint", master, once, every, report, conf
    )
    from quiver.spark.pipelines.measuring import run_metrics  # noqa: PLC0415

    count = run_metrics(
        settings, topics, to, into=into, window=window, watermark=watermark, table_format=format_
    )
    print_line(f"figures of {count:,} messages in {to} and in topic {into}")


@run_app.command()
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
    checkpoint: CheckpointFlag = None,
    master: MasterFlag = "local[*]",
    once: OnceFlag = False,
    every: EveryFlag = "1 second",
    report: ReportFlag = None,
    conf: ConfFlag = None,
    url: UrlFlag = None,
) -> None:
    """Aggregate log lines."""
    settings = _settings(
        context, url, checkpoint or f"{to}-checkpoint", master, once, every, report, conf
    )
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
    print_line(f"{count:,} lines in {to}, alerts in topic {into}")


@run_app.command()
def dedupe(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    into: IntoFlag,
    by: Annotated[
        str | None, typer.Option("--by", metavar="SQL", help="What makes messages the same.")
    ] = None,
    within: Annotated[str, typer.Option("--within", metavar="TIME")] = "10 minutes",
    checkpoint: CheckpointFlag = None,
    master: MasterFlag = "local[*]",
    once: OnceFlag = False,
    every: EveryFlag = "1 second",
    report: ReportFlag = None,
    conf: ConfFlag = None,
    url: UrlFlag = None,
) -> None:
    """Copy a topic without repetitions."""
    settings = _settings(
        context, url, checkpoint or f"{into}-checkpoint", master, once, every, report, conf
    )
    from quiver.spark.pipelines.runs import run_dedupe  # noqa: PLC0415

    same = {} if by is None else {"by": by}
    count = run_dedupe(settings, topic, into, within=within, **same)
    print_line(f"{count:,} messages of {topic} looked at; the copy is topic {into}")


@run_app.command("dead-letters")
def dead_letters(
    context: typer.Context,
    topics: Annotated[str, typer.Argument(help="Dead-letter topics, as a pattern.")] = r".*\.dlq",
    to: Annotated[
        str | None, typer.Option("--to", metavar="FOLDER", help="Write the groups there too.")
    ] = None,
    window: WindowFlag = "1 hour",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    master: MasterFlag = "local[*]",
    report: ReportFlag = None,
    conf: ConfFlag = None,
    url: UrlFlag = None,
) -> None:
    """Report dead letters by error, origin and time."""
    settings = _settings(context, url, "", master, True, "1 second", report, conf)
    from quiver.spark.pipelines.runs import run_dead_letters  # noqa: PLC0415

    groups = run_dead_letters(settings, topics, to, window=window)
    names = ("origin", "subscription", "error", "count", "send back with")
    if json:
        print_json([dict(zip(names, group, strict=True)) for group in groups])
    else:
        print_table(names, groups)


@run_app.command()
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
    checkpoint: CheckpointFlag = None,
    master: MasterFlag = "local[*]",
    report: ReportFlag = None,
    conf: ConfFlag = None,
    url: UrlFlag = None,
) -> None:
    """Replay a table into a topic. The name of the checkpoint is the name of the replay."""
    name = checkpoint or f"{os.path.basename(os.path.abspath(source))}-to-{into}"
    settings = _settings(context, url, name, master, True, "1 second", report, conf)
    from quiver.spark.pipelines.runs import run_replay  # noqa: PLC0415

    count = run_replay(
        settings,
        source,
        into,
        table_format=format_,
        where=where,
        per_second=per_second,
        on_progress=lambda done, total: tell(f"{done:,} of {total:,}"),
    )
    print_line(f"{count:,} messages replayed into {into}")


def _settings(
    context: typer.Context,
    url: str | None,
    checkpoint: str,
    master: str,
    once: bool,
    every: str,
    report: str | None,
    conf: list[str] | None,
) -> PipelineSettings:
    """What was said on the command line, once node, Java and Spark are known to be there."""
    _require_spark()
    from quiver.spark.pipelines.running import PipelineSettings  # noqa: PLC0415
    from quiver.spark.session import require_java  # noqa: PLC0415

    wrong = [pair for pair in conf or [] if not re.fullmatch(r"[\w.]+=.*", pair)]
    if wrong:
        raise InvalidSetting(f"--conf: write {wrong[0]!r} as NAME=VALUE")
    require_java()
    with connected(context, url):
        pass
    return PipelineSettings(
        url=url_of(context, url),
        checkpoint=checkpoint,
        master=master,
        once=once,
        every=every,
        report=report,
        spark=dict(pair.split("=", 1) for pair in conf or []),
    )


def _require_spark() -> None:
    try:
        import_module("quiver.spark.pipelines")  # Spark only when needed
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"pipelines need the package {error.name}: pip install 'quivermq[spark]'"
        ) from error
