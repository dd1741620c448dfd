"""Transactions of programs without an event loop, over a node in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from quiver import protocol
from quiver.client import Client
from quiver.client.blocking.transaction import Transaction
from quiver.errors import (
    InvalidRequest,
    MessageTooLarge,
    QuiverError,
    TransactionError,
    TransactionTimedOut,
)
from quiver.model.transaction import TransactionState, producer_of
from tests.unit.client.scripted_node import ScriptedDialer
from tests.unit.client.transaction.scripted_coordinator import ScriptedCoordinator


@contextmanager
def scripted() -> Iterator[tuple[Client, ScriptedCoordinator]]:
    node = ScriptedCoordinator()
    node.add_topic("invoices")
    node.add_topic("orders")
    with Client(dialer=ScriptedDialer(node)) as client:
        yield client, node


def test_a_received_message_is_acknowledged_together_with_what_is_published() -> None:
    with scripted() as (client, node):
        client.publish("orders", b"1")
        with client.transaction() as tx:
            for message in client.receive("orders"):
                tx.publish("invoices", b"bill", key=message.payload)
                tx.ack(message)
        assert tx.state is TransactionState.COMMITTED
        assert client.describe_transaction(tx.id) is TransactionState.COMMITTED
        assert list(node.held[tx.id]) == [0]
        assert node.payloads("invoices") == [[b"bill"]]


def test_the_next_transaction_asks_no_node_before_it_ends() -> None:
    with scripted() as (client, node):
        for number in range(3):
            with client.transaction() as tx:
                tx.publish("invoices", b"x")
            assert producer_of(tx.id)[1] == number
        assert node.count(protocol.BeginTransactions) == 1
        assert node.count(protocol.DescribeTopic) == 1


def test_an_exception_aborts_and_propagates() -> None:
    with scripted() as (client, node):
        tx = client.transaction()
        with pytest.raises(ValueError, match="no such order"):
            fail(tx)
        assert tx.state is TransactionState.ABORTED
        assert node.outcomes == {tx.id: False}


def fail(tx: object) -> None:
    with tx as one:  # type: ignore[attr-defined]
        one.publish("invoices", b"x")
        raise ValueError("no such order")


def test_many_messages_tables_and_producers_are_part_of_it() -> None:
    with scripted() as (client, node), client.producer("invoices") as producer:
        with client.transaction() as tx:
            assert tx.publish_many("invoices", [b"1", b"2"]) == 2
            tx.publish_table("invoices", pa.table({"payload": [b"3"]}))
            producer.send(b"4", transaction=tx)
            producer.send_arrow(pa.table({"payload": [b"5"]}), transaction=tx)
        assert node.payloads("invoices") == [[b"1", b"2", b"3", b"4", b"5"]]
        assert {entry.producer_id for entry in node.partitions["invoices"][0].entries} == {
            producer_of(tx.id)[0]
        }


def test_an_explicit_end_is_the_end() -> None:
    with scripted() as (client, node):
        tx = client.transaction().begin()
        tx.publish("invoices", b"x")
        tx.commit()
        with pytest.raises(TransactionError, match="is committed"):
            tx.publish("invoices", b"y")
        with client.transaction(name="billing") as named:
            assert named.name == "billing"
            named.publish("invoices", b"z")
            named.abort()
        assert node.outcomes == {tx.id: True, named.id: False}


def test_a_transaction_belongs_to_its_thread() -> None:
    with scripted() as (client, _), client.transaction() as tx:
        tx.publish("invoices", b"of its own thread")
        errors: list[QuiverError] = []

        def use(call: Callable[[], object]) -> None:
            try:
                call()
            except QuiverError as error:
                errors.append(error)

        for call in (lambda: tx.publish("invoices", b"x"), tx.commit, tx.abort, tx.begin):
            thread = threading.Thread(target=use, args=(call,))
            thread.start()
            thread.join()
        assert [type(error) for error in errors] == [InvalidRequest] * 4
        assert "belongs to the thread" in errors[0].message


def publish_for_ten_seconds(tx: Transaction) -> None:
    for _ in range(1_000):
        tx.publish("invoices", b"x")
        time.sleep(0.01)


def test_soon_after_its_time_limit_a_transaction_takes_no_message() -> None:
    with scripted() as (client, node):
        tx = client.transaction(timeout=0.1).begin()
        with pytest.raises(TransactionTimedOut):
            publish_for_ten_seconds(tx)
        with pytest.raises(TransactionTimedOut):
            tx.commit()
        assert node.outcomes == {tx.id: False}


def test_threads_have_transactions_of_their_own_at_the_same_time() -> None:
    with scripted() as (client, node):
        barrier = threading.Barrier(8)

        def work(number: int) -> None:
            with client.transaction() as tx:
                barrier.wait()
                tx.publish("invoices", b"%d" % number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(node.outcomes) == 8
        assert sorted(node.payloads("invoices")[0]) == [b"%d" % number for number in range(8)]


def test_a_message_that_is_not_valid_is_refused_where_it_is_given() -> None:
    with scripted() as (client, node):
        node.add_topic("small", message_bytes_max=1024)
        with client.transaction() as tx:
            with pytest.raises(MessageTooLarge):
                tx.publish("small", bytes(5000))
            with pytest.raises(InvalidRequest, match="named producer"):
                tx.publish("small", b"x", sequence=1)
