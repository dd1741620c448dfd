"""``quiver transaction`` against a running node: what is open, and an end to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiver.client import Client
from quiver.errors import TransactionAborted
from tests.serving import Commands, Served, eventually, served

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def quiver(node: Served, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(node.url, capsys)


def read(q: Client, topic: str) -> list[bytes]:
    return [one.payload for one in q.read(topic).messages()]


def test_a_transaction_that_readers_wait_for_is_listed_and_can_be_aborted(
    node: Served, quiver: Commands
) -> None:
    with Client(node.url) as q:
        q.create_topic("invoices", partitions=2)
        tx = q.transaction()
        tx.begin()
        tx.publish("invoices", b"lost", partition=1)
        eventually(lambda: quiver("transaction", "list", "--json").json != [], "it is stored")
        q.publish("invoices", b"later", partition=1)
        (listed,) = quiver("transaction", "list", "--json").json
        age_s = listed.pop("age_s")
        assert 0 <= age_s < 60
        assert listed == {
            "transaction": tx.id,
            "topic": "invoices",
            "partition": 1,
            "first_offset": 0,
        }
        assert str(tx.id) in quiver("transaction", "list", "invoices").out
        assert read(q, "invoices") == []
        assert quiver("transaction", "abort", str(tx.id)).code == 0
        eventually(lambda: read(q, "invoices") == [b"later"], "the partition knows of it")
        assert quiver("transaction", "describe", str(tx.id), "--json").json["state"] == "aborted"
        with pytest.raises(TransactionAborted):
            tx.commit()
        assert "no transaction is open" in quiver("transaction", "list").err


def test_what_is_committed_stays_committed(node: Served, quiver: Commands) -> None:
    with Client(node.url) as q:
        q.create_topic("done")
        with q.transaction() as tx:
            tx.publish("done", b"1")
        result = quiver("transaction", "abort", str(tx.id))
        assert (result.code, "is committed" in result.err) == (1, True)
        assert read(q, "done") == [b"1"]
