"""Webhooks that forwarders call: one caller at a time, and another when it dies."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from quiver import AsyncClient
from quiver.config import Security, Web
from quiver.edge.webhooks.signature import HEADER, is_genuine
from tests.integration.cluster.nodes import ForwarderProcess
from tests.integration.edge_node import edge_test, running, until
from tests.integration.forwarding import forwarder_of
from tests.integration.http.test_webhooks import Endpoint, endpoint
from tests.serving import Served, served

INSIDE = "127.0.0.0/8"


def secrets_of(folder: Path, name: str) -> str:
    """A folder in which the secret is the name of who signs with it."""
    made = folder / f"secrets-{name}"
    made.mkdir(parents=True, exist_ok=True)
    (made / "hook").write_text(name)
    return str(made)


def callers(hook: Endpoint, *names: str) -> Counter[str]:
    """Who sent how many requests, told by the signature."""
    return Counter(
        name
        for headers, body in hook.requests
        for name in names
        if is_genuine(name.encode(), headers[HEADER], body, time.time())
    )


@contextmanager
def node_of(folder: Path, webhooks_by: str) -> Iterator[Served]:
    settings = {"web.webhook_targets": INSIDE, "web.webhooks_by": webhooks_by}
    if webhooks_by != "forwarders":  # else only they need the secrets
        settings["web.webhook_secrets"] = secrets_of(folder, "node")
    flags = [part for pair in settings.items() for part in ("--set", "=".join(pair))]
    with served(folder / "node", "--http", "off", *flags) as node:
        yield node


def forwarder_at(folder: Path, node: Served, name: str) -> ForwarderProcess:
    web = Web(webhook_targets=INSIDE, webhook_secrets=secrets_of(folder, name))
    return ForwarderProcess(folder / name, node.url, name, web=web)


@asynccontextmanager
async def pushed_queue(url: str, hook: Endpoint) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url) as client:
        push = {"url": hook.url, "secret": "hook", "batch": 5}
        await client.create_queue("emails", push=push)
        yield client


async def publish(client: AsyncClient, first: int, end: int) -> None:
    for number in range(first, end):
        await client.publish("emails", json.dumps(number))


def numbers(hook: Endpoint) -> set[int]:
    return {int(body) for body in hook.bodies}


@pytest.mark.process
@edge_test
async def test_forwarders_call_webhooks_and_another_goes_on_when_one_is_killed(
    tmp_path: Path,
) -> None:
    with node_of(tmp_path, "forwarders") as node:
        forwarders = {name: forwarder_at(tmp_path, node, name) for name in ("f1", "f2")}
        async with endpoint() as hook, pushed_queue(node.url, hook) as client:
            await publish(client, 0, 20)
            try:
                for one in forwarders.values():
                    await asyncio.to_thread(one.start)
                await until(lambda: numbers(hook) == set(range(20)))
                assert set(callers(hook, "node", "f1", "f2")) <= {"f1", "f2"}
                [(killed, _)] = callers(hook, "f1", "f2").most_common(1)
                await asyncio.to_thread(forwarders[killed].kill)
                hook.requests.clear()
                await publish(client, 20, 60)
                # What was answered and not yet acknowledged when it was killed comes again.
                await until(lambda: numbers(hook) >= set(range(20, 60)))
                assert set(callers(hook, "node", "f1", "f2")) == {"f1", "f2"} - {killed}
                await until_settled(client)
            finally:
                for one in forwarders.values():
                    one.kill()


@pytest.mark.process
@edge_test
async def test_a_node_calls_webhooks_while_no_forwarder_can(tmp_path: Path) -> None:
    with node_of(tmp_path, "either") as node:
        forwarder = forwarder_at(tmp_path, node, "f1")
        async with endpoint() as hook, pushed_queue(node.url, hook) as client:
            await publish(client, 0, 10)
            await until(lambda: numbers(hook) == set(range(10)))
            assert set(callers(hook, "node", "f1")) == {"node"}
            try:
                await asyncio.to_thread(forwarder.start)
                end = 10
                while "f1" not in callers(hook, "f1"):
                    await publish(client, end, end + 1)
                    end += 1
                    await asyncio.sleep(0.1)
                await until(lambda: numbers(hook) == set(range(end)))
                await asyncio.to_thread(forwarder.kill)
                hook.requests.clear()
                await publish(client, end, end + 20)
                await until(lambda: numbers(hook) >= set(range(end, end + 20)))
                assert set(callers(hook, "node", "f1")) == {"node"}
                await until_settled(client)
            finally:
                forwarder.kill()


@pytest.mark.process
@edge_test
async def test_forwarders_leave_webhooks_to_nodes_that_call_them(tmp_path: Path) -> None:
    with node_of(tmp_path, "nodes") as node:
        forwarder = forwarder_at(tmp_path, node, "f1")
        async with endpoint() as hook, pushed_queue(node.url, hook) as client:
            with forwarder:
                await until_listed(client)
                await publish(client, 0, 20)
                await until(lambda: numbers(hook) == set(range(20)))
                assert set(callers(hook, "node", "f1")) == {"node"}


@edge_test
async def test_a_forwarder_that_may_not_consume_is_not_trusted_with_webhooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = Web(webhook_targets=INSIDE)
    async with running(tmp_path, security=Security(authentication=True)) as run:
        root = (tmp_path / "data" / "admin.token").read_text().strip()
        live, clock = run.node.services.forwarders, run.node.services.clock
        async with AsyncClient(f"quiver://{run.address}", token=root) as admin:
            _, watching = await admin.create_token("watching", ["consume:cluster:*"])
            _, consuming = await admin.create_token("consuming", ["consume:*"])
        assert watching is not None
        assert consuming is not None
        monkeypatch.setenv("QUIVER_TOKEN", watching)
        async with forwarder_of(f"quiver://{run.address}", web=web):
            await until(lambda: run.errors("permission_denied") > 0)
            assert live.webhook_callers(clock.monotonic()) == []
        monkeypatch.setenv("QUIVER_TOKEN", consuming)
        async with forwarder_of(f"quiver://{run.address}", web=web):
            await until(lambda: len(live.webhook_callers(clock.monotonic())) == 1)


async def until_settled(client: AsyncClient) -> None:
    """Wait until nothing is left to deliver, and assert that nothing failed."""
    async with asyncio.timeout(30):
        while True:
            queue = await client.describe_subscription("emails")
            if not (queue.ready or queue.leased or queue.delayed or queue.unseen):
                break
            await asyncio.sleep(0.05)
    assert queue.dead == 0


async def until_listed(client: AsyncClient) -> None:
    async with asyncio.timeout(30):
        while len((await client.describe_cluster()).nodes) < 2:  # noqa: ASYNC110 - it says nothing
            await asyncio.sleep(0.05)
