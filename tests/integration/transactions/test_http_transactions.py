"""Transactions over HTTP: any node and a forwarder take any request of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from quiver import AsyncClient
from quiver.client.transaction.reference import reference_in
from quiver.config import Address
from tests.integration.edge_node import edge_test
from tests.integration.forwarding import forwarder_of
from tests.integration.http.http_node import HttpNode, http_node, problem
from tests.integration.http.test_http_access import ASKED, admin_token, bearer, made_token

ARROW = "application/vnd.apache.arrow.stream"


async def begin(http: httpx.AsyncClient, **asked: Any) -> str:
    reply = await http.post("/transactions", json=asked)
    assert reply.status_code == 201, reply.text
    body = reply.json()
    assert body["state"] == "open"
    assert reply.headers["location"] == f"/transactions/{body['id']}"
    return str(body["id"])


async def state(http: httpx.AsyncClient, transaction: str) -> str:
    return str((await http.get(f"/transactions/{transaction}")).json()["state"])


def within(transaction: str) -> dict[str, str]:
    return {"quiver-transaction": transaction}


async def bodies(http: httpx.AsyncClient, topic: str) -> list[Any]:
    reply = await http.get(f"/topics/{topic}/messages")
    assert reply.status_code == 200, reply.text
    return sorted(message["body"] for message in reply.json()["messages"])


@asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[HttpNode]:
    async with http_node(folder) as node:
        await node.queue("orders")
        await node.http.put("/topics/invoices", json={"partitions": 2})
        await node.http.put("/topics/audit")
        yield node


@edge_test
async def test_an_order_becomes_an_invoice_in_one_step(tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        http = node.http
        for number in range(3):
            await http.post("/queues/orders/messages", json={"message": number})
        received = await node.received("orders")
        tx = await begin(http)
        for message in received[:2]:
            invoice = {"message": message["body"], "key": "a"}
            stored = await http.post("/topics/invoices/messages", json=invoice, headers=within(tx))
            assert stored.status_code == 201
        handle = received[0]["receipt_handle"]
        deleted = await http.delete(f"/queues/orders/messages/{handle}", headers=within(tx))
        assert deleted.status_code == 204
        acked = await http.post(
            "/subscriptions/orders/ack",
            json={"receipts": [received[1]["receipt_handle"]]},
            headers=within(tx),
        )
        assert acked.status_code == 200
        assert await bodies(http, "invoices") == []
        assert await state(http, tx) == "open"
        for _ in range(2):  # to repeat it is no harm
            ended = await http.post(f"/transactions/{tx}/commit")
            assert (ended.status_code, ended.json()["state"]) == (200, "committed")
        assert await bodies(http, "invoices") == [0, 1]
        assert await node.depth("orders", "leased") == 1
        assert await state(http, tx) == "committed"
        assert await state(http, str(reference_in(tx).number)) == "committed"


@edge_test
async def test_an_abort_leaves_nothing_and_returns_what_was_acknowledged(tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        http = node.http
        await http.post("/queues/orders/messages", json={"message": 1})
        (received,) = await node.received("orders")
        tx = await begin(http)
        await http.post("/topics/audit/messages", json=[{"message": 1}], headers=within(tx))
        path = f"/queues/orders/messages/{received['receipt_handle']}"
        assert (await http.delete(path, headers=within(tx))).status_code == 204
        ended = await http.post(f"/transactions/{tx}/abort")
        assert ended.json()["state"] == "aborted"
        assert await bodies(http, "audit") == []
        (again,) = await node.received("orders", wait=10)
        assert again["body"] == 1
        late = await http.post("/topics/audit/messages", json={"message": 2}, headers=within(tx))
        assert late.status_code == 409, late.text
        problem(await http.post(f"/transactions/{tx}/commit"), 409, "transaction_aborted")


@edge_test
async def test_lists_raw_bytes_and_arrow_are_part_of_a_transaction(tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        http = node.http
        tx = await begin(http, timeout="5m")
        listed = [{"message": number} for number in range(20)]
        path = "/topics/audit/messages"
        assert (await http.post(path, json=listed, headers=within(tx))).status_code == 201
        raw = {**within(tx), "content-type": "text/plain"}
        assert (await http.post(path, content=b"raw", headers=raw)).status_code == 201
        sink = pa.BufferOutputStream()
        table = pa.table({"payload": [b"1", b"2"]})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        arrow = {**within(tx), "content-type": ARROW}
        content = sink.getvalue().to_pybytes()
        reply = await http.post(path, content=content, headers=arrow)
        assert reply.json() == {"stored": 2}
        assert await bodies(http, "audit") == []
        assert (await http.post(f"/transactions/{tx}/commit")).status_code == 200
        async with AsyncClient(f"quiver://{node.node.native_address}") as q:
            assert len([one async for one in q.read("audit").messages()]) == 23


@edge_test
async def test_a_name_fences_whoever_began_under_it_before(tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        old = await begin(node.http, name="billing")
        new = await begin(node.http, name="billing")
        problem(await node.http.post(f"/transactions/{old}/commit"), 409, "transaction_fenced")
        assert (await node.http.post(f"/transactions/{new}/commit")).status_code == 200


@edge_test
async def test_the_time_limit_ends_a_transaction_that_nobody_ends(tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        tx = await begin(node.http, timeout=1)
        path = "/topics/audit/messages"
        await node.http.post(path, json={"message": 1}, headers=within(tx))
        while await state(node.http, tx) == "open":  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.1)
        problem(await node.http.post(f"/transactions/{tx}/commit"), 409, "transaction_timed_out")


@pytest.mark.parametrize("wrong", ["tx_", "nonsense", "7", "tx_AAAA", "%00"])
@edge_test
async def test_what_is_no_transaction_is_not_found(wrong: str, tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        http = node.http
        problem(await http.post(f"/transactions/{wrong}/commit"), 404, "transaction_not_found")
        sent = await http.post("/topics/audit/messages", json={"message": 1}, headers=within(wrong))
        problem(sent, 404, "transaction_not_found")
        assert await bodies(http, "audit") == []


@pytest.mark.parametrize(
    "body", [{"timeout": 0}, {"timeout": "16m"}, {"name": ""}, {"name": "x" * 101}, {"nam": "x"}]
)
@edge_test
async def test_wrong_terms_are_refused(body: dict[str, Any], tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        reply = await node.http.post("/transactions", json=body)
        assert reply.status_code == 422, reply.text


@edge_test
async def test_a_path_that_takes_no_part_says_so(tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        tx = await begin(node.http)
        for path in ("/subscriptions/orders/nack", "/subscriptions/orders/extend"):
            reply = await node.http.post(path, json={"receipts": ["x"]}, headers=within(tx))
            assert problem(reply, 422, "invalid_request")["field"] == "Quiver-Transaction"
        twice = [("quiver-transaction", tx), ("quiver-transaction", tx)]
        reply = await node.http.post("/topics/audit/messages", json={"message": 1}, headers=twice)
        assert reply.status_code == 400


@edge_test
async def test_a_transaction_is_its_beginners(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        one, other = await made_token(node, tmp_path, "publish:*"), admin_token(tmp_path)
        begun = await node.http.post("/transactions", headers=bearer(one))
        tx = begun.json()["id"]
        stolen = await node.http.post(f"/transactions/{tx}/commit", headers=bearer(other))
        problem(stolen, 403, "permission_denied")
        own = await node.http.post(f"/transactions/{tx}/commit", headers=bearer(one))
        assert own.status_code == 200


@edge_test
async def test_a_forwarder_passes_a_transaction_on(tmp_path: Path) -> None:
    async with (
        shop(tmp_path) as node,
        forwarder_of(
            f"quiver://{node.node.native_address}", http=Address("127.0.0.1", 0)
        ) as forwarder,
        httpx.AsyncClient(
            base_url=f"http://{forwarder.http_address}", timeout=30, trust_env=False
        ) as http,
    ):
        tx = await begin(http)
        path = "/topics/audit/messages"
        assert (await http.post(path, json={"message": 1}, headers=within(tx))).status_code == 201
        more = await node.http.post(path, json={"message": 2}, headers=within(tx))
        assert more.status_code == 201
        assert (await http.post(f"/transactions/{tx}/commit")).status_code == 200
        assert await bodies(http, "audit") == [1, 2]


@edge_test
async def test_an_operator_ends_a_transaction_by_its_number(tmp_path: Path) -> None:
    async with shop(tmp_path) as node:
        transaction = await begin(node.http)
        await node.http.post(
            "/topics/audit/messages", json={"message": "lost"}, headers=within(transaction)
        )
        await node.http.post("/topics/audit/messages", json={"message": "later"})
        assert await bodies(node.http, "audit") == []
        described = (await node.http.get("/topics/audit")).json()
        (opened,) = described["partitions"][0]["open_transactions"]
        assert (opened["id"], opened["first_offset"]) == (str(reference_in(transaction).number), 0)
        reply = await node.http.post(f"/transactions/{opened['id']}/abort")
        assert reply.json() == {"id": opened["id"], "state": "aborted"}
        assert await bodies(node.http, "audit") == ["later"]
        assert await state(node.http, transaction) == "aborted"


@edge_test
async def test_whoever_is_not_admin_ends_no_transaction_of_others(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        admin = bearer(admin_token(tmp_path))
        other = bearer(await made_token(node, tmp_path, "publish:*"))
        begun = await node.http.post("/transactions", json={}, headers=admin)
        number = reference_in(begun.json()["id"]).number
        refused = await node.http.post(f"/transactions/{number}/abort", headers=other)
        problem(refused, 403, "permission_denied")
        allowed = await node.http.post(f"/transactions/{number}/abort", headers=admin)
        assert allowed.json()["state"] == "aborted"
