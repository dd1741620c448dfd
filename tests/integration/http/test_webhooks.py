"""Messages pushed to an endpoint that is really there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quiver.config import Web
from quiver.edge.webhooks.signature import HEADER, is_genuine
from tests.integration.edge_node import edge_test, until
from tests.integration.http.http_node import HttpNode, http_node, problem

INSIDE = Web(webhook_targets="127.0.0.0/8")


class Endpoint:
    """Takes pushes, answers each with the next of ``statuses``, and the last one from then on."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses) or [200]
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.under_way = self.under_way_max = 0
        self.barrier = asyncio.Event()
        self.barrier.set()
        self.url = ""
        self.judge: Callable[[list[dict[str, Any]]], web.Response] | None = None
        """Answers instead, by what was sent."""

    async def take(self, request: web.Request) -> web.Response:
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        self.requests.append((dict(request.headers), await request.read()))
        await self.barrier.wait()
        self.under_way -= 1
        if self.judge is not None:
            return self.judge(json.loads(self.requests[-1][1])["messages"])
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        headers = {"Location": "/elsewhere"} if status == 302 else {}
        return web.Response(status=status, headers=headers)

    @property
    def bodies(self) -> list[Any]:
        return [
            message["body"] for _, body in self.requests for message in json.loads(body)["messages"]
        ]


@asynccontextmanager
async def endpoint(*statuses: int) -> AsyncIterator[Endpoint]:
    made = Endpoint(*statuses)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}/hook"
    try:
        yield made
    finally:
        made.barrier.set()
        await runner.cleanup()


async def publish(node: HttpNode, *messages: Any) -> None:
    await node.http.post("/queues/emails/messages", json=[{"message": one} for one in messages])


@edge_test
async def test_messages_are_posted_signed_and_acknowledged_by_a_2xx(tmp_path: Path) -> None:
    (tmp_path / "billing").write_text("s3cret\n")
    settings = Web(webhook_targets="127.0.0.0/8", webhook_secrets=str(tmp_path))
    async with endpoint(204) as hook, http_node(tmp_path, web=settings) as node:
        await node.queue(push={"url": hook.url, "secret": "billing", "batch": 10})
        await publish(node, 1, 2, 3)
        await until(lambda: sorted(hook.bodies) == [1, 2, 3])
        headers, body = hook.requests[0]
        assert is_genuine(b"s3cret", headers[HEADER], body, time.time())
        assert headers["Quiver-Subscription"] == "emails"
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        described = await node.http.get("/queues/emails")
        assert "s3cret" not in described.text


@edge_test
async def test_a_failed_push_is_tried_again(tmp_path: Path) -> None:
    async with endpoint(500, 200) as hook, http_node(tmp_path, web=INSIDE) as node:
        await node.queue(push={"url": hook.url})
        await publish(node, "again")
        await until(lambda: hook.bodies == ["again", "again"])
        assert json.loads(hook.requests[1][1])["messages"][0]["deliveries"] == 2
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)


@edge_test
async def test_what_always_fails_becomes_a_dead_letter_with_the_reason(tmp_path: Path) -> None:
    async with endpoint(503) as hook, http_node(tmp_path, web=INSIDE) as node:
        await node.queue(push={"url": hook.url}, max_deliveries=2)
        await publish(node, "poison")
        await node.depth_becomes("emails", "dead", lambda depth: depth == 1)
        assert hook.bodies == ["poison", "poison"]


@edge_test
async def test_a_422_rejects_the_message(tmp_path: Path) -> None:
    async with endpoint(422, 200) as hook, http_node(tmp_path, web=INSIDE) as node:
        await node.queue(push={"url": hook.url, "concurrency": 1})
        await publish(node, "poison", "good")
        await until(lambda: hook.bodies == ["poison", "good"])
        await node.depth_becomes("emails.dlq", "ready", lambda depth: depth == 1)
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        assert await node.depth("emails", "dead") == 1
        stored = (await node.http.get("/topics/emails.dlq/messages")).json()["messages"]
        assert [one["dead_letter"]["last_error"] for one in stored] == ["the endpoint answered 422"]


@edge_test
async def test_an_endpoint_that_rejects_is_not_left_alone_for_a_while(tmp_path: Path) -> None:
    """After as many failures the node would wait for minutes."""
    async with endpoint(422) as hook, http_node(tmp_path, web=INSIDE) as node:
        await node.queue(push={"url": hook.url, "concurrency": 1})
        await publish(node, *range(12))
        began = time.monotonic()
        await node.depth_becomes("emails", "dead", lambda depth: depth == 12)
        assert time.monotonic() - began < 30
        assert sorted(hook.bodies) == list(range(12))


@edge_test
async def test_a_redirect_is_a_failure_and_not_followed(tmp_path: Path) -> None:
    async with endpoint(302) as hook, http_node(tmp_path, web=INSIDE) as node:
        await node.queue(push={"url": hook.url}, max_deliveries=1)
        await publish(node, 1)
        await node.depth_becomes("emails", "dead", lambda depth: depth == 1)
        assert len(hook.requests) == 1


