"""Shared transactions on one node, over the real protocol: what was named counts, once, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quiver import protocol
from quiver.client import AsyncClient
from quiver.client.transaction.shared import PartReference, SharedTransactions, TransactionPart
from quiver.errors import (
    InvalidRequest,
    PermissionDenied,
    TransactionError,
    TransactionFenced,
    TransactionNotFound,
)
from quiver.model.transaction import TransactionState
from tests.integration.edge_node import edge_test
from tests.integration.test_transactions import clients, payloads


def shared(client: AsyncClient, name: str = "sink") -> SharedTransactions:
    return SharedTransactions(client.cluster, name, 60.0)


async def opened(transactions: SharedTransactions, number: int) -> TransactionPart:
    part = await transactions.part(number)
    assert part is not None, "the number is not committed"
    return part


async def written(transactions: SharedTransactions, number: int, *values: bytes) -> PartReference:
    part = await opened(transactions, number)
    producer = await part.producer("invoices")
    for value in values:
        await producer.send(value)
    return await part.stored()


@edge_test
async def test_parts_of_several_clients_are_visible_together(tmp_path: Path) -> None:
    async with clients(tmp_path, 3) as several:
        sinks = [shared(client) for client in several]
        parts = [await written(sink, 0, b"%d" % number, b"x") for number, sink in enumerate(sinks)]
        assert await payloads(several[0], "invoices") == []
        await sinks[0].commit(0, parts[:2])
        assert await payloads(several[0], "invoices") == [b"0", b"1", b"x", b"x"]
        state = await several[2].describe_transaction(parts[2].transaction)
        assert state is TransactionState.ABORTED
        assert await sinks[1].part(0) is None


@edge_test
async def test_what_was_committed_is_known_after_a_restart(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client,):
        sink = shared(client)
        await sink.commit(0, [await written(sink, 0, b"a")])
        left = await written(sink, 1, b"lost")
    async with clients(tmp_path) as (client,):
        sink = shared(client)
        assert await sink.part(0) is None
        await sink.commit(1, [await written(sink, 1, b"b")])
        assert await payloads(client, "invoices") == [b"a", b"b"]
        assert await client.describe_transaction(left.transaction) is TransactionState.ABORTED


@edge_test
async def test_a_higher_number_fences_the_lower(tmp_path: Path) -> None:
    async with clients(tmp_path, 2) as (old, new):
        before, after = shared(old), shared(new)
        late = await written(before, 0, b"late")
        kept = await written(after, 1, b"kept")
        with pytest.raises(TransactionFenced):
            await before.commit(0, [late])
        with pytest.raises(TransactionFenced):
            await before.part(0)
        await after.commit(1, [kept])
        for _ in range(600):  # a partition asks for what was fenced
            if await payloads(new, "invoices"):
                break
            await asyncio.sleep(0.05)
        assert await payloads(new, "invoices") == [b"kept"]


@edge_test
async def test_an_abort_ends_all_parts_and_a_committed_number_stays(tmp_path: Path) -> None:
    async with clients(tmp_path, 2) as (one, two):
        first, second = shared(one), shared(two)
        parts = [await written(first, 0, b"a"), await written(second, 0, b"b")]
        await first.abort(0, parts)
        await one.publish("invoices", b"others")
        assert await payloads(one, "invoices") == [b"others"]
        await first.commit(0, [await written(first, 0, b"again")])
        with pytest.raises(TransactionError, match="committed already"):
            await second.abort(0)
        assert await payloads(one, "invoices") == [b"again", b"others"]


@edge_test
async def test_a_part_that_its_client_aborts_holds_nobody_back(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client,):
        part = await opened(shared(client), 0)
        await (await part.producer("audit")).send(b"never")
        await part.abort()
        await client.publish("audit", b"others")
        assert await payloads(client, "audit") == [b"others"]


@edge_test
async def test_producers_are_used_again_for_higher_numbers_alone(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client,):
        sink = shared(client)
        parts = [await written(sink, 0, b"0a"), await written(sink, 0, b"0b")]
        producers = {part.transaction >> 20 for part in parts}
        assert len(producers) == 2, "both are open"
        await sink.commit(0, parts)
        later = [await written(sink, 1, b"1a"), await written(sink, 1, b"1b")]
        assert {part.transaction >> 20 for part in later} == producers
        await sink.commit(1, later)
        assert await payloads(client, "invoices") == [b"0a", b"0b", b"1a", b"1b"]


@edge_test
async def test_a_name_that_was_the_last_time_used_is_refused(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client,):
        sink = shared(client)
        part = await written(sink, 0, b"a")
        await sink.commit(0, [part], is_last=True)
        await sink.commit(0, [part], is_last=True)
        with pytest.raises(TransactionNotFound, match="ended for good"):
            await shared(client).part(1)


@edge_test
async def test_names_of_both_kinds_are_apart(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client,):
        sink = shared(client, "same")
        part = await written(sink, 0, b"a")
        async with client.transaction("same") as tx:
            await tx.publish("audit", b"b")
        await sink.commit(0, [part])
        assert await payloads(client, "invoices") == [b"a"]


@edge_test
async def test_a_join_or_an_end_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client,):
        begun = await shared(client).coordinator.begin("sink", is_shared=True)
        transaction, token = begun.producer_id << 20, begun.token

        async def call(request: protocol.AnyRequest) -> None:
            await client.cluster.call(request, repeatable=True)

        for name, number, error in (
            ("sink", -1, InvalidRequest),
            ("sink", 1 << 62, InvalidRequest),
            ("other", 0, PermissionDenied),
            (None, 0, PermissionDenied),
        ):
            given = {"transaction": transaction, "token": token, "name": name, "number": number}
            with pytest.raises(error):
                await call(protocol.JoinTransaction(**given))
            with pytest.raises(error):
                await call(protocol.EndTransaction(**given, is_commit=True))
        with pytest.raises(InvalidRequest, match="parts at most"):
            await call(
                protocol.EndTransaction(
                    transaction=transaction,
                    token=token,
                    name="sink",
                    number=0,
                    is_commit=True,
                    parts=[1] * 10_001,
                )
            )
