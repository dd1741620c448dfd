"""Leases of what was received while a transaction is open are extended until it ends."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from pyroaring import BitMap64

from quiver import protocol
from quiver.client.transaction import received_leases
from quiver.client.transaction.received_leases import ReceivedLeases
from quiver.errors import ConnectionLost
from quiver.testing.clock import ManualClock
from tests.aio import async_test

OFFSETS = BitMap64([3, 4]).serialize()


class Node:
    """What a client needs to ask any node: a cluster, its pool and one channel."""

    def __init__(self) -> None:
        self.pool = self
        self.is_open = True
        self.asked: list[protocol.Extend] = []

    def any_open(self) -> tuple[str, Any] | None:
        return ("node", self) if self.is_open else None

    def start(self, request: protocol.Extend) -> asyncio.Future[Any]:
        self.asked.append(request)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(ConnectionLost())
        return answer


def received(clock: ManualClock, *leases: bytes, visibility_s: float = 30.0) -> protocol.Received:
    deadline_us = clock.time_us() + round(visibility_s * 1e6)
    return protocol.Received(
        portions=[
            protocol.PortionInfo(
                topic="t",
                topic_number=1,
                partition=0,
                lease=lease,
                deadline_us=deadline_us,
                offsets=OFFSETS,
                size=0,
            )
            for lease in leases
        ]
    )


def kept() -> tuple[ReceivedLeases, Node, ManualClock]:
    node, clock = Node(), ManualClock()
    return ReceivedLeases(node, clock), node, clock  # type: ignore[arg-type]


@async_test
async def test_a_lease_is_extended_when_a_third_of_its_time_is_over_and_again_and_again() -> None:
    leases, node, clock = kept()
    leases.add("orders", received(clock, b"one"), begun=1)
    for _ in range(29):
        await clock.advance(1.0)
        leases.keep(oldest=1)
    assert len(node.asked) == 2
    (request, _) = node.asked
    assert request.subscription == "orders"
    assert request.visibility_ms == 30_000
    assert [(one.lease, one.offsets) for one in request.settlements] == [(b"one", OFFSETS)]


@async_test
async def test_leases_of_one_subscription_are_extended_by_one_request() -> None:
    leases, node, clock = kept()
    leases.add("orders", received(clock, b"one", b"two"), begun=1)
    leases.add("others", received(clock, b"three"), begun=1)
    await clock.advance(10.0)
    leases.keep(oldest=1)
    assert [len(one.settlements) for one in node.asked] == [2, 1]


@async_test
async def test_a_short_lease_is_extended_to_what_allows_a_few_lost_requests() -> None:
    leases, node, clock = kept()
    leases.add("orders", received(clock, b"one", visibility_s=2.0), begun=1)
    await clock.advance(1.0)
    leases.keep(oldest=1)
    assert [one.visibility_ms for one in node.asked] == [15_000]


@async_test
async def test_a_lease_that_may_end_before_the_next_round_is_extended_at_once() -> None:
    leases, node, clock = kept()
    assert not leases.add("orders", received(clock, b"long"), begun=1)
    assert leases.add("orders", received(clock, b"short", visibility_s=1.0), begun=1)
    leases.keep(oldest=1)
    (request,) = node.asked
    assert [one.lease for one in request.settlements] == [b"short"]
    assert request.visibility_ms == 15_000


@async_test
async def test_what_came_before_all_open_transactions_began_is_kept_no_longer() -> None:
    leases, node, clock = kept()
    leases.add("orders", received(clock, b"one"), begun=1)
    leases.add("orders", received(clock, b"two"), begun=2)
    await clock.advance(10.0)
    leases.keep(oldest=2)
    assert [one.lease for request in node.asked for one in request.settlements] == [b"two"]
    leases.keep(oldest=3)
    assert len(leases) == 0


@async_test
async def test_without_a_connection_it_is_tried_again_at_once() -> None:
    leases, node, clock = kept()
    leases.add("orders", received(clock, b"one"), begun=1)
    node.is_open = False
    await clock.advance(10.0)
    leases.keep(oldest=1)
    node.is_open = True
    leases.keep(oldest=1)
    assert len(node.asked) == 1


@async_test
async def test_the_number_of_leases_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_leases, "LEASES_MAX", 3)
    leases, node, clock = kept()
    for number in range(5):
        leases.add("orders", received(clock, b"%d" % number, b""), begun=1)
    await clock.advance(10.0)
    leases.keep(oldest=1)
    assert [one.lease for request in node.asked for one in request.settlements] == [
        b"2",
        b"3",
        b"4",
    ]


def test_threads_may_receive_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_leases, "LEASES_MAX", 3)
    leases, _, clock = kept()
    failed: list[BaseException] = []

    def receive(name: bytes) -> None:
        several = [received(clock, b"%s%d" % (name, number)) for number in range(1_000)]
        try:
            for one in several * 30:
                leases.add("orders", one, begun=1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=receive, args=(name,)) for name in (b"a", b"b", b"c")]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval_s)
    assert failed == []
    assert len(leases) == 3