@edge_test
async def test_no_more_requests_are_under_way_than_allowed(tmp_path: Path) -> None:
    async with endpoint() as hook, http_node(tmp_path, web=INSIDE) as node:
        await node.queue(push={"url": hook.url, "concurrency": 3})
        await publish(node, *range(40))
        await until(lambda: len(hook.bodies) >= 20)  # it has found its pace by now
        hook.barrier.clear()
        await until(lambda: hook.under_way == 3)
        hook.barrier.set()
        await until(lambda: sorted(set(hook.bodies)) == list(range(40)))
        assert hook.under_way_max <= 3


@edge_test
async def test_a_push_that_ends_with_the_node_gives_its_messages_back(tmp_path: Path) -> None:
    async with endpoint() as hook:
        hook.barrier.clear()
        async with http_node(tmp_path, web=INSIDE) as node:
            await node.queue(push={"url": hook.url})
            await publish(node, "kept")
            await until(lambda: hook.under_way == 1)
            await node.node.stop()
            hook.barrier.set()
        async with http_node(tmp_path) as node:  # without webhooks: nobody else takes it
            [message] = await node.received(wait=20)
            assert (message["body"], message.get("deliveries", 1)) == ("kept", 1)


@edge_test
async def test_a_push_that_is_cut_short_by_a_change_of_settings_does_not_count(
    tmp_path: Path,
) -> None:
    async with endpoint() as old, endpoint() as new, http_node(tmp_path, web=INSIDE) as node:
        old.barrier.clear()
        await node.queue(push={"url": old.url}, max_deliveries=1)
        await publish(node, "moved")
        await until(lambda: old.under_way == 1)
        await node.http.patch("/queues/emails", json={"push": {"url": new.url}})
        await until(lambda: new.bodies == ["moved"])
        assert json.loads(new.requests[0][1])["messages"][0].get("deliveries", 1) == 1
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        old.barrier.set()


@edge_test
async def test_nothing_waits_for_an_endpoint_that_is_busy(tmp_path: Path) -> None:
    async with endpoint() as hook, http_node(tmp_path, web=INSIDE) as node:
        hook.barrier.clear()
        await node.queue(push={"url": hook.url, "concurrency": 1, "batch": 2})
        await publish(node, 1)
        await until(lambda: hook.under_way == 1)
        await publish(node, 2, 3)
        assert [message["body"] for message in await node.received(wait=20)] == [2, 3]
        hook.barrier.set()


@edge_test
async def test_the_messages_of_a_push_outlast_their_visibility(tmp_path: Path) -> None:
    async with endpoint() as hook, http_node(tmp_path, web=INSIDE) as node:
        hook.barrier.clear()
        await node.queue(push={"url": hook.url}, visibility=1)
        await publish(node, "slow")
        await until(lambda: hook.under_way == 1)
        assert await node.received(wait=2) == []
        hook.barrier.set()
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        assert hook.bodies == ["slow"]


@edge_test
async def test_a_change_of_settings_is_followed(tmp_path: Path) -> None:
    async with endpoint() as old, endpoint() as new, http_node(tmp_path, web=INSIDE) as node:
        await node.queue(push={"url": old.url})
        await publish(node, 1)
        await until(lambda: old.bodies == [1])
        await node.http.patch("/queues/emails", json={"push": {"url": new.url}})
        await until(lambda: _pushing_to(node) == new.url)
        await publish(node, 2)
        await until(lambda: new.bodies == [2])
        await node.http.patch("/queues/emails", json={"push": None})
        await until(lambda: _pushing_to(node) is None)
        assert (old.bodies, new.bodies) == ([1], [2])


@edge_test
async def test_a_target_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path, web=Web(webhook_targets="*.example.com")) as node:
        for url in ("http://127.0.0.1:1/", "http://169.254.169.254/", "https://other.org/"):
            refused = await node.http.put("/queues/emails", json={"push": {"url": url}})
            assert problem(refused, 422, "invalid_setting")["field"] == "push.url"
        await node.queue()
        body = {"push": {"url": "http://10.0.0.1/"}}
        problem(await node.http.patch("/queues/emails", json=body), 422, "invalid_setting")
        body = {"push": {"url": "http://10.0.0.1/"}, "topics": ["emails"]}
        problem(await node.http.put("/subscriptions/s", json=body), 422, "invalid_setting")


