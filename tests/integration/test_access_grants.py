"""Grants cannot be combined into more than they say: administering a subscription does not read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiver import AsyncClient, protocol
from quiver.config import Security
from quiver.errors import PermissionDenied
from tests.integration.edge_node import Running, edge_test, running

ASKED = Security(authentication=True)
PUSH = {"url": "https://hooks.example.com/quiver"}


async def client(run: Running, *grants: str) -> AsyncClient:
    _, text = await run.node.services.authority.tokens.create("somebody", list(grants))
    return AsyncClient(f"quiver://{run.address}", token=text)


async def a_queue_with_a_dead_letter(run: Running) -> None:
    everything = await client(run, "admin:*", "publish:*", "consume:*")
    async with everything as owner:
        await owner.create_queue("job")
        await owner.create_queue("mine")
        await owner.publish("job", b"secret")
        (message,) = await owner.receive("job")
        await message.reject()
        await owner.redrive("job", dry_run=True)


@pytest.mark.parametrize(
    "changes",
    [{"push": PUSH}, {"dead_letter": "mine"}, {"dead_letter": None}],
    ids=["push", "dead_letter", "own_dead_letter"],
)
@edge_test
async def test_whoever_only_administers_a_subscription_cannot_send_its_messages_elsewhere(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with running(tmp_path, security=ASKED) as run:
        await a_queue_with_a_dead_letter(run)
        mine = ("admin:mine", "publish:mine", "consume:mine")
        async with await client(run, "admin:job", *mine) as admin:
            with pytest.raises(PermissionDenied, match="consume on subscription 'job'"):
                await admin.alter_subscription("job", **changes)
            await admin.alter_subscription("job", push=None, max_deliveries=7)


@pytest.mark.parametrize("settings", [{"push": PUSH}, {"dead_letter": "mine"}], ids=str)
@edge_test
async def test_whoever_makes_a_subscription_that_sends_messages_elsewhere_may_consume_it(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with running(tmp_path, security=ASKED) as run:
        await a_queue_with_a_dead_letter(run)
        grants = ("admin:new*", "consume:topic:*", "publish:mine")
        async with await client(run, *grants) as admin:
            with pytest.raises(PermissionDenied, match="consume on subscription 'new'"):
                await admin.create_subscription("new", topics=["job"], **settings)
            with pytest.raises(PermissionDenied, match="consume on subscription 'newer'"):
                await admin.create_queue("newer", **settings)
            await admin.create_subscription("new", topics=["job"])


@edge_test
async def test_dead_letters_go_to_another_topic_only_for_whoever_may_consume_them(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, security=ASKED) as run:
        await a_queue_with_a_dead_letter(run)
        mine = ("publish:mine", "consume:mine")
        async with await client(run, "admin:job", *mine) as admin:
            with pytest.raises(PermissionDenied, match="consume on subscription 'job'"):
                await admin.redrive("job", to="mine")
            assert await admin.receive("mine") == []
        async with await client(run, "admin:job", "consume:job", "consume:mine") as admin:
            with pytest.raises(PermissionDenied, match="publish on topic 'mine'"):
                await admin.redrive("job", to="mine")
        async with await client(run, "admin:job") as admin:
            assert await admin.redrive("job") == 1, "back to where it came from"


@pytest.mark.parametrize("letters", ["failures", "job.dlq"])
@edge_test
async def test_a_redrive_takes_from_a_shared_dead_letter_queue_only_for_whoever_may_consume_it(
    tmp_path: Path, letters: str
) -> None:
    async with running(tmp_path, security=ASKED) as run:
        async with await client(run, "admin:*", "publish:*", "consume:*") as owner:
            for name in ("failures", "mine", "payments", "job"):
                await owner.create_queue(name)
            await owner.alter_subscription("payments", dead_letter=letters)
            await owner.alter_subscription("job", dead_letter=letters)
            await owner.publish("payments", b"secret")
            (message,) = await owner.receive("payments")
            await message.reject()
            assert await owner.redrive("job", to="mine", dry_run=True) == 1
        grants = ("admin:job", "consume:job", "publish:mine")
        async with await client(run, *grants) as admin:
            for to in ("mine", None):
                with pytest.raises(PermissionDenied, match=f"consume on subscription '{letters}'"):
                    await admin.redrive("job", to=to)
        async with await client(run, *grants, f"consume:{letters}") as admin:
            assert await admin.redrive("job", to="mine") == 1


@edge_test
async def test_no_principal_fences_the_producer_of_another(tmp_path: Path) -> None:
    async with running(tmp_path, security=ASKED) as run:
        tokens = run.node.services.authority.tokens
        opened = {}
        for principal, name in (("team/eu", "x"), ("team", "eu/x")):
            _, text = await tokens.create(principal, ["publish:*"])
            peer = await run.peer(token=text)
            request = protocol.OpenProducer(name=name)
            opened[principal] = await peer.ask(request, expect=protocol.ProducerOpened)
        assert opened["team"].producer_id != opened["team/eu"].producer_id
