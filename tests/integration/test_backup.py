"""``quiver backup`` against running nodes: under load, killed in the middle, on a folder and on S3."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import quiver
from tests.serving import Commands, Served, eventually, served

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "source") as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "target") as running:
        yield running


@pytest.fixture
def quiver_(source: Served, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(source.url, capsys)


def rows(url: str, topic: str) -> list[tuple[str, bytes, bytes | None, int]]:
    """Every message of a topic: its id, which has offset and time, its payload and its key."""
    with quiver.Client(url) as client:
        return [
            (one.id, one.payload, one.key, one.timestamp_us)
            for one in client.read(topic, start="earliest", end="latest").messages()
        ]


class Load:
    """Publishes until it is stopped; knows what was confirmed when."""

    def __init__(self, url: str, topic: str) -> None:
        self.confirmed: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, topic))

    def _run(self, url: str, topic: str) -> None:
        with quiver.Client(url) as client:
            number = 0
            while not self._stop.is_set():
                payloads = [b"%08d" % (number + i) + b"x" * 400 for i in range(50)]
                client.publish_many(topic, payloads)
                self.confirmed += payloads
                number += len(payloads)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def kill_amid(child: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    """SIGKILL once something of its work is done, and before all of it is."""
    try:
        eventually(reached, "the command has begun")
        assert child.poll() is None, "it was not killed in the middle"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(30)


def test_a_backup_under_load_has_everything_that_was_confirmed_before_it_began(
    source: Served, target: Served, quiver_: Commands, tmp_path: Path
) -> None:
    """Also after the first backup and the first restore were killed in the middle."""
    place = tmp_path / "backups"
    with quiver.Client(source.url) as client:
        client.create_topic("load", partitions=2)
        client.create_subscription("reader", ["load"], start="earliest")
        client.publish_many("load", [os.urandom(100_000) for _ in range(200)])
    flags = ("--rate", "4MB")
    with Load(source.url, "load") as load:
        eventually(lambda: len(load.confirmed) > 500, "messages are published")
        first = quiver_.start("backup", "create", "--to", str(place), *flags)
        kill_amid(first, (place / "objects/state").exists)
        assert quiver_("backup", "list", "--from", str(place), "--json").json == []
        confirmed = set(load.confirmed)
        made = quiver_("backup", "create", "--to", str(place), "--json")
        assert made.code == 0, made.err
    told = quiver_("backup", "verify", "--from", str(place), "--json").json
    assert told["problems"] == []
    assert told["messages"] >= len(confirmed)
    verified = quiver_("backup", "verify", "--from", str(place))
    assert verified.code == 0, verified.err

    to_target = Commands(target.url, quiver_._capture)
    cut = to_target.start("backup", "restore", "--from", str(place), *flags)

    def has_some() -> bool:
        with quiver.Client(target.url) as client:
            found = [one for one in client.list_topics() if one.name == "load"]
            if not found:
                return False
            extents = client.describe_topic("load").partitions
            return sum(one.next_offset or 0 for one in extents) > 0

    kill_amid(cut, has_some)
    with quiver.Client(target.url) as client:
        assert client.describe_topic("load").is_restoring
    again = to_target("backup", "restore", "--from", str(place), "--json")
    assert again.code == 0, again.err
    restored = rows(target.url, "load")
    assert {payload for _, payload, _, _ in restored} >= confirmed
    assert set(restored) <= set(rows(source.url, "load")), "the same ids, keys and times"
    assert len(restored) == made.json["messages"]
    with quiver.Client(target.url) as client:
        client.publish("load", b"and on")
    assert to_target("backup", "restore", "--from", str(place), "--json").json["already"] == [
        "load"
    ]


def test_a_backup_has_what_was_committed_at_its_offsets_and_nothing_else(
    source: Served, target: Served, quiver_: Commands, tmp_path: Path
) -> None:
    place = str(tmp_path / "backups")
    with quiver.Client(source.url) as client:
        client.create_queue("jobs")
        for number in range(6):
            client.publish("jobs", b"plain %d" % number)
            with client.transaction() as transaction:
                transaction.publish("jobs", b"in %d" % number)
                if number % 2 == 0:
                    transaction.abort()
        assert quiver_("backup", "create", "--to", place).code == 0
        assert quiver_("backup", "verify", "--from", place).code == 0
    done = Commands(target.url, quiver_._capture)("backup", "restore", "--from", place, "--json")
    assert done.code == 0, done.err
    assert rows(target.url, "jobs") == rows(source.url, "jobs")
    with quiver.Client(target.url) as client:
        client.publish("jobs", b"later")
        expected = [row[1] for row in rows(source.url, "jobs")]
        assert len(expected) == 9
        assert [one.payload for one in client.receive("jobs", 20)] == [*expected, b"later"]


def test_subscriptions_go_on_where_they_were(
    source: Served, target: Served, quiver_: Commands, tmp_path: Path
) -> None:
    place = str(tmp_path / "backups")
    with quiver.Client(source.url) as client:
        client.create_queue("jobs")
        client.publish_many("jobs", [b"%d" % number for number in range(10)])
        received = client.receive("jobs", max_messages=6)
        for message in received[:4]:
            message.ack()
        received[4].nack(delay=0)
        client.publish("jobs", b"later", delay="1h")
        assert quiver_("backup", "create", "--to", place).code == 0
        client.publish("jobs", b"after the backup")
    done = Commands(target.url, quiver_._capture)("backup", "restore", "--from", place, "--json")
    assert done.code == 0, done.err
    assert sorted(done.json["topics"]) == ["jobs", "jobs.dlq"]
    with quiver.Client(target.url) as client:
        described = client.describe_subscription("jobs")
        assert (described.ready, described.delayed, described.dead) == (6, 1, 0)
        again = {one.payload: one.deliveries for one in client.receive("jobs", max_messages=20)}
        acked = {message.payload for message in received[:4]}
        assert set(again) == {b"%d" % number for number in range(10)} - acked
        assert again[received[4].payload] == again[received[5].payload] == 2


def test_a_second_backup_copies_only_what_is_new(
    source: Served, quiver_: Commands, tmp_path: Path
) -> None:
    place = tmp_path / "backups"

    def files() -> set[Path]:
        return {one for one in (place / "objects").rglob("*") if one.is_file()}

    with quiver.Client(source.url) as client:
        client.create_topic("events")
        client.publish_many("events", [b"a" * 1000] * 1000)
        first = quiver_("backup", "create", "--to", str(place), "--json").json
        before = files()
        client.publish_many("events", [b"b" * 1000] * 10)
        second = quiver_("backup", "create", "--to", str(place), "--json").json
        third = quiver_("backup", "create", "--to", str(place), "--json").json
    assert first["new_bytes"] > 1_000_000
    assert 10_000 < second["new_bytes"] < 20_000
    assert third["new_bytes"] == 0
    assert len(files() - before) == 1
    listed = quiver_("backup", "list", "--from", str(place), "--json").json
    assert [one["messages"] for one in listed] == [1000, 1010, 1010]


def test_damage_is_found_and_never_restored(
    source: Served, target: Served, quiver_: Commands, tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    with quiver.Client(source.url) as client:
        client.create_topic("events")
        client.publish_many("events", [b"a" * 1000] * 100)
    assert quiver_("backup", "create", "--to", str(place)).err.endswith(" in 1 file\n")
    (chunk,) = [one for one in (place / "objects").rglob("*") if one.is_file()]
    data = bytearray(chunk.read_bytes())
    data[5000] ^= 1
    chunk.write_bytes(data)
    found = quiver_("backup", "verify", "--from", str(place))
    assert found.code == 1
    assert chunk.name in found.err
    assert found.err.endswith(" is damaged: 1 problem\n")
    restored = Commands(target.url, quiver_._capture)("backup", "restore", "--from", str(place))
    assert (restored.code, "checksum" in restored.err) == (1, True)
    chunk.unlink()
    assert "is missing" in quiver_("backup", "verify", "--from", str(place)).err
    (manifest,) = (place / "backups").iterdir()
    manifest.write_bytes(manifest.read_bytes().replace(b'"events"', b'"evente"'))
    assert "does not match its checksum" in quiver_("backup", "verify", "--from", str(place)).err


def test_a_restore_can_end_at_a_time_or_at_an_offset(
    source: Served, target: Served, quiver_: Commands, tmp_path: Path
) -> None:
    place = str(tmp_path / "backups")
    with quiver.Client(source.url) as client:
        for topic in ("by-time", "by-offset", "other"):
            client.create_topic(topic)
        client.publish_many("by-time", [b"1", b"2"])
        moment = datetime.now(UTC)
        time.sleep(0.01)  # the next message is stored later than that
        client.publish("by-time", b"3")
        client.publish_many("by-offset", [b"1", b"2", b"3"])
    assert quiver_("backup", "create", "--to", place).code == 0
    to_target = Commands(target.url, quiver_._capture)
    until = ("--until", moment.isoformat(), "--topics", "by-time")
    assert to_target("backup", "restore", "--from", place, *until).code == 0
    assert [payload for _, payload, _, _ in rows(target.url, "by-time")] == [b"1", b"2"]
    until = ("--until-offset", "by-offset/0=2", "--topics", "by-off*")
    assert to_target("backup", "restore", "--from", place, *until).code == 0
    assert [payload for _, payload, _, _ in rows(target.url, "by-offset")] == [b"1", b"2"]
    refused = to_target("backup", "restore", "--from", place)
    assert refused.code == 1
    assert "already ('by-offset', 'by-time')" in refused.err
    assert "hint" not in refused.err, "there is no --if-not-exists here"
    other = to_target("backup", "restore", "--from", place, "--topics", "none*")
    assert other.code == 1
    assert "no topic that matches 'none*'; it has " in other.err
    with quiver.Client(target.url) as client:
        assert {one.name for one in client.list_topics()} == {"by-time", "by-offset"}


def test_a_place_without_backups_says_so(source: Served, quiver_: Commands, tmp_path: Path) -> None:
    found = quiver_("backup", "restore", "--from", str(tmp_path))
    assert (found.code, "there is no backup" in found.err) == (1, True)
    assert quiver_("backup", "create", "--to", "nowhere://x").code == 1
    assert quiver_("backup", "create", "--to", str(tmp_path), "--rate", "0").code == 2


def test_tokens_are_restored_without_their_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "backups")
    secured = ("--authentication",)
    with served(tmp_path / "a", *secured) as one, served(tmp_path / "b", *secured) as two:
        first = (one.data / "admin.token").read_text().strip()
        monkeypatch.setenv("QUIVER_TOKEN", first)
        commands = Commands(one.url, capsys)
        reader = commands("token", "create", "reader", "--grant", "consume:*").out.strip()
        assert commands("backup", "create", "--to", place).code == 0
        written = b"".join(one.read_bytes() for one in Path(place).rglob("*") if one.is_file())
        assert reader.encode() not in written
        monkeypatch.setenv("QUIVER_TOKEN", (two.data / "admin.token").read_text().strip())
        done = Commands(two.url, capsys)("backup", "restore", "--from", place, "--json")
        assert done.code == 0, done.err
        assert done.json["tokens"] == 2
        with quiver.Client(two.url, token=reader) as client:
            assert client.list_topics() == []


def test_backups_are_kept_on_s3(
    source: Served,
    target: Served,
    quiver_: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        bucket = urllib.request.Request(f"http://{host}:{port}/backups", method="PUT")
        urllib.request.urlopen(bucket).close()
        options = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        place = f"s3://backups/quiver?{options}"
        with quiver.Client(source.url) as client:
            client.create_topic("events")
            client.publish_many("events", [b"%d" % number for number in range(1000)])
        made = quiver_("backup", "create", "--to", place)
        assert made.code == 0, made.err
        assert quiver_("backup", "verify", "--from", place).code == 0
        restored = Commands(target.url, quiver_._capture)("backup", "restore", "--from", place)
        assert restored.code == 0, restored.err
    finally:
        server.stop()
    assert rows(target.url, "events") == rows(source.url, "events")
