"""``quiver queue`` and ``quiver subscription`` against a running node."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from quiver.client import Client
from tests.serving import Commands, Run, Served, served, unused_address

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    secrets = tmp_path_factory.mktemp("secrets")
    (secrets / "hooks").write_text("s3cret")
    web = {
        "QUIVER_WEB_WEBHOOK_TARGETS": "127.0.0.0/8",
        "QUIVER_WEB_WEBHOOK_SECRETS": str(secrets),
    }
    with served(tmp_path_factory.mktemp("node"), **web) as running:
        yield running


@pytest.fixture
def quiver(node: Served, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """Commands, and a node with nothing on it afterwards."""
    commands = Commands(node.url, capsys)
    yield commands
    for noun in ("subscription", "queue", "topic"):
        for one in reversed(commands(noun, "list", "--json").json):
            assert commands(noun, "delete", one["name"], "--yes").code == 0


def table(text: str) -> dict[str, str]:
    """The first word of each line with the rest of it."""
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    return {line[0]: line[1].rstrip() for line in lines if len(line) == 2}


def names(told: Run) -> list[str]:
    return [one["name"] for one in told.json]


DELIVERY = (
    *("--guarantee", "exactly-once", "--visibility", "1m30s", "--max-deliveries", "7"),
    *("--dead-letter", "lost", "--backoff-min", "2s", "--backoff-max", "1h"),
    *("--backoff-factor", "3", "--ageing", "0", "--session-timeout", "20s"),
    *("--filter", "headers.region = 'eu'", "--on-disconnect", "keep"),
    *("--max-processing", "1h"),
    *("--push-url", "http://127.0.0.1:9/hook", "--push-secret", "hooks", "--push-batch", "10"),
    *("--push-concurrency", "2", "--push-timeout", "5s"),
)
PUSHED: dict[str, Any] = {
    "url": "http://127.0.0.1:9/hook",
    "secret": "hooks",
    "batch": 10,
    "concurrency": 2,
    "timeout": 5.0,
}
DELIVERED: dict[str, Any] = {
    "guarantee": "exactly-once",
    "visibility": 90.0,
    "max_deliveries": 7,
    "dead_letter": "lost",
    "backoff": {"min": 2.0, "max": 3600.0, "factor": 3.0},
    "ageing": 0.0,
    "session_timeout": 20.0,
    "filter": "headers.region = 'eu'",
    "push": PUSHED,
    "on_disconnect": "keep",
    "max_processing": 3600.0,
}


class TestQueue:
    def test_it_is_made_as_the_flags_say(self, quiver: Commands) -> None:
        made = quiver(
            *("queue", "create", "emails", "--partitions", "2", "--json"),
            *(*DELIVERY, "--fairness", "headers.tenant"),
            *("--durability", "interval", "--sync-interval", "20ms", "--retention-age", "2h"),
            *("--retention-bytes", "1GB", "--retention-messages", "9", "--retention-acked"),
            *("--compression", "lz4", "--message-bytes-max", "2MiB", "--acks", "leader"),
            *("--segment-bytes", "8MiB", "--segment-age", "1h", "--dedup-window", "1m"),
        )
        assert made.code == 0, made.err
        expected = {"topics": ["emails"], "ordering": "none", "fairness": "headers.tenant"}
        assert made.json["settings"] == DELIVERED | expected
        described = quiver("queue", "describe", "emails", "--json").json
        assert described["settings"] == made.json["settings"]
        assert described["topic"]["settings"] == {
            "partitions": 2,
            "durability": "interval",
            "sync_interval_ms": 20,
            "retention": {
                "age": 7200.0,
                "bytes": 10**9,
                "messages": 9,
                "acked": True,
                "scope": "partition",
                "unread": None,
                "unread_age": None,
                "unread_bytes": None,
                "unread_overflow": "refuse",
            },
            "compression": "lz4",
            "message_bytes_max": 2 << 20,
            "acks": "leader",
            "segment_bytes": 8 << 20,
            "segment_age_s": 3600,
            "dedup_window": 60.0,
            "replicas": None,
            "min_in_sync": None,
            "allow_data_loss": False,
        }

    def test_what_was_done_is_told_on_standard_error(self, quiver: Commands) -> None:
        assert quiver("queue", "create", "emails") == (0, "", "created queue emails\n")
        told = quiver("queue", "alter", "emails", "--visibility", "1m")
        assert told == (0, "", "altered queue emails\n")
        told = quiver("queue", "seek", "emails", "--to", "earliest")
        assert told == (0, "", "queue emails continues from earliest\n")
        assert quiver("queue", "delete", "emails", "-y") == (0, "", "deleted queue emails\n")

    def test_one_that_is_there_already(self, quiver: Commands) -> None:
        quiver("queue", "create", "emails")
        again = quiver("queue", "create", "emails")
        assert again.code == 1
        assert again.err.splitlines()[1].startswith("hint: --if-not-exists")
        assert quiver("queue", "create", "emails", "--if-not-exists").code == 0
        other = quiver("queue", "create", "emails", "--if-not-exists", "--visibility", "1s")
        assert other.code == 1

    def test_each_noun_lists_its_own(self, quiver: Commands) -> None:
        assert "quiver queue create" in quiver("queue", "list").err
        assert "quiver subscription create" in quiver("subscription", "list").err
        for name in ("b", "a"):
            quiver("queue", "create", name, "--visibility", "1m")
        quiver("subscription", "create", "s", "-t", "a", "-t", "x.*")
        assert names(quiver("queue", "list", "--json")) == ["a", "a.dlq", "b", "b.dlq"]
        assert names(quiver("subscription", "list", "--json")) == ["s"]
        header, *rows = quiver("queue", "list").out.splitlines()
        assert header.split()[0] == "QUEUE"
        assert [row.split()[:4] for row in rows] == [
            [name, "none", "at-least-once", visibility]
            for name, visibility in (("a", "1m"), ("a.dlq", "30s"), ("b", "1m"), ("b.dlq", "30s"))
        ]
        assert "a, x.*" in quiver("subscription", "list").out

    def test_flags_may_have_the_names_that_a_description_prints(self, quiver: Commands) -> None:
        named = ("--sync-interval-ms", "20", "--segment-age-s", "3600", "--retention-age", "1d")
        assert quiver("queue", "create", "emails", *named).code == 0
        settings = quiver("queue", "describe", "emails", "--json").json["topic"]["settings"]
        assert (settings["sync_interval_ms"], settings["segment_age_s"]) == (20, 3600)
        assert quiver("queue", "alter", "emails", "--segment-age-s", "2h").code == 0
        settings = quiver("queue", "describe", "emails", "--json").json["topic"]["settings"]
        assert settings["segment_age_s"] == 7200

    def test_a_secret_that_is_not_there_is_refused(self, quiver: Commands) -> None:
        push = ("--push-url", "http://127.0.0.1:9/hook", "--push-secret", "hoks")
        refused = quiver("queue", "create", "emails", *push)
        assert refused.code == 2
        assert "'hoks'" in refused.err
        assert quiver("queue", "list", "--json").json == []

    def test_a_description_shows_settings_and_depth_by_state(self, quiver: Commands) -> None:
        quiver("queue", "create", "emails", "--backoff-min", "1s", "--retention-age", "1d")
        quiver("publish", "emails", "x", "y", "z")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        assert quiver("publish", "emails", "later", "--deliver-at", tomorrow.isoformat()).code == 0
        quiver("publish", "emails", "later", "--delay", "1h")
        quiver("consume", "emails", "--nack", "--delay", "1h", "-n", "1")
        settings, topic, depth, progress = quiver("queue", "describe", "emails").out.split("\n\n")
        assert table(settings)["visibility"] == "30s"
        assert table(settings)["dead_letter"] == "emails.dlq"
        assert table(settings)["backoff"] == "1s to 10m, factor 2"
        assert table(settings)["push"] == "none"
        assert table(topic)["retention"] == "1d"
        expected = {"ready": "2", "delayed": "3", "leased": "0", "unseen": "0", "dead": "0"}
        assert table(depth) == {"STATE": "MESSAGES"} | expected
        described = quiver("queue", "describe", "emails", "--json").json
        assert (described["ready"], described["delayed"]) == (2, 3)
        assert progress.split() == [
            "PARTITION",
            "COMMITTED",
            "END",
            "LAG",
            "emails/0",
            "0",
            "5",
            "5",
        ]
        assert described["partitions"] == [
            {"topic": "emails", "partition": 0, "committed": 0, "end": 5, "lag": 5}
        ]

    def test_altering_changes_only_what_is_given(self, quiver: Commands) -> None:
        quiver("queue", "create", "emails", *DELIVERY, "--retention-bytes", "1GB")
        altered = quiver(
            *("queue", "alter", "emails", "--visibility", "5s", "--backoff-max", "2h"),
            *("--filter", "none", "--dead-letter", "none", "--retention-age", "none"),
            *("--push-batch", "20", "--push-secret", "none", "--json"),
        )
        assert altered.code == 0, altered.err
        changed = {
            "visibility": 5.0,
            "backoff": {"min": 2.0, "max": 7200.0, "factor": 3.0},
            "filter": None,
            "dead_letter": None,
            "push": PUSHED | {"batch": 20, "secret": None},
        }
        described = quiver("queue", "describe", "emails", "--json").json
        assert described["settings"] == altered.json["settings"]
        assert described["settings"].items() >= (DELIVERED | changed).items()
        assert described["topic"]["settings"]["retention"]["age"] is None
        assert described["topic"]["settings"]["retention"]["bytes"] == 10**9

    @pytest.mark.parametrize(
        ("mistake", "error"),
        [
            (["--visibility", "13h"], "visibility must be between"),
            (["--backoff-min", "11m"], "backoff.max must not be below"),
            (["--filter", "prio = 1"], "no such column"),
            (["--push-batch", "5"], "need --push-url"),
            (["--push-url", "ftp://127.0.0.1/"], "push.url must be a URL"),
            (["--push-url", "none", "--push-batch", "5"], "leave the other --push flags out"),
            (["--visibility", "1s", "--message-bytes-max", "1TB"], "--message-bytes-max must be"),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_a_mistake_in_an_alteration_leaves_everything_as_it_was(
        self, quiver: Commands, mistake: list[str], error: str
    ) -> None:
        quiver("queue", "create", "emails")
        before = quiver("queue", "describe", "emails", "--json").json
        told = quiver("queue", "alter", "emails", "--retention-age", "1h", *mistake)
        assert told.code == 2
        assert error in told.err
        assert quiver("queue", "describe", "emails", "--json").json == before

    @pytest.mark.parametrize(
        ("answer", "code", "left"), [("y\n", 0, []), ("n\n", 1, ["emails", "emails.dlq"])]
    )
    def test_deleting_asks_first(
        self,
        quiver: Commands,
        monkeypatch: pytest.MonkeyPatch,
        answer: str,
        code: int,
        left: list[str],
    ) -> None:
        quiver("queue", "create", "emails")
        quiver("publish", "emails", "x")
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        told = quiver("queue", "delete", "emails")
        assert told.code == code
        assert told.err.startswith("Delete queue emails and its messages (1)?")
        assert names(quiver("queue", "list", "--json")) == left
        assert names(quiver("topic", "list", "--json")) == left


class TestSubscription:
    @pytest.fixture
    def quiver(self, quiver: Commands) -> Commands:
        """And a topic ``orders`` with two partitions and three messages in one of them."""
        assert quiver("topic", "create", "orders", "--partitions", "2").code == 0
        assert quiver("publish", "orders", "a", "b", "c", "--key", "k").code == 0
        return quiver

    def test_it_is_made_as_the_flags_say(self, quiver: Commands) -> None:
        made = quiver(
            *("subscription", "create", "billing", "--topic", "orders", "-t", "paid.*"),
            *("--ordering", "key", *DELIVERY, "--json"),
        )
        assert made.code == 0, made.err
        expected = {"topics": ["orders", "paid.*"], "ordering": "key", "fairness": None}
        assert made.json["settings"] == DELIVERED | expected
        described = quiver("subscription", "describe", "billing", "--json").json
        assert described["settings"] == made.json["settings"]
        settings = table(quiver("subscription", "describe", "billing").out)
        assert settings["push"] == (
            "http://127.0.0.1:9/hook, 10 at a time, 2 pushes at once, timeout 5s, signed with hooks"
        )
        assert settings["on_disconnect"] == "keep"

    @pytest.mark.parametrize(
        ("flags", "count"),
        [
            ([], 0),
            (["--from", "earliest"], 3),
            (["--from", "-1h"], 3),
            (["--from", "latest"], 0),
            (["--from", "2026-01-01"], 3),
        ],
        ids=str,
    )
    def test_it_begins_where_it_is_told(
        self, quiver: Commands, flags: list[str], count: int
    ) -> None:
        assert quiver("subscription", "create", "s", "-t", "orders", *flags).code == 0
        assert len(quiver("peek", "s", "--json").json_lines) == count

    def test_it_goes_on_where_it_is_told(self, quiver: Commands) -> None:
        quiver("subscription", "create", "s", "-t", "orders")
        place = quiver("tail", "orders", "--json", "-n", "1").json["partition"]

        def payloads(*flags: str) -> list[str]:
            told = quiver("subscription", "seek", "s", *flags)
            assert told.code == 0, told.err
            return [line["payload"] for line in quiver("peek", "s", "--json").json_lines]

        assert payloads("--to", "earliest") == ["a", "b", "c"]
        assert payloads("--place", f"orders/{place}=2") == ["c"]
        assert payloads("--to", "-1h") == ["a", "b", "c"]
        assert payloads("--to", "latest") == []
        assert payloads("--to", "0") == ["a", "b", "c"]
        wrong = quiver("subscription", "seek", "s", "--place", "orders/7=0")
        assert wrong == (1, "", "error: 's' does not read partition 7 of 'orders'\n")
        far = quiver("subscription", "seek", "s", "--to", "99")
        assert far.code == 1
        assert len(far.err.splitlines()) == 2

    def test_a_description_shows_the_members_of_the_group(
        self, quiver: Commands, node: Served
    ) -> None:
        quiver("subscription", "create", "ledger", "-t", "orders", "--ordering", "partition")
        _, _, _, members = quiver("subscription", "describe", "ledger").out.split("\n\n")
        assert members.split() == ["MEMBER", "PARTITIONS", "none"]
        with Client(node.url) as client:
            client.heartbeat("ledger", "worker-1")
            parts = quiver("subscription", "describe", "ledger").out.split("\n\n")
            settings, depth, _, members = parts
        assert table(settings)["ordering"] == "partition"
        assert table(depth)["unseen"] == "0"
        assert table(members)["worker-1"] == "orders/0, orders/1"

    def test_altering_changes_only_what_is_given(self, quiver: Commands) -> None:
        quiver("subscription", "create", "s", "-t", "orders", *DELIVERY)
        altered = quiver(
            *("subscription", "alter", "s", "-t", "orders", "-t", "more.*", "--json"),
            *("--max-deliveries", "0", "--filter", "priority >= 5"),
            *("--push-url", "none", "--on-disconnect", "return"),
        )
        assert altered.code == 0, altered.err
        changed = {
            "topics": ["orders", "more.*"],
            "max_deliveries": 0,
            "filter": "priority >= 5",
            "push": None,
            "on_disconnect": "return",
        }
        assert altered.json["settings"].items() >= (DELIVERED | changed).items()

    @pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, []), ("n\n", 1, ["s"])])
    def test_deleting_asks_first_and_leaves_the_topic(
        self,
        quiver: Commands,
        monkeypatch: pytest.MonkeyPatch,
        answer: str,
        code: int,
        left: list[str],
    ) -> None:
        quiver("subscription", "create", "s", "-t", "orders", "--from", "earliest")
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        told = quiver("subscription", "delete", "s")
        assert told.code == code
        assert told.err.startswith("Delete subscription s, which has 3 pending messages?")
        assert names(quiver("subscription", "list", "--json")) == left
        assert names(quiver("topic", "list", "--json")) == ["orders"]


class TestMistakes:
    @pytest.mark.parametrize(
        "command",
        [
            ["queue", "describe", "none"],
            ["queue", "alter", "none", "--visibility", "1s"],
            ["queue", "seek", "none", "--to", "latest"],
            ["queue", "delete", "none"],
            ["queue", "delete", "none", "--yes"],
            ["subscription", "describe", "none"],
            ["subscription", "alter", "none", "--visibility", "1s"],
            ["subscription", "seek", "none", "--to", "latest"],
            ["subscription", "delete", "none", "--yes"],
            ["consume", "none"],
            ["peek", "none"],
            ["purge", "none"],
            ["purge", "none", "--yes"],
            ["redrive", "none"],
        ],
        ids=" ".join,
    )
    def test_a_name_that_is_not_there(self, quiver: Commands, command: list[str]) -> None:
        told = quiver(*command)
        assert (told.code, told.out) == (1, "")
        error, hint = told.err.splitlines()
        kind = command[0] if command[0] in ("queue", "subscription") else "queue or subscription"
        assert error == f"error: there is no {kind} named 'none'"
        assert hint.startswith("hint: list them with: quiver queue list")

    def test_a_topic_that_is_not_there(self, quiver: Commands) -> None:
        told = quiver("subscription", "create", "s", "-t", "none")
        assert told.code == 1
        assert told.err.splitlines()[0] == "error: there is no topic named 'none'"

    @pytest.mark.parametrize("verb", ["describe", "alter", "seek", "delete"])
    def test_a_name_of_the_other_kind(self, quiver: Commands, verb: str) -> None:
        """Deleting a queue deletes its messages: nobody shall do that who meant a subscription."""
        flags = {"alter": ["--visibility", "1s"], "seek": ["--to", "latest"], "delete": ["--yes"]}
        quiver("queue", "create", "q")
        quiver("subscription", "create", "s", "-t", "q")
        told = quiver("subscription", verb, "q", *flags.get(verb, []))
        assert (told.code, told.out) == (1, "")
        assert told.err.startswith("error: 'q' is a queue, not a subscription\n")
        told = quiver("queue", verb, "s", *flags.get(verb, []))
        assert (told.code, told.out) == (1, "")
        assert told.err.startswith("error: 's' is a subscription, not a queue\n")
        assert names(quiver("queue", "list", "--json")) == ["q", "q.dlq"]
        assert names(quiver("subscription", "list", "--json")) == ["s"]

    @pytest.mark.parametrize(
        "command",
        [
            ["queue", "list"],
            ["queue", "create", "a"],
            ["subscription", "list"],
            ["consume", "a"],
            ["peek", "a"],
            ["purge", "a"],
            ["redrive", "a"],
            ["message", "a", "0" * 32],
            ["cancel", "a", "0" * 32],
        ],
        ids=lambda command: " ".join(command[:2]),
    )
    def test_a_node_that_is_not_there(self, quiver: Commands, command: list[str]) -> None:
        told = quiver(*command, url=f"quiver://{unused_address()}")
        assert (told.code, told.out) == (3, "")
        assert len(told.err.splitlines()) == 2
