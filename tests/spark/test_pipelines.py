"""Every pipeline from the command line, and its tables as other engines read them."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from quiver.client import OutgoingMessage
from tests.serving import Commands, eventually, unused_address


@pytest.fixture
def run(node, spark, capsys):
    """``run("archive", …)``: the pipeline, in this process and Spark session, to its end."""
    commands = Commands(node.url, capsys)

    def run(*arguments: str):
        done = commands("pipeline", "run", *arguments)
        assert done.code == 0, done.err
        return done

    return run


def orders(numbers) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(payload={"id": n, "total": n / 2, "who": f"c-{n % 5}"}, key=f"k{n % 5}")
        for n in numbers
    ]


def rows_of(kind: str, path: Path) -> list[dict]:
    """The table's rows, read without Spark and without Quiver's own code."""
    if kind == "parquet":
        return (
            duckdb.sql(f"select * from read_parquet('{path}/topic=*/**/*.parquet')")
            .arrow()
            .read_all()
            .to_pylist()
        )
    if kind == "delta":
        from deltalake import DeltaTable

        return (
            duckdb.from_arrow(DeltaTable(str(path)).to_pyarrow_table())
            .arrow()
            .read_all()
            .to_pylist()
        )
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("quiver", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    return catalog.load_table("quiver.archive").scan().to_arrow().to_pylist()


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_archive_holds_every_message_once_and_bad_records_aside(
    client, topic, run, tmp_path, kind
) -> None:
    client.publish_many(topic, orders(range(60)))
    client.publish_many(topic, [b"\xff\xfe", b"no json", b'{"id": "text"}', b"[1]"])
    to = tmp_path / "lake"
    report = tmp_path / "report.html"
    schema = "id BIGINT, total DOUBLE, who STRING"
    options = ("--to", str(to), "--format", kind, "--schema", schema, "--once")
    done = run("archive", topic, *options, "--report", str(report))
    assert done.out == f"60 messages archived in {to}; 4 bad records in {to}-bad\n"
    client.publish_many(topic, orders(range(60, 100)))
    assert run("archive", topic, *options, "--json").json == {
        "messages": 40,
        "bad": 0,
        "to": str(to),
    }
    found = rows_of(kind, to)
    assert sorted(row["value"]["id"] for row in found) == list(range(100))
    assert {row["topic"] for row in found} == {topic}
    assert all(row["value"]["total"] == row["value"]["id"] / 2 for row in found)
    aside = Path(f"{to}-bad")
    if kind == "parquet":
        bad = pq.read_table(next(aside.glob("*.parquet"))).to_pylist()
    else:
        bad = rows_of(kind, aside)
    assert sorted((row["raw"], row["reason"]) for row in bad) == [
        (b"[1]", "not a JSON object"),
        (b"no json", "not JSON"),
        (b'{"id": "text"}', "does not fit the schema"),
        (b"\xff\xfe", "not UTF-8"),
    ]
    assert "plotly" in report.read_text()
    view = (to / "duckdb.sql").read_text()
    with duckdb.connect() as database:
        database.sql(view)
        assert database.sql("select count(*) from archive").fetchall() == [(100,)]


def test_archive_infers_the_schema_and_joins_small_files(client, topic, run, tmp_path) -> None:
    to = tmp_path / "lake"
    for part in range(2):  # each run writes a file for each of the topic's three partitions
        client.publish_many(topic, orders(range(part * 20, part * 20 + 20)))
        run("archive", topic, "--to", str(to), "--once")
    files = list(to.glob("topic=*/**/*.parquet"))
    hours = {file.parent for file in files}
    assert len(files) <= 3 * len(hours)
    found = rows_of("parquet", to)
    assert sorted(row["value"]["id"] for row in found) == list(range(40))


def test_dedupe_copies_each_message_once(client, topic, run, tmp_path) -> None:
    copy = f"{topic}-copy"
    client.create_topic(copy, partitions=2)
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"), "--once")
    client.publish_many(topic, orders([1, 2, 3, 2, 1, 1]))
    run("dedupe", topic, "--into", copy, *checkpoint)
    client.publish_many(topic, orders([3, 4]))
    run("dedupe", topic, "--into", copy, *checkpoint, "--report", str(tmp_path / "d.html"))
    assert "without duplicates" in (tmp_path / "d.html").read_text()
    assert sorted(one.json()["id"] for one in client.read(copy).messages()) == [1, 2, 3, 4]


LINES = [
    *('{"level": "error", "msg": "order 17 failed", "service": "shop"}',) * 3,
    '{"level": "error", "msg": "order 18 failed", "service": "shop"}',
    'level=warn msg="slow answer" service=web took=1.5',
    '10.0.0.1 - ada [10/Oct/2026:13:55:36 +0000] "GET /x HTTP/1.1" 503 12',
    "nothing that anybody knows",
]


def test_logs_are_parsed_counted_and_told(client, topic, run, tmp_path) -> None:
    to, alerts = tmp_path / "logs", f"{topic}-alerts"
    client.create_topic(alerts, partitions=2)  # it is taken as it is
    client.publish_many(topic, LINES)
    options = ("--to", str(to), "--into", alerts, "--once", "--least", "3")
    times = ("--window", "100 milliseconds", "--watermark", "1 millisecond")
    run("logs", topic, *options, *times, "--report", str(tmp_path / "logs.html"))
    # A later line moves the watermark past the window of those before.
    time.sleep(0.2)
    client.publish_many(topic, ["level=info msg=bye"])
    run("logs", topic, *options, *times)
    found = duckdb.sql(
        f"select level, source, shape, kind from read_parquet('{to}/date=*/*.parquet')"
    ).fetchall()
    assert len(found) == 7
    counted = {(level, source): kind for level, source, _, kind in found}
    assert counted[("ERROR", "shop")] == "json"
    assert counted[("WARN", "web")] == "logfmt"
    assert counted[("ERROR", "10.0.0.1")] == "access"
    assert [shape for *_, shape, kind in found if kind == "json"] == ["order # failed"] * 4
    bad = pq.read_table(next(Path(f"{to}-bad").glob("*.parquet"))).to_pylist()
    assert [row["raw"] for row in bad] == [LINES[-1].encode()]
    told = [one.json() for one in client.read(alerts).messages()]
    assert [(one["shape"], one["count"]) for one in told] == [("order # failed", 4)]


def test_metrics_are_figures_by_window(client, topic, run, tmp_path) -> None:
    to, into, work = tmp_path / "metrics", f"{topic}-metrics", f"{topic}-work"
    client.create_queue(work, visibility="30s", max_deliveries=1)
    client.publish_many(topic, orders(range(30)))
    client.publish_many(work, [b"a", b"b", b"c", b"d"])
    good, *bad = client.receive(work, max_messages=3, wait="5s")
    good.ack()
    for message in bad:
        message.nack(error="no luck")
    eventually(
        lambda: f'messages{{subscription="{work}",state="dead"}} 2' in client.metrics(),
        "dead letters are stored, and the node shows how it is now",
    )
    time.sleep(0.2)  # longer than a window: the next message is in a later one
    client.publish_many(topic, orders(range(1)))
    run("metrics", f"{topic}.*", "--to", str(to), "--into", into, "--once",
        "--window", "100 milliseconds", "--watermark", "1 millisecond",
        "--report", str(tmp_path / "m.html"))  # fmt: skip
    windows = duckdb.sql(
        f"select value.topic, sum(value.messages), sum(value.dead_letters) "
        f"from read_parquet('{to}/windows/*.parquet') group by 1"
    ).fetchall()
    by_topic = {name: (int(count), int(dead)) for name, count, dead in windows}
    assert by_topic[topic] == (30, 0)
    assert by_topic[work] == (4, 2)
    # Samples are taken at the beginning and at the end; the window of the first is over by then.
    (consumed,) = duckdb.sql(
        f"select sum(value.delivered), sum(value.acked), sum(value.nacked), "
        f"sum(value.dead_lettered), max(value.lag), max(value.time_in_queue_p50_ms) > 0 "
        f"from read_parquet('{to}/subscriptions/*.parquet') where value.subscription = '{work}'"
    ).fetchall()
    assert consumed == (3, 1, 2, 2, 1, True)
    assert {one.json()["topic"] for one in client.read(into).messages()} >= {topic}
    told = [one.json() for one in client.read(f"{into}-subscriptions").messages()]
    assert {one["subscription"] for one in told} >= {work}
    assert "time in queue p95 ms" in (tmp_path / "m.html").read_text()


@pytest.mark.timeout(240)
def test_the_lag_of_a_pipeline_is_that_of_its_subscription(client, topic, run, tmp_path) -> None:
    client.create_topic(f"{topic}-copy")
    client.create_subscription(f"{topic}-lag", topics=[topic])
    client.publish_many(topic, orders(range(20)))

    def lag() -> int:
        info = client.describe_subscription(f"{topic}-lag")
        return (info.ready or 0) + (info.unseen or 0)

    assert lag() == 20
    options = ("--into", f"{topic}-copy", "--once", "--checkpoint", str(tmp_path / "progress"))
    run("dedupe", topic, *options, "--subscription", f"{topic}-lag")
    assert lag() == 0


def test_a_pipeline_with_a_subscription_that_is_not_there_says_so(client, node, capsys) -> None:
    arguments = ("dedupe", "any", "--into", "copy", "--subscription", "nobody")
    told = Commands(node.url, capsys)("pipeline", "run", *arguments)
    assert (told.code, told.out) == (1, "")
    assert "'nobody'" in told.err


def test_dead_letters_are_grouped_with_the_command_to_send_them_back(
    client, topic, run, tmp_path
) -> None:
    queue = f"{topic}-jobs"
    client.create_queue(queue, visibility="30s", max_deliveries=1)
    client.publish_many(queue, [str(n).encode() for n in range(4)])
    for message in client.receive(queue, max_messages=4, wait="5s"):
        message.nack(error=f"timeout after {message.text()} ms")
    eventually(
        lambda: any(
            one.name == f"{queue}.dlq"
            and sum(p.next_offset for p in client.describe_topic(one.name).partitions) == 4
            for one in client.list_topics()
        ),
        "dead letters are stored",
    )
    report = tmp_path / "dead.html"
    pattern = f"{queue}.dlq"
    done = run("dead-letters", pattern, "--json", "--to", str(tmp_path / "t"),
               "--report", str(report))  # fmt: skip
    (group,) = json.loads(done.out)
    assert (group["origin"], group["error"], group["count"]) == (queue, "timeout after # ms", "4")
    *command, condition = shlex.split(group["send back with"])
    assert command == ["quiver", "redrive", queue, "--filter"]
    assert condition == f"origin_topic = '{queue}' and last_error like 'timeout after % ms'"
    assert client.redrive(queue, filter=condition, dry_run=True) == 4
    assert pq.read_table(tmp_path / "t").column("count").to_pylist() == [4]
    assert "timeout after # ms" in report.read_text()


def test_replay_brings_an_archive_back_in_order_by_key_and_once(
    client, topic, run, tmp_path
) -> None:
    client.publish_many(topic, orders(range(50)))
    to = tmp_path / "lake"
    run("archive", topic, "--to", str(to), "--once")
    again = f"{topic}-again"
    client.create_topic(again, partitions=2)
    options = ("--into", again, "--where", "value.id < 40", "--rate", "25",
               "--checkpoint", f"replay-{topic}", "--report", str(tmp_path / "r.html"))  # fmt: skip
    run("replay", str(to), *options)
    run("replay", str(to), *options)
    by_key: dict[bytes, list[int]] = {}
    for one in client.read(again).messages():
        by_key.setdefault(one.key, []).append(one.json()["id"])
    assert by_key == {f"k{n}".encode(): list(range(n, 40, 5)) for n in range(5)}


def test_a_pipeline_without_a_node_says_so(spark, capsys) -> None:
    done = Commands(f"quiver://{unused_address()}", capsys)(
        "pipeline", "run", "archive", "orders", "--to", "lake"
    )
    assert done.code == 3
    assert "error: " in done.err


def test_a_pipeline_without_java_says_so(node, capsys, monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = Commands(node.url, capsys)("pipeline", "run", "archive", "orders", "--to", "lake")
    assert done.code == 2
    assert "Spark needs Java 17" in done.err
