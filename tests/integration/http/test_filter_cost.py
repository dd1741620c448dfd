"""Filters that cost much delay their own subscription, and nobody else."""

from __future__ import annotations

from pathlib import Path

from quiver.client import AsyncClient
from tests.integration.cost import STALL_S_MAX, measured
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node

KEY = "a" * 60
COSTLY = " or ".join(f"key like '%a%a%a%a%{number}z%'" for number in range(50))
"""As much as a filter may cost; no key matches."""


@edge_test
async def test_a_costly_filter_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.http.put("/topics/orders", json={})
        address = node.node.native_address
        async with AsyncClient(f"quiver://{address}") as client:
            await client.create_subscription("slow", ["orders"], filter=f"{COSTLY} or key = 'b'")
            stalls = {}
            messages = [{"payload": b"1", "key": KEY}] * 30_000 + [{"payload": b"2", "key": "b"}]
            await client.publish_many("orders", messages)
            async with measured() as cost:
                [found] = await client.receive("slow", 1, wait=20)
                assert found.payload == b"2"
                await found.ack()
            stalls["receive"] = cost.stall_s
            await client.create_subscription("all", ["orders"], start="earliest")
            async with measured() as cost:
                assert await client.purge("all", filter=COSTLY) == 0
            stalls["purge"] = cost.stall_s
            assert max(stalls.values()) < STALL_S_MAX, stalls
