"""Every call, by callers of every sort, on every edge: nobody gets further than their grants."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quiver import protocol
from quiver.config import Security
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.in_process import InProcessChannel
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.testing.clock import ManualClock
from tests.integration.access_calls import (
    CLUSTER_CHANGES,
    DONE,
    EDGES,
    FOR_ANYBODY_KNOWN,
    FOR_READERS,
    NO_SUCH_MESSAGE,
    NO_SUCH_SESSION,
    OF_THE_CLUSTER,
    REFUSALS,
    SAMPLES,
    Edge,
)
from tests.integration.edge_node import Running, edge_test, running

CALLS = typing.get_args(protocol.AnyRequest)
OUTCOMES = {DONE, "permission_denied", NO_SUCH_MESSAGE, NO_SUCH_SESSION}


def tokens_of(run: Running) -> TokenStore:
    return run.node.services.authority.tokens


async def token(run: Running, *grants: str, name: str = "somebody") -> str:
    _, text = await tokens_of(run).create(name, list(grants))
    assert text is not None
    return text


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Running]:
    """A node with authentication and team a's things on it."""
    async with running(folder, clock=ManualClock(), security=Security(authentication=True)) as run:
        inside = InProcessChannel(run.node.services, INTERNAL)
        for name in ("a.orders", "a.spare-topic"):
            await inside.call(protocol.CreateTopic(name=name, settings=TopicSettings()))
        await inside.call(protocol.CreateQueue(name="a.emails", topic=TopicSettings()))
        for name in ("a.billing", "a.spare"):
            settings = SubscriptionSettings(topics=["a.orders"])
            await inside.call(protocol.CreateSubscription(name=name, settings=settings))
        settings = SubscriptionSettings(topics=["a.orders"], ordering="partition")
        await inside.call(protocol.CreateSubscription(name="a.group", settings=settings))
        await inside.close()
        yield run


def test_there_is_a_sample_of_every_call() -> None:
    assert set(SAMPLES) == set(CALLS)


async def walk(run: Running, edge: Edge, text: str | None) -> dict[type, str]:
    return {call: await edge(run, text, SAMPLES[call]()) for call in SAMPLES}


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
class TestEveryCall:
    @edge_test
    async def test_without_a_token_nothing_is_answered(self, edge: Edge, tmp_path: Path) -> None:
        async with guarded(tmp_path) as run:
            assert set((await walk(run, edge, None)).values()) == {"unauthenticated"}

    @pytest.mark.parametrize("wrong", ["qv_0000000000000000_" + "0" * 64, "nonsense", ""])
    @edge_test
    async def test_a_wrong_token_is_as_good_as_none(
        self, edge: Edge, wrong: str, tmp_path: Path
    ) -> None:
        async with guarded(tmp_path) as run:
            assert set((await walk(run, edge, wrong)).values()) == {"unauthenticated"}

    @edge_test
    async def test_an_expired_token_is_as_good_as_none(self, edge: Edge, tmp_path: Path) -> None:
        async with guarded(tmp_path) as run:
            _, text = await tokens_of(run).create("a", ["admin:*"], expires_s=60)
            clock = run.node.services.clock
            assert isinstance(clock, ManualClock)
            await clock.advance(60)
            assert set((await walk(run, edge, text)).values()) == {"unauthenticated"}

    @edge_test
    async def test_a_revoked_token_is_as_good_as_none(self, edge: Edge, tmp_path: Path) -> None:
        async with guarded(tmp_path) as run:
            info, text = await tokens_of(run).create("a", ["admin:*", "publish:*", "consume:*"])
            assert await edge(run, text, SAMPLES[protocol.ListTokens]()) == DONE
            await tokens_of(run).revoke(info.id)
            assert set((await walk(run, edge, text)).values()) == {"unauthenticated"}

    @edge_test
    async def test_a_reader_only_reads(self, edge: Edge, tmp_path: Path) -> None:
        async with guarded(tmp_path) as run:
            answers = await walk(run, edge, await token(run, "consume:a.*"))
            assert {call for call, code in answers.items() if code not in REFUSALS} == FOR_READERS
            assert set(answers.values()) <= OUTCOMES

    @edge_test
    async def test_another_team_gets_at_nothing(self, edge: Edge, tmp_path: Path) -> None:
        async with guarded(tmp_path) as run:
            theirs = await token(run, "publish:b.*", "consume:b.*", "admin:b.*")
            answers = await walk(run, edge, theirs)
            assert {
                call for call, code in answers.items() if code not in REFUSALS
            } == FOR_ANYBODY_KNOWN
            assert set(answers.values()) <= OUTCOMES

    @edge_test
    async def test_a_team_may_do_everything_with_its_own(self, edge: Edge, tmp_path: Path) -> None:
        async with guarded(tmp_path) as run:
            ours = await token(run, "publish:a.*", "consume:a.*", "admin:a.*")
            answers = await walk(run, edge, ours)
            refused = {call for call, code in answers.items() if code == "permission_denied"}
            assert refused == OF_THE_CLUSTER
            assert set(answers.values()) <= OUTCOMES

    @edge_test
    async def test_an_administrator_manages_tokens(self, edge: Edge, tmp_path: Path) -> None:
        async with guarded(tmp_path) as run:
            answers = await walk(run, edge, await token(run, "admin:*"))
            assert answers[protocol.CreateToken] == answers[protocol.ListTokens] == DONE
            assert answers[protocol.RevokeToken] == "token_not_found"
            assert answers[protocol.Publish] == answers[protocol.Receive] == "permission_denied"

    @edge_test
    async def test_an_administrator_of_a_node_on_its_own_is_told_so(
        self, edge: Edge, tmp_path: Path
    ) -> None:
        async with guarded(tmp_path) as run:
            answers = await walk(run, edge, await token(run, "admin:*"))
            assert answers[protocol.DescribeCluster] == DONE
            assert {answers[call] for call in CLUSTER_CHANGES} == {"not_a_cluster"}

    @edge_test
    async def test_what_is_not_there_is_refused_like_what_is(
        self, edge: Edge, tmp_path: Path
    ) -> None:
        async with guarded(tmp_path) as run:
            theirs = await token(run, "consume:b.*")
            for name in ("a.orders", "a.nothing"):
                request = protocol.DescribeTopic(name=name)
                assert await edge(run, theirs, request) == "permission_denied"
