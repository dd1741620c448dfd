"""Transactions against a node in memory: what is sent when, and what each failure means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from quiver import protocol
from quiver.client import AsyncClient, AsyncTransaction
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.transaction import transaction_producers
from quiver.errors import (
    ConnectionLost,
    InvalidRequest,
    InvalidSetting,
    MessageTooLarge,
    PermissionDenied,
    RequestTimeout,
    StaleReceipt,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionInDoubt,
    TransactionTimedOut,
    TransactionTooLarge,
)
from quiver.model.envelope import TRANSACTIONAL
from quiver.model.transaction import EPOCHS_MAX, PARTICIPANTS_MAX, TransactionState, producer_of
from tests.aio import async_test
from tests.unit.client.scripted_node import Fate, HastyClock, ScriptedDialer, until
from tests.unit.client.transaction.scripted_coordinator import (
    LEASE_S,
    ScriptedCoordinator,
    always,
    once,
)


@asynccontextmanager
async def scripted(
    **client: Any,
) -> AsyncIterator[tuple[AsyncClient, ScriptedCoordinator, HastyClock]]:
    node, clock = ScriptedCoordinator(), HastyClock()
    node.add_topic("invoices")
    node.add_topic("audit", 2)
    node.add_topic("orders")
    one = AsyncClient(dialer=ScriptedDialer(node), clock=clock, **client)
    try:
        yield one, node, clock
    finally:
        node.open.set()
        await one.close()


def ends(node: ScriptedCoordinator) -> list[protocol.EndTransaction]:
    return [one for one in node.requests if isinstance(one, protocol.EndTransaction)]


def participants(end: protocol.EndTransaction) -> set[tuple[str, int]]:
    return {(one.topic, one.partition) for one in end.participants}


async def failing(tx: AsyncTransaction, *messages: ReceivedMessage) -> None:
    """A program that fails in its block."""
    async with tx:
        await tx.publish("invoices", b"x")
        tx.ack(messages)
        raise ValueError("bad order")


class TestCommit:
    @async_test
    async def test_leaving_the_block_commits_what_was_published(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction() as tx:
                await tx.publish("invoices", {"order": 1}, key="a")
                await tx.publish("audit", b"x", partition=1)
            assert tx.state is TransactionState.COMMITTED
            (end,) = ends(node)
            assert end.is_commit
            assert end.transaction == tx.id
            assert participants(end) == {("invoices", 0), ("audit", 1)}
            for topic, index in participants(end):
                (entry,) = node.partitions[topic][index].entries
                assert entry.flags == TRANSACTIONAL
                assert (entry.producer_id, entry.producer_epoch) == producer_of(tx.id)

    @async_test
    async def test_the_coordinator_decides_only_when_everything_is_stored(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction() as tx:
                await tx.publish_many("invoices", [b"%d" % n for n in range(1000)])
            ended = node.requests.index(ends(node)[0])
            assert all(
                node.requests.index(one) < ended
                for one in node.requests
                if isinstance(one, protocol.Publish)
            )
            assert len(node.payloads("invoices")[0]) == 1000

    @async_test
    async def test_the_next_transaction_has_the_next_epoch_and_asks_nobody(self) -> None:
        async with scripted() as (client, node, _):
            ids = []
            for _ in range(3):
                async with client.transaction() as tx:
                    await tx.publish("invoices", b"x")
                ids.append(tx.id)
            assert [producer_of(one)[1] for one in ids] == [0, 1, 2]
            assert node.count(protocol.BeginTransactions) == 1
            assert node.count(protocol.DescribeTopic) == 1
            entries = node.partitions["invoices"][0].entries
            assert [entry.sequence for entry in entries] == [0, 0, 0]

    @async_test
    async def test_two_at_once_have_producers_of_their_own(self) -> None:
        async with (
            scripted() as (client, node, _),
            client.transaction() as one,
            client.transaction() as other,
        ):
            await one.publish("invoices", b"1")
            await other.publish("invoices", b"2")
            assert producer_of(one.id)[0] != producer_of(other.id)[0]
            assert node.count(protocol.BeginTransactions) == 2

    @async_test
    async def test_one_message_costs_a_publish_and_a_hold_together_and_then_the_end(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish("orders", b"1")
            async with client.transaction() as tx:
                await tx.publish("invoices", b"warm")
            (message,) = await client.receive("orders")
            before = len(node.requests)
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
                tx.ack(message)
            sent = [type(one) for one in node.requests[before:]]
            assert sorted(sent[:2], key=str) == sorted([protocol.Publish, protocol.Hold], key=str)
            assert sent[2:] == [protocol.EndTransactionAfter]

    @async_test
    async def test_an_empty_transaction_asks_nobody(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction() as tx:
                pass
            assert tx.state is TransactionState.COMMITTED
            assert not ends(node)

    @async_test
    async def test_an_arrow_table_is_published(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction() as tx:
                await tx.publish_table("invoices", pa.table({"payload": [b"a", b"b"]}))
                assert await tx.publish_many("audit", pa.table({"payload": [b"c"]})) == 1
            assert node.payloads("invoices") == [[b"a", b"b"]]

    @async_test
    async def test_a_producer_sends_in_a_transaction(self) -> None:
        async with scripted() as (client, node, _):
            async with client.producer("invoices") as producer, client.transaction() as tx:
                await producer.send(b"plain")
                await producer.send(b"in it", transaction=tx)
                await producer.send_arrow(pa.table({"payload": [b"rows"]}), transaction=tx)
            flags = {
                payload: entry.flags
                for entry in node.partitions["invoices"][0].entries
                for payload in entry.record_batch().column("payload").to_pylist()
            }
            assert flags == {b"plain": 0, b"in it": TRANSACTIONAL, b"rows": TRANSACTIONAL}

    @async_test
    async def test_a_named_producer_sends_nothing_in_a_transaction(self) -> None:
        async with (
            scripted() as (client, _, _),
            client.producer("invoices", name="import") as producer,
            client.transaction() as tx,
        ):
            with pytest.raises(InvalidRequest, match="named producer"):
                await producer.send(b"x", transaction=tx)

    @async_test
    async def test_a_topic_without_acknowledgements_has_them_in_a_transaction(self) -> None:
        async with scripted() as (client, node, _):
            node.add_topic("logs", acks="none")
            async with client.transaction() as tx:
                await tx.publish("logs", b"x")
            (publish,) = [one for one in node.requests if isinstance(one, protocol.Publish)]
            assert publish.acks == "quorum"

    @async_test
    async def test_a_split_meanwhile_moves_messages_and_names_both_partitions(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction() as tx:
                await tx.publish("invoices", b"warm", key="0")
            node.split("invoices", 0)
            async with client.transaction() as tx:
                for number in range(64):
                    await tx.publish("invoices", b"%d" % number, key=str(number))
            stored = node.payloads("invoices")
            assert sorted(map(int, [*stored[0][1:], *stored[1]])) == list(range(64))
            assert participants(ends(node)[-1]) == {("invoices", 0), ("invoices", 1)}


class TestAnswers:
    @async_test
    async def test_a_commit_whose_answer_is_lost_is_repeated(self) -> None:
        async with scripted() as (client, node, _):
            node.after = once(protocol.EndTransaction, ConnectionLost())
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
            assert tx.state is TransactionState.COMMITTED
            assert len(ends(node)) == 2

    @async_test
    async def test_without_an_answer_the_outcome_is_asked_for(self) -> None:
        async with scripted() as (client, node, _):
            node.after = always(protocol.EndTransaction, RequestTimeout())
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
            assert tx.state is TransactionState.COMMITTED
            assert node.count(protocol.DescribeTransaction) == 1

    @async_test
    async def test_an_unknown_outcome_is_an_error_that_names_the_transaction(self) -> None:
        async with scripted() as (client, node, _):
            node.before = always(protocol.EndTransaction, RequestTimeout())
            tx = await client.transaction()
            await tx.publish("invoices", b"x")
            with pytest.raises(TransactionInDoubt, match=str(tx.id)) as caught:
                await tx.commit()
            assert caught.value.details["transaction"] == tx.id
            assert tx.state is TransactionState.UNKNOWN

    @async_test
    async def test_after_any_doubt_the_producer_is_not_used_again(self) -> None:
        async with scripted() as (client, node, _):
            node.before = always(protocol.EndTransaction, RequestTimeout())
            tx = await client.transaction()
            await tx.publish("invoices", b"x")
            with pytest.raises(TransactionInDoubt):
                await tx.commit()
            node.before = lambda _: None
            async with client.transaction() as other:
                await other.publish("invoices", b"y")
            assert producer_of(other.id)[0] != producer_of(tx.id)[0]

    @async_test
    async def test_a_commit_waits_for_partitions_that_have_not_heard_of_it(self) -> None:
        async with scripted() as (client, node, _):
            node.is_complete = False

            def complete(request: protocol.AnyRequest) -> None:
                node.is_complete = len(ends(node)) == 3

            node.before = complete
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
            assert tx.state is TransactionState.COMMITTED
            assert len(ends(node)) == 3

    @async_test
    async def test_a_partition_that_never_hears_of_it_costs_the_producer(self) -> None:
        async with scripted() as (client, node, _):
            node.is_complete = False
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
            assert tx.state is TransactionState.COMMITTED
            async with client.transaction() as other:
                pass
            assert producer_of(other.id)[0] != producer_of(tx.id)[0]

    @async_test
    async def test_an_aborted_commit_raises_and_says_so(self) -> None:
        async with scripted() as (client, node, _):
            tx = await client.transaction()
            await tx.publish("invoices", b"x")
            node.outcomes[tx.id] = False
            with pytest.raises(TransactionAborted):
                await tx.commit()
            assert tx.state is TransactionState.ABORTED

    @async_test
    async def test_a_refusal_after_a_lost_answer_does_not_hide_that_it_was_committed(self) -> None:
        async with scripted() as (client, node, _):
            answers = [ConnectionLost(), PermissionDenied()]

            def lose(request: protocol.AnyRequest) -> None:
                if isinstance(request, protocol.EndTransaction) and answers:
                    raise answers.pop(0)

            node.after = lose
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
            assert tx.state is TransactionState.COMMITTED

    @async_test
    async def test_an_id_with_all_its_epochs_used_is_dropped(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction() as tx:
                pass
            (idle,) = client._transactions._idle
            idle._epoch = EPOCHS_MAX - 1  # type: ignore[assignment]
            for _ in range(2):
                async with client.transaction() as tx:
                    await tx.publish("invoices", b"x")
            assert node.count(protocol.BeginTransactions) == 2


class TestAbort:
    @async_test
    async def test_an_exception_aborts_and_propagates(self) -> None:
        async with scripted() as (client, node, _):
            tx = client.transaction()
            with pytest.raises(ValueError, match="bad order"):
                await failing(tx)
            assert tx.state is TransactionState.ABORTED
            (end,) = ends(node)
            assert not end.is_commit
            assert participants(end) == {("invoices", 0)}

    @async_test
    async def test_nothing_is_under_way_when_an_abort_is_told(self) -> None:
        async with scripted() as (client, node, _):
            tx = await client.transaction()
            await tx.publish_many("invoices", [b"x"] * 100)
            await tx.abort()
            assert isinstance(node.requests[-1], protocol.EndTransaction)

    @async_test
    async def test_a_message_that_cannot_be_stored_aborts(self) -> None:
        async with scripted() as (client, node, _):
            node.fate = lambda _: TopicNotFound("it was deleted")
            tx = await client.transaction()
            delivery = await tx.publish("invoices", b"x")
            with pytest.raises(TopicNotFound):
                await delivery  # reading it does not make it less of a failure
            with pytest.raises(TopicNotFound):
                await tx.commit()
            assert tx.state is TransactionState.ABORTED
            assert not any(end.is_commit for end in ends(node))

    @async_test
    async def test_an_invalid_message_is_refused_where_it_is_given(self) -> None:
        async with scripted() as (client, node, _):
            node.add_topic("small", message_bytes_max=1024)
            async with client.transaction() as tx:
                with pytest.raises(MessageTooLarge):
                    await tx.publish("small", bytes(2000))
                await tx.publish("small", b"fits")
            assert node.payloads("small") == [[b"fits"]]

    @async_test
    async def test_an_abort_that_reaches_nobody_is_the_time_limits(self) -> None:
        async with scripted(timeout="1s") as (client, node, _):
            tx = await client.transaction()
            await tx.publish("invoices", b"x")
            node.before = always(protocol.EndTransaction, ConnectionLost())
            await tx.abort()
            assert tx.state is TransactionState.ABORTED

    @async_test
    async def test_a_cancelled_commit_aborts(self) -> None:
        async with scripted() as (client, node, _):
            tx = await client.transaction()
            await tx.publish("invoices", b"warm")
            node.open.clear()
            await tx.publish("invoices", b"x")
            commit = asyncio.create_task(tx.commit())
            await until(lambda: node.count(protocol.Publish) >= 1)
            commit.cancel()
            node.open.set()
            with pytest.raises(asyncio.CancelledError):
                await commit
            assert tx.state is TransactionState.ABORTED
            assert [end.is_commit for end in ends(node)] == [False]

    @pytest.mark.parametrize("wrong", [-1, 1 << 64, "tx_AAAQAAAAAABg6gAAGA", None])
    @async_test
    async def test_what_is_no_id_of_a_transaction_is_refused(self, wrong: Any) -> None:
        async with scripted() as (client, node, _):
            for call in (client.describe_transaction, client.abort_transaction):
                with pytest.raises(InvalidRequest, match="is not the id of a transaction"):
                    await call(wrong)
            assert node.requests == []

    @async_test
    async def test_closing_the_client_aborts_what_is_open(self) -> None:
        async with scripted() as (client, node, _):
            tx = await client.transaction()
            await tx.publish("invoices", b"x")
            await client.close()
            assert tx.state is TransactionState.ABORTED
            assert [end.is_commit for end in ends(node)] == [False]

    @async_test
    async def test_closing_the_client_while_one_is_being_ended_aborts_the_others(self) -> None:
        async with scripted() as (client, node, _):
            ending, other = await client.transaction(), await client.transaction()
            for tx in (ending, other):
                await tx.publish("invoices", b"x")
            node.open.clear()
            abort = asyncio.create_task(ending.abort())
            await asyncio.sleep(0)  # it has begun
            close = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            node.open.set()
            await asyncio.gather(abort, close)
            assert (ending.state, other.state) == (TransactionState.ABORTED,) * 2
            assert sorted(end.transaction for end in ends(node)) == sorted([ending.id, other.id])


class TestAcknowledgements:
    @async_test
    async def test_messages_are_held_before_the_end(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish_many("orders", [b"1", b"2", b"3"])
            messages = await client.receive("orders")
            async with client.transaction() as tx:
                tx.ack(messages[0])
                await tx.ack(messages[1:])
            assert list(node.held[tx.id]) == [0, 1, 2]
            assert node.count(protocol.Hold) == 1
            assert participants(ends(node)[0]) == {("orders", 0)}

    @async_test
    async def test_a_message_whose_lease_ends_soon_is_held_at_once(self) -> None:
        async with scripted() as (client, node, clock):
            await client.publish_many("orders", [b"1", b"2"])
            one, other = await client.receive("orders")
            async with client.transaction() as tx:
                tx.ack(one)
                await asyncio.sleep(0)
                assert not node.count(protocol.Hold)
                clock.now += LEASE_S - 0.5
                tx.ack(other)
                await until(lambda: node.count(protocol.Hold) == 1)
                assert list(node.held[tx.id]) == [0, 1]

    @async_test
    async def test_a_received_batch_is_acknowledged(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish_many("orders", [b"1", b"2", b"3"])
            batch = await client.receive_batch("orders")
            async with client.transaction() as tx:
                with pytest.raises(InvalidRequest, match="subscription"):
                    tx.ack(batch)
                tx.ack(batch, subscription="orders")
                with pytest.raises(InvalidRequest, match="already"):
                    tx.ack(batch.slice(1), subscription="orders")
            assert list(node.held[tx.id]) == [0, 1, 2]
            assert participants(ends(node)[0]) == {("orders", 0)}

    @async_test
    async def test_a_hold_whose_answer_is_lost_is_repeated(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish("orders", b"1")
            (message,) = await client.receive("orders")
            node.after = once(protocol.Hold, ConnectionLost())
            async with client.transaction() as tx:
                tx.ack(message)
            assert node.count(protocol.Hold) == 2
            assert list(node.held[tx.id]) == [0]

    @async_test
    async def test_a_lease_that_has_ended_aborts_and_names_the_message(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish_many("orders", [b"1", b"2"])
            messages = await client.receive("orders")
            node.stale.add(1)
            tx = await client.transaction()
            await tx.publish("invoices", b"x")
            tx.ack(messages)
            with pytest.raises(StaleReceipt, match="offset 1 of 'orders'") as caught:
                await tx.commit()
            assert caught.value.details["stale"] == [messages[1].receipt]
            assert tx.state is TransactionState.ABORTED
            (end,) = ends(node)
            assert not end.is_commit
            assert participants(end) == {("orders", 0), ("invoices", 0)}

    @async_test
    async def test_an_abort_returns_what_was_not_held_and_counts_nothing(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish("orders", b"1")
            (message,) = await client.receive("orders")
            tx = await client.transaction()
            tx.ack(message)
            await tx.abort()
            assert list(node.returned) == [0]
            assert not node.nacked

    @async_test
    async def test_an_exception_counts_as_a_failed_attempt_of_what_was_acknowledged(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish("orders", b"1")
            (message,) = await client.receive("orders")
            with pytest.raises(ValueError, match="bad order"):
                await failing(client.transaction(), message)
            assert node.nacked == {0: "ValueError: bad order"}

    @async_test
    async def test_messages_wait_a_second_at_most_before_they_are_held(self) -> None:
        async with scripted() as (client, node, _):
            await client.publish("orders", b"1")
            (message,) = await client.receive("orders")
            async with client.transaction() as tx:
                tx.ack(message)
                client._transactions._tick()
                await until(lambda: tx.id in node.held)

    @async_test
    async def test_a_message_is_acknowledged_once(self) -> None:
        async with scripted() as (client, _, _):
            await client.publish("orders", b"1")
            (message,) = await client.receive("orders")
            async with client.transaction() as tx:
                tx.ack(message)
                with pytest.raises(InvalidRequest, match="already"):
                    tx.ack(message)

    @async_test
    async def test_messages_of_another_client_are_refused(self) -> None:
        async with scripted() as (client, _, _), scripted() as (other, _, _):
            await other.publish("orders", b"1")
            (message,) = await other.receive("orders")
            async with client.transaction() as tx:
                with pytest.raises(InvalidRequest, match="another client"):
                    tx.ack(message)

    @async_test
    async def test_what_is_no_received_message_is_refused(self) -> None:
        async with scripted() as (client, _, _), client.transaction() as tx:
            for wrong in (7, "receipt", [b"x"]):
                with pytest.raises(InvalidRequest, match="give messages"):
                    tx.ack(wrong)


class TestMisuse:
    @async_test
    async def test_after_its_end_a_transaction_takes_nothing(self) -> None:
        async with scripted() as (client, _, _):
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
            for use in (lambda: tx.publish("invoices", b"y"), tx.commit, tx.abort):
                with pytest.raises(TransactionError, match="is committed: begin another"):
                    await use()
            with pytest.raises(TransactionError):
                tx.ack([])

    @async_test
    async def test_a_transaction_that_was_ended_in_its_block_is_left_as_it_is(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
                await tx.abort()
            assert tx.state is TransactionState.ABORTED
            await tx.abort()  # again is no harm
            assert len(ends(node)) == 1

    @async_test
    async def test_a_transaction_begins_once(self) -> None:
        async with scripted() as (client, _, _), client.transaction() as tx:
            with pytest.raises(InvalidRequest, match="begins once"):
                async with tx:
                    pass

    @async_test
    async def test_before_it_begins_it_takes_nothing(self) -> None:
        async with scripted() as (client, _, _):
            tx = client.transaction()
            with pytest.raises(InvalidRequest, match="has not begun"):
                await tx.publish("invoices", b"x")
            with pytest.raises(InvalidRequest, match="has not begun"):
                _ = tx.id

    @pytest.mark.parametrize("timeout", [0, "16m", -1])
    @async_test
    async def test_the_time_limit_has_bounds(self, timeout: object) -> None:
        async with scripted() as (client, _, _):
            with pytest.raises(InvalidSetting, match="timeout"):
                client.transaction(timeout=timeout)  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["", "x" * 256, 7])
    @async_test
    async def test_a_name_has_bounds(self, name: Any) -> None:
        async with scripted() as (client, _, _):
            with pytest.raises(InvalidSetting, match="name"):
                client.transaction(name)


class TestTimeLimit:
    @async_test
    async def test_the_coordinator_is_told_of_a_limit_that_is_not_the_usual_one(self) -> None:
        async with scripted() as (client, node, _):
            async with client.transaction(timeout="5m") as tx:
                await tx.publish("invoices", b"x")
            (join,) = [one for one in node.requests if isinstance(one, protocol.JoinTransaction)]
            assert (join.transaction, join.timeout_ms) == (tx.id, 300_000)
            assert ends(node)[0].timeout_ms == 300_000

    @async_test
    async def test_after_the_limit_nothing_is_taken_and_a_commit_aborts(self) -> None:
        async with scripted() as (client, node, clock):
            tx = await client.transaction()
            await (await tx.publish("invoices", b"x"))
            clock.now += 61
            with pytest.raises(TransactionTimedOut):
                await tx.publish("invoices", b"y")
            with pytest.raises(TransactionTimedOut, match="60 s"):
                await tx.commit()
            assert tx.state is TransactionState.ABORTED
            assert [end.is_commit for end in ends(node)] == [False]

    @async_test
    async def test_the_coordinator_learns_how_old_the_transaction_is(self) -> None:
        async with scripted() as (client, node, clock):
            async with client.transaction() as tx:
                await (await tx.publish("invoices", b"x"))
                clock.now += 20
            assert ends(node)[0].age_ms >= 20_000


class TestNames:
    @async_test
    async def test_a_name_is_begun_once_in_a_client(self) -> None:
        async with scripted() as (client, node, _):
            for _ in range(3):
                async with client.transaction("billing") as tx:
                    await tx.publish("invoices", b"x")
            assert node.count(protocol.BeginTransactions) == 1
            assert {end.name for end in ends(node)} == {"billing"}

    @async_test
    async def test_a_client_with_the_same_name_fences_the_one_before_for_good(self) -> None:
        async with scripted() as (client, node, clock):
            tx = await client.transaction("billing")
            await tx.publish("invoices", b"old")
            async with (
                AsyncClient(dialer=ScriptedDialer(node), clock=clock) as other,
                other.transaction("billing") as later,
            ):
                await later.publish("invoices", b"new")
            with pytest.raises(TransactionFenced):
                await tx.commit()
            assert tx.state is TransactionState.ABORTED
            with pytest.raises(TransactionFenced):
                await client.transaction("billing")
            async with client.transaction() as unnamed:
                await unnamed.publish("invoices", b"x")

    @async_test
    async def test_a_name_has_one_open_transaction_in_a_client(self) -> None:
        async with scripted() as (client, _, _):
            async with client.transaction("billing"):
                with pytest.raises(InvalidRequest, match="is open in this client"):
                    await client.transaction("billing")
            async with client.transaction("billing"):
                pass

    @async_test
    async def test_a_name_that_could_not_be_begun_is_free_again(self) -> None:
        async with scripted() as (client, node, _):
            node.before = always(protocol.BeginTransactions, PermissionDenied())
            with pytest.raises(PermissionDenied):
                await client.transaction("billing")
            node.before = lambda _: None
            async with client.transaction("billing"):
                pass


class TestBounds:
    @async_test
    async def test_a_transaction_over_too_many_partitions_is_aborted(self) -> None:
        async with scripted() as (client, node, _):
            node.add_topic("wide", PARTICIPANTS_MAX + 1)
            tx = await client.transaction()
            for index in range(PARTICIPANTS_MAX + 1):
                await tx.publish("wide", b"x", partition=index)
            with pytest.raises(TransactionTooLarge, match="1,001 partitions"):
                await tx.commit()
            assert tx.state is TransactionState.ABORTED

    @async_test
    async def test_lost_answers_of_publishes_store_nothing_twice(self) -> None:
        async with scripted() as (client, node, _):
            fates = [Fate.REPLY_LOST, Fate.UNANSWERED, Fate.REQUEST_LOST, Fate.UNAVAILABLE]
            node.fate = lambda number: fates[number - 1] if number <= 4 else Fate.ANSWERED
            async with client.transaction() as tx:
                await tx.publish_many("invoices", [b"%d" % n for n in range(10)])
            assert node.payloads("invoices") == [[b"%d" % n for n in range(10)]]

    @async_test
    async def test_producers_that_are_kept_are_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transaction_producers, "IDLE_MAX", 2)
        async with scripted() as (client, node, _):
            for name in ("a", "b", "c", "a"):
                async with client.transaction(name) as tx:
                    await tx.publish("invoices", b"x")
            assert node.count(protocol.BeginTransactions) == 4, "the first name was forgotten"
            several = [await client.transaction() for _ in range(4)]
            for one in several:
                await one.commit()
            assert len(client._transactions._idle) == 2
