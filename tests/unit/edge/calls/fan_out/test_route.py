"""Where calls run in a cluster: which nodes are asked, for what, and whose failure counts."""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from quiver import protocol
from quiver.edge.auth.principal import ANONYMOUS, PEER, Principal
from quiver.edge.calls.context import Answer
from quiver.edge.calls.fan_out.in_parts import AtLeadersInTurn, AtMessageLeaders
from quiver.edge.calls.fan_out.route import AtAllNodes, AtCoordinator, AtLeaders, PassedToLeader
from quiver.edge.calls.inspect import IDS_MAX, require_few
from quiver.edge.calls.table import CALLS
from quiver.errors import InvalidRequest, NotLeader, Unavailable
from quiver.model.message_id import MessageId
from tests.aio import async_test

HERE = "here"
SUBSCRIPTION = attrgetter("subscription")


class Nodes:
    """This node and two others, ``b`` and ``c``; what each was asked, in order."""

    def __init__(
        self, leaders: list[str | None], *, principal: Principal = ANONYMOUS, is_led: bool = True
    ) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.replies: dict[str, Any] = {}
        self._is_led = is_led
        broker = SimpleNamespace(
            leaders=SimpleNamespace(
                leaders=lambda _: leaders,
                coordinator=lambda _: leaders[0],
                require_led=self._require_led,
            ),
            topics=SimpleNamespace(leader_of=lambda _, index: leaders[index]),
            lookup=SimpleNamespace(cancel=self._cancel),
            dead_letters=SimpleNamespace(queue_of=lambda _: None),
        )
        peers = SimpleNamespace(channel=self._channel, addresses=["b", "c"])
        services = SimpleNamespace(broker=broker, peers=peers)
        self.context: Any = SimpleNamespace(
            services=services, caller=SimpleNamespace(principal=principal)
        )

    def _require_led(self, _: str) -> None:
        if not self._is_led:
            raise NotLeader

    async def _cancel(self, _: str, ids: list[str]) -> int:
        self.asked.append((HERE, ids))
        return len(ids)

    async def here(self, request: Any) -> Answer:
        return await self._reply(HERE, request), ()

    async def _channel(self, address: str) -> Any:
        async def call(request: Any) -> tuple[Any, bytes]:
            return await self._reply(address, request), b""

        return SimpleNamespace(call=call)

    async def _reply(self, node: str, request: Any) -> Any:
        self.asked.append((node, request))
        reply = self.replies.get(node, protocol.Done())
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def names(self) -> list[str]:
        return [node for node, _ in self.asked]


PURGE = protocol.Purge(subscription="s")


@async_test
async def test_leaders_are_all_asked_and_this_node_always() -> None:
    nodes = Nodes(["b", "c"])
    answers = await AtLeaders(SUBSCRIPTION).answers(nodes.context, PURGE, nodes.here)
    assert sorted(nodes.names) == ["b", "c", HERE]
    assert len(answers) == 3


@async_test
async def test_the_failure_of_a_leader_fails_the_call() -> None:
    nodes = Nodes([None, "b"])
    nodes.replies["b"] = Unavailable()
    with pytest.raises(Unavailable):
        await AtLeaders(SUBSCRIPTION).answers(nodes.context, PURGE, nodes.here)


@async_test
async def test_nobody_is_asked_while_a_partition_has_no_leader() -> None:
    nodes = Nodes([None, "b"], is_led=False)
    with pytest.raises(NotLeader):
        await AtLeaders(SUBSCRIPTION, all_led=True).answers(nodes.context, PURGE, nodes.here)
    assert nodes.asked == []


@async_test
async def test_the_coordinator_is_asked_again_once_all_leaders_are_done() -> None:
    nodes = Nodes(["b", None])
    route = AtLeaders(SUBSCRIPTION, then_coordinator=True)
    await route.answers(nodes.context, protocol.Leave(subscription="s", consumer=""), nodes.here)
    assert sorted(nodes.names[:2]) == ["b", HERE]
    assert nodes.names[2:] == ["b"]


@pytest.mark.parametrize(("leader", "asked"), [(None, HERE), ("c", "c")])
@async_test
async def test_one_node_is_asked_where_one_decides(leader: str | None, asked: str) -> None:
    nodes = Nodes([leader])
    await AtCoordinator(SUBSCRIPTION).answers(nodes.context, PURGE, nodes.here)
    await PassedToLeader(lambda _: ("t", 0)).answers(nodes.context, PURGE, nodes.here)
    assert nodes.names == [asked, asked]


@async_test
async def test_of_all_nodes_those_that_fail_are_left_out_unless_it_is_this_one() -> None:
    nodes = Nodes([None])
    nodes.replies["c"] = Unavailable()
    answers = await AtAllNodes().answers(nodes.context, protocol.ListAlerts(), nodes.here)
    assert len(answers) == 2
    nodes.replies[HERE] = Unavailable()
    with pytest.raises(Unavailable):
        await AtAllNodes().answers(nodes.context, protocol.ListAlerts(), nodes.here)


@async_test
async def test_each_message_is_cancelled_at_the_leader_of_its_partition() -> None:
    nodes = Nodes([None, "b"])
    nodes.replies["b"] = protocol.Counted(count=1)
    ids = [str(MessageId(0, 1, partition, 5)) for partition in (0, 1)]
    request = protocol.Cancel(topic="t", ids=ids)
    answers = await AtMessageLeaders(require_few).answers(nodes.context, request, nodes.here)
    assert nodes.asked[0] == (HERE, ids[:1])
    assert (nodes.asked[1][0], nodes.asked[1][1].ids) == ("b", ids[1:])
    assert [reply.count for reply, _ in answers] == [1, 1]  # type: ignore[union-attr]


@async_test
async def test_too_many_cancellations_are_refused_wherever_the_messages_are() -> None:
    nodes = Nodes([None, "b"])
    ids = [str(MessageId(0, 1, offset % 2, offset)) for offset in range(IDS_MAX + 1)]
    request = protocol.Cancel(topic="t", ids=ids)
    with pytest.raises(InvalidRequest, match="10,000"):
        await CALLS[protocol.Cancel].runs.answers(nodes.context, request, nodes.here)
    assert nodes.asked == []


@async_test
async def test_a_redrive_asks_each_leader_for_what_the_others_left() -> None:
    nodes = Nodes(["b", None, "c"])
    nodes.replies = {
        "b": protocol.Redriven(count=4, by_topic={}),
        HERE: protocol.Redriven(count=6, by_topic={}),
    }
    request = protocol.Redrive(subscription="s", messages_max=10)
    await AtLeadersInTurn().answers(nodes.context, request, nodes.here)
    assert [(node, one.messages_max) for node, one in nodes.asked] == [("b", 10), (HERE, 6)]


@async_test
async def test_a_call_that_a_node_passed_on_is_not_passed_on_again() -> None:
    nodes = Nodes(["b", "c"], principal=PEER)

    async def heartbeat(_: str) -> Any:
        return SimpleNamespace(heartbeat=lambda _: ["t/0"])

    nodes.context.services.broker.directory = SimpleNamespace(get=heartbeat)
    request = protocol.Heartbeat(subscription="s", consumer="")
    reply, _ = await CALLS[protocol.Heartbeat].answer(nodes.context, request, memoryview(b""))
    assert reply == protocol.GroupMembership(partitions=["t/0"])
    assert nodes.asked == []
