"""A receive that several leaders may answer: whatever the caller does, no lease is left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from quiver import protocol
from quiver.edge.auth.principal import ANONYMOUS
from quiver.edge.calls import receive_from_leaders
from quiver.edge.calls.receive_from_leaders import FromLeaders
from quiver.edge.turns import Turns
from quiver.errors import NotLeader, PartitionUnavailable, Unavailable, UnknownCall
from quiver.model.clock import SystemClock
from tests.aio import async_test, turns


class Leader:
    """Another node that leads a partition: what it has, and what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = 0
        self.leased: list[bytes] = []
        self.watching = 0
        self.calls: Counter[str] = Counter()
        self.is_old = False
        self.replies_held: asyncio.Event | None = None
        """Replies to receives wait for it."""
        self.failures: list[Exception] = []
        """What returns are answered with, before they are carried out."""
        self.error: Exception | None = None
        """What receives are answered with."""
        self._published = asyncio.Event()

    def publish(self, count: int = 1) -> None:
        self.ready += count
        self._published.set()

    async def call(self, request: Any) -> tuple[Any, bytes]:
        self.calls[type(request).__name__] += 1
        await asyncio.sleep(0)
        if isinstance(request, protocol.AwaitReady):
            return await self._await_ready(), b""
        if isinstance(request, protocol.Return):
            if self.failures:
                raise self.failures.pop()
            for one in request.settlements:
                self.leased.remove(one.lease)
                self.publish()
            return protocol.Settled(), b""
        assert isinstance(request, protocol.Receive)
        if self.error is not None:
            raise self.error
        assert request.wait_ms == 0, "a receive that waits may bring what nobody takes"
        reply = protocol.Received(portions=[self._lease() for _ in range(min(1, self.ready))])
        if self.replies_held is not None:
            await asyncio.shield(self.replies_held.wait())
        return reply, b""

    async def _await_ready(self) -> protocol.Ready:
        if self.is_old:
            raise UnknownCall
        self.watching += 1
        try:
            while not self.ready:
                self._published.clear()
                await self._published.wait()
        finally:
            self.watching -= 1
        return protocol.Ready(is_ready=True)

    def _lease(self) -> protocol.PortionInfo:
        self.ready -= 1
        lease = f"{self.name}-{self.calls['Receive']}".encode()
        self.leased.append(lease)
        return protocol.PortionInfo(
            topic="t",
            topic_number=1,
            partition=0,
            lease=lease,
            deadline_us=0,
            offsets=b"",
            size=0,
        )


