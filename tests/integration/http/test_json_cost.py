"""JSON that is slow to check does not hold up other clients: neither when it is published nor later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.cost import STALL_S_MAX, least_cost
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node

SIZE = 4 << 20
"""Of each body: the work is linear in it, and the bound is for bodies of four times this size."""


def many(part: bytes) -> bytes:
    return b"[" + (part + b",") * (SIZE // (len(part) + 1)) + b"1]"


SLOW: dict[str, Callable[[], bytes]] = {
    "brackets in strings": lambda: many(b'"["'),
    "escaped quotes": lambda: b'["' + b'\\"[' * (SIZE // 3) + b'"]',
    "small lists": lambda: many(b"[]"),
    "numbers": lambda: b"[" + b"[" * 120 + b"]" * 120 + b"," + b"1," * (SIZE // 2) + b"1]",
}


@pytest.mark.parametrize("name", SLOW)
def test_json_of_any_shape_leaves_the_event_loop_to_others(name: str, tmp_path: Path) -> None:
    body = b'{"message": ' + SLOW[name]() + b"}"

    @edge_test
    async def check() -> None:
        async with http_node(tmp_path) as node:
            await node.queue(message_bytes_max=16 << 20, visibility="1s")

            async def post() -> None:
                reply = await node.http.post("/queues/emails/messages", content=body)
                assert reply.status_code == 201, reply.text

            def get(path: str) -> Callable[[], object]:
                async def ask() -> httpx.Response:
                    reply = await node.http.get(path, headers={"accept-encoding": "identity"})
                    assert b'"offset"' in reply.content[-1000:], reply.content[:200]
                    return reply

                return ask

            stalls = {"publish": (await least_cost(post)).stall_s}
            for path in (
                "/queues/emails/peek?batch_size=1",
                "/topics/emails/messages?batch_size=1",
                "/queues/emails/messages?batch_size=1&wait=9",
            ):
                stalls[path] = (await least_cost(get(path))).stall_s  # type: ignore[arg-type]
            assert max(stalls.values()) < STALL_S_MAX, stalls

    check()


@edge_test
async def test_a_message_that_is_too_large_is_refused_without_a_look_at_its_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(message_bytes_max=100_000)
        seen: list[int] = []
        monkeypatch.setattr(
            "quiver.edge.http.routes.publish.check_depth", lambda text: seen.append(len(text))
        )
        reply = await node.http.post(
            "/queues/emails/messages", content=b'{"message": ' + many(b'"["') + b"}"
        )
        assert (reply.status_code, seen) == (413, [])