@edge_test
async def test_a_secret_that_is_not_there_is_refused_when_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "billing").write_text("s3cret\n")
    (tmp_path / "blank").write_text("\n")
    listed = Web(webhook_targets="*.example.com", webhook_secrets=str(tmp_path))
    async with http_node(tmp_path, web=listed) as node:
        for secret in ("biling", "blank"):
            push = {"url": "https://a.example.com/", "secret": secret}
            for path, body in (
                ("/queues/emails", {"push": push}),
                ("/subscriptions/s", {"push": push, "topics": ["__alerts"]}),
            ):
                refused = problem(await node.http.put(path, json=body), 422, "invalid_setting")
                assert refused["field"] == "push.secret"
                assert repr(secret) in refused["detail"]
                assert (await node.http.get(path)).status_code == 404
        await node.queue(push={"url": "https://a.example.com/", "secret": "billing"})
        change = {"push": {"url": "https://a.example.com/", "secret": "biling"}}
        problem(await node.http.patch("/queues/emails", json=change), 422, "invalid_setting")
        described = (await node.http.get("/queues/emails")).json()
        assert described["settings"]["push"]["secret"] == "billing"


@edge_test
async def test_without_a_folder_of_secrets_every_secret_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path, web=Web(webhook_targets="*.example.com")) as node:
        push = {"url": "https://a.example.com/", "secret": "billing"}
        refused = await node.http.put("/queues/emails", json={"push": push})
        assert "web.webhook_secrets" in problem(refused, 422, "invalid_setting")["detail"]


@edge_test
async def test_without_a_list_nothing_may_be_pushed(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        body = {"push": {"url": "https://hooks.example.com/"}}
        refused = await node.http.put("/queues/emails", json=body)
        assert problem(refused, 422, "invalid_setting")["field"] == "push.url"
        assert (await node.http.get("/queues/emails")).status_code == 404


def _pushing_to(node: HttpNode) -> str | None:
    pushers = node.node.pushers
    assert pushers is not None
    running = pushers._running.get("emails")
    return None if running is None else running[0][0].url


@edge_test
async def test_a_batch_is_answered_in_part(tmp_path: Path) -> None:
    def judge(messages: list[dict[str, Any]]) -> web.Response:
        failed = []
        for one in messages:
            if one["body"] == "busy" and one.get("deliveries", 1) == 1:
                failed.append({"id": one["id"], "error": "mailbox busy", "delay": 0})
            if one["body"] == "hopeless":
                failed.append({"id": one["id"], "error": "no such address", "reject": True})
        return web.json_response({"failed": failed}, status=207)

    async with endpoint() as hook, http_node(tmp_path, web=INSIDE) as node:
        hook.judge = judge
        await publish_before(node, hook, "good", "busy", "hopeless", "fine")
        await until(lambda: sorted(hook.bodies) == ["busy", "busy", "fine", "good", "hopeless"])
        await node.depth_becomes("emails.dlq", "ready", lambda depth: depth == 1)
        await node.depth_becomes("emails", "leased", lambda depth: depth == 0)
        [letter] = (await node.http.get("/topics/emails.dlq/messages")).json()["messages"]
        assert (letter["body"], letter["dead_letter"]["deliveries"]) == ("hopeless", 1)
        assert letter["dead_letter"]["last_error"] == "no such address"
        assert await node.depth("emails", "ready") == 0


async def publish_before(node: HttpNode, hook: Endpoint, *messages: str, **settings: Any) -> None:
    """Messages that are there when the pushes begin, so that they come together."""
    await node.queue(backoff={"min": 0}, **settings)
    await publish(node, *messages)
    push = {"url": hook.url, "batch": 10, "concurrency": 1}
    reply = await node.http.patch("/queues/emails", json={"push": push})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "answer",
    [
        "what?",
        "{}",
        '{"failed": 1}',
        '{"failed": [{"id": "another"}]}',
        '{"failed": [{"id": "another", "delay": "soon"}]}',
    ],
)
@edge_test
async def test_a_207_that_cannot_be_read_fails_the_whole_request(
    tmp_path: Path, answer: str
) -> None:
    async with endpoint() as hook, http_node(tmp_path, web=INSIDE) as node:
        hook.judge = lambda _: web.Response(status=207, text=answer)
        await publish_before(node, hook, "one", max_deliveries=1)
        await node.depth_becomes("emails.dlq", "ready", lambda depth: depth == 1)
        [letter] = (await node.http.get("/topics/emails.dlq/messages")).json()["messages"]
        assert "answer of 207 is not valid" in letter["dead_letter"]["last_error"]


@edge_test
async def test_one_bad_message_takes_no_other_of_its_batch_to_the_dead_letters(
    tmp_path: Path,
) -> None:
    def judge(messages: list[dict[str, Any]]) -> web.Response:
        is_bad = any(one["body"] == "bad" for one in messages)
        return web.Response(status=500 if is_bad else 200)

    async with endpoint() as hook, http_node(tmp_path, web=INSIDE) as node:
        hook.judge = judge
        await publish_before(node, hook, "a", "bad", "b", "c", max_deliveries=3)
        await node.depth_becomes("emails", "dead", lambda depth: depth == 1)
        for state in ("ready", "delayed", "leased"):
            await node.depth_becomes("emails", state, lambda depth: depth == 0)
        assert await node.depth("emails", "dead") == 1
        [letter] = (await node.http.get("/topics/emails.dlq/messages")).json()["messages"]
        assert letter["body"] == "bad"