class Cluster:
    """Three leaders, and a caller of a node that leads nothing."""

    def __init__(self, *, is_to_be_settled: bool = True) -> None:
        self.leaders = {name: Leader(name) for name in "abc"}
        leaders = SimpleNamespace(
            leaders=lambda _: list(self.leaders),
            is_group=lambda _: False,
            is_to_be_settled=lambda _: is_to_be_settled,
            leader_of_lease=lambda lease: lease[:1].decode(),
        )
        self.context: Any = SimpleNamespace(
            services=SimpleNamespace(
                broker=SimpleNamespace(leaders=leaders),
                clock=SystemClock(),
                peers=SimpleNamespace(channel=self._channel),
                turns=Turns(),
            ),
            caller=SimpleNamespace(
                principal=ANONYMOUS, room_for_messages=lambda asked: asked, took=lambda _: None
            ),
            is_wanted=True,
            until_writable=lambda: asyncio.sleep(0),
        )

    def leads_itself(self, here: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
        """The node that is asked leads, too."""
        self.context.services.broker.leaders.leaders = lambda _: [None, *self.leaders]

        class ReceivingHere:
            def __init__(self, _broker: Any, _clock: Any, request: protocol.Receive) -> None:
                self._request = request

            async def finish(self) -> Any:
                return await here.call(self._request)

        monkeypatch.setattr(receive_from_leaders, "Receiving", ReceivingHere)

    async def _channel(self, address: str) -> Leader:
        return self.leaders[address]

    def receive(self, wait_ms: int = 20_000, subscription: str = "s") -> asyncio.Task[Any]:
        request = protocol.Receive(subscription=subscription, wait_ms=wait_ms)
        return asyncio.create_task(FromLeaders().answers(self.context, request, None))  # type: ignore[arg-type]

    @property
    def leased(self) -> list[bytes]:
        return [lease for leader in self.leaders.values() for lease in leader.leased]

    @property
    def watching(self) -> int:
        return sum(leader.watching for leader in self.leaders.values())

    def calls(self, name: str) -> int:
        return sum(leader.calls[name] for leader in self.leaders.values())


def leases_in(answers: Any) -> list[bytes]:
    ((reply, _),) = answers
    return [portion.lease for portion in reply.portions]


@async_test
async def test_waiting_leases_nothing_and_the_leader_that_is_ready_is_asked() -> None:
    cluster = Cluster()
    receiving = cluster.receive()
    await turns()
    assert (cluster.watching, cluster.leased) == (3, [])
    cluster.leaders["b"].publish()
    assert leases_in(await receiving) == cluster.leased
    await turns()
    assert cluster.watching == 0, "nobody is left in line at the others"


@async_test
async def test_messages_of_two_leaders_in_one_moment_are_not_both_taken() -> None:
    cluster = Cluster()
    receiving = cluster.receive()
    await turns()
    for leader in cluster.leaders.values():
        leader.publish()
    assert len(leases_in(await receiving)) == 1
    assert len(cluster.leased) == 1
    assert len(leases_in(await cluster.receive())) == 1


@async_test
async def test_without_a_wait_each_leader_is_asked_once() -> None:
    cluster = Cluster()
    assert leases_in(await cluster.receive(wait_ms=0)) == []
    assert (cluster.calls("Receive"), cluster.calls("AwaitReady")) == (3, 0)


@async_test
async def test_others_are_asked_in_turn_by_a_node_that_leads_nothing() -> None:
    cluster = Cluster()
    for leader in cluster.leaders.values():
        leader.publish(100)
    for _ in range(30):
        await cluster.receive(wait_ms=0)
    assert [leader.calls["Receive"] for leader in cluster.leaders.values()] == [10, 10, 10]


@async_test
async def test_a_node_that_leads_asks_others_first_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, here = Cluster(), Leader("here")
    cluster.leads_itself(here, monkeypatch)
    for leader in (here, *cluster.leaders.values()):
        leader.publish(1000)
    for _ in range(240):
        await cluster.receive(wait_ms=0)
    assert here.calls["Receive"] == 210
    assert [leader.calls["Receive"] for leader in cluster.leaders.values()] == [10, 10, 10]


@async_test
async def test_each_of_several_queues_asked_in_turn_gets_messages_of_every_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, here = Cluster(), Leader("here")
    cluster.leads_itself(here, monkeypatch)
    for leader in (here, *cluster.leaders.values()):
        leader.publish(1000)
    had: dict[str, set[str]] = {name: set() for name in ("one", "two", "three", "four")}
    for _ in range(24):
        for name in had:
            ((received, _),) = await cluster.receive(wait_ms=0, subscription=name)
            had[name] |= {portion.lease.split(b"-")[0].decode() for portion in received.portions}
    assert had == {key: {"here", *cluster.leaders} for key in had}


@async_test
async def test_a_log_that_cannot_be_opened_here_holds_up_no_messages_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, here = Cluster(), Leader("here")
    cluster.leads_itself(here, monkeypatch)
    here.error = PartitionUnavailable("its log cannot be opened")
    cluster.leaders["b"].publish(3)
    for _ in range(3):
        await cluster.receive(wait_ms=0)
    assert [lease[:1] for lease in cluster.leased] == [b"b"] * 3
    with pytest.raises(PartitionUnavailable):
        await cluster.receive(wait_ms=0)


@async_test
async def test_what_comes_for_a_caller_that_has_left_is_requeued() -> None:
    cluster = Cluster()
    leader = cluster.leaders["b"]
    leader.replies_held = asyncio.Event()
    leader.publish()
    receiving = cluster.receive()
    await turns()
    assert len(cluster.leased) == 1
    receiving.cancel()
    await turns()
    leader.replies_held.set()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert (cluster.leased, leader.ready) == ([], 1)


@pytest.mark.parametrize("count", range(12))
@async_test
async def test_a_caller_that_leaves_after_any_number_of_turns_leaves_no_lease(count: int) -> None:
    cluster = Cluster()
    receiving = cluster.receive()
    await turns()
    cluster.leaders["b"].publish()
    await turns(count)
    receiving.cancel()
    try:
        taken = leases_in(await receiving)
    except asyncio.CancelledError:
        taken = []
    assert cluster.leased == taken
    assert cluster.leaders["b"].ready == 1 - len(taken)


@async_test
async def test_messages_that_are_not_wanted_any_more_are_requeued() -> None:
    cluster = Cluster()
    receiving = cluster.receive()
    await turns()
    cluster.context.is_wanted = False
    cluster.leaders["a"].publish()
    await turns()
    assert cluster.leased == []
    assert cluster.leaders["a"].calls["Return"] >= 1
    receiving.cancel()


@async_test
async def test_a_requeue_that_fails_is_tried_again() -> None:
    cluster = Cluster()
    leader = cluster.leaders["a"]
    leader.failures = [NotLeader(), Unavailable()]
    leader.replies_held = asyncio.Event()
    leader.publish()
    receiving = cluster.receive()
    await turns()
    receiving.cancel()
    leader.replies_held.set()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert (cluster.leased, leader.ready) == ([], 1)


@async_test
async def test_a_node_of_an_older_version_is_asked_again_after_a_pause() -> None:
    cluster = Cluster()
    for leader in cluster.leaders.values():
        leader.is_old = True
    receiving = cluster.receive()
    await turns()
    cluster.leaders["c"].publish()
    assert leases_in(await receiving) == cluster.leased
    assert cluster.calls("Receive") < 20


@async_test
async def test_what_is_delivered_at_most_once_waits_in_the_same_way() -> None:
    cluster = Cluster(is_to_be_settled=False)
    receiving = cluster.receive()
    await turns(500)
    assert cluster.calls("Receive") == 3
    cluster.leaders["c"].publish()
    assert len(leases_in(await receiving)) == 1


@async_test
async def test_many_that_wait_for_one_message_ask_a_bounded_number_of_times() -> None:
    """Even where a leader wakes all of them."""
    cluster = Cluster()
    waiting = [cluster.receive() for _ in range(50)]
    await turns()
    asked = cluster.calls("Receive")
    cluster.leaders["b"].publish()
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await turns(200)
    assert cluster.calls("Receive") - asked <= 50
    assert sum(task.done() for task in waiting) == 1
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert len(cluster.leased) == 1
