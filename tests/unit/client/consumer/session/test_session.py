"""A consumer's session with several nodes, which only remember what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from pyroaring import BitMap64
from structlog.testing import capture_logs

from quiver.aio import failed_future
from quiver.client.consumer.received import ReceivedMessage, leases_of
from quiver.client.consumer.session.leases import leases_from, settlements_of
from quiver.client.consumer.session.pushed import PushedMessages
from quiver.client.consumer.session.session import ConsumerSession
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.errors import InvalidReceipt, NotEnoughReplicas, QuiverError, Unavailable
from quiver.model.clock import Clock, SystemClock
from quiver.protocol import (
    AnyRequest,
    Consume,
    Consuming,
    Done,
    Leave,
    Progress,
    Return,
    Settled,
    Settlement,
)
from tests.aio import async_test, turns
from tests.unit.client.scripted_node import HastyClock


class Node:
    """A ``NodeStream`` whose node answers when it is told to."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_open = True
        self.answers: list[asyncio.Future[Any]] = []
        self.ends: list[dict[str, bool]] = []
        self.is_stuck = False
        self.held: list[Settlement] = []
        self.error: QuiverError | None = None

    def send(self, _: object) -> asyncio.Future[Any]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def beat(self, held: list[Settlement]) -> None:
        self.held = held

    async def close(self, _: object, **how: bool) -> None:
        self.ends.append(how)
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


class Cluster:
    timeout_s = 0.05


class Program:
    def call_soon(self, call: Any) -> None:
        call()


def session(*nodes: Node, clock: Clock | None = None, cluster: Any = None) -> ConsumerSession:
    terms = SessionTerms(subscription="emails", consumer="me")
    opened = ConsumerSession(
        cluster or Cluster(), clock or SystemClock(), terms, Program(), None, chance=Random(1)
    )
    streams: Any = {node.address: node for node in nodes}
    opened._streams._streams = streams
    return opened


def message(opened: ConsumerSession, node: Any, offset: int) -> ReceivedMessage:
    """One that the program has."""
    lease = node.address.encode()
    opened._in_hand.add(node, {lease: BitMap64([offset])})
    return ReceivedMessage("emails", 0, offset, 0, 1, b"", lease=lease)


@async_test
async def test_all_who_wait_are_told_that_a_settlement_was_lost() -> None:
    node = Node("n1")
    opened = session(node)
    for offset in (1, 2):
        opened.settle(message(opened, node, offset), ACK)
    waiting = [asyncio.ensure_future(opened.flush()) for _ in range(2)]
    await turns()
    node.answers[0].set_exception(InvalidReceipt())
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in errors] == [InvalidReceipt, InvalidReceipt]
    await opened.flush()  # they know


@async_test
async def test_a_close_that_could_not_store_everything_says_so() -> None:
    node = Node("n1")
    opened = session(node)
    opened.settle(message(opened, node, 1), ACK)
    with pytest.raises(Unavailable):
        await opened.close()
    assert node.ends == [{"is_silent": False}]


@async_test
async def test_a_node_that_does_not_answer_keeps_no_other_from_hearing_of_the_end() -> None:
    stuck, other = Node("n1"), Node("n2")
    stuck.is_stuck = True
    opened = session(stuck, other)
    closing = asyncio.ensure_future(opened.close())
    await turns()
    assert other.ends
    closing.cancel()


@async_test
async def test_a_stream_to_a_node_that_leads_nothing_is_closed_without_giving_up_messages() -> None:
    gone, kept = Node("n1"), Node("n2")
    opened = session(gone, kept)
    opened._streams._wanted = {"n2"}
    held = message(opened, gone, 1)
    await opened._streams._close_unwanted()
    assert not gone.ends, "the lease of a message in hand needs its heartbeats"
    opened.settle(held, ACK)
    opened._settlements.send_buffered()
    await opened._streams._close_unwanted()
    assert gone.ends == [{"is_moved": True}]
    assert [stream.address for stream in opened._streams] == ["n2"]


class SlowChannel:
    """A ``Channel`` to a node that takes its time to open a stream."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.told: list[Progress] = []

    def open_stream(self, request: Consume, _: object) -> asyncio.Future[Any]:
        self.asked = request
        return self.opened

    def tell(self, request: Progress) -> None:
        self.told.append(request)

    def close_stream(self, _: int) -> None:
        pass


@async_test
async def test_a_node_is_told_of_partitions_that_changed_while_its_stream_was_opened() -> None:
    opened, channel = session(), SlowChannel()
    opened._streams._member.partitions = []
    opening = asyncio.ensure_future(opened._streams._open_stream("n1", channel))
    await turns()
    opened._streams._member.partitions = ["jobs/0"]
    channel.opened.set_result((Consuming(), memoryview(b"")))
    await opening
    assert channel.asked.partitions == []
    assert [one.partitions for one in channel.told] == [["jobs/0"]]


class FailingNode(Node):
    """One that cannot store a start. It pushes as soon as it may and has something."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.window = 0
        self.starts: list[list[int]] = []
        self.has_failed_often = asyncio.Event()
        self.session: ConsumerSession
        self._is_pushed = False

    def tell(self, *, released: Sequence[Settlement] = (), window: int | None = None) -> None:
        self._is_pushed = self._is_pushed and not released
        self._push(window)

    def start(self, started: Sequence[Settlement], window: int | None) -> asyncio.Future[Any]:
        self._push(window)
        self.starts.append([offset for one in leases_from(started).values() for offset in one])
        if len(self.starts) == 20:
            self.has_failed_often.set()
        return failed_future(NotEnoughReplicas())

    def send(self, _: object) -> asyncio.Future[Any]:
        self._is_pushed = False
        self._push(None)
        answer = super().send(_)
        answer.set_result((Settled(), memoryview(b"")))
        return answer

    def _push(self, window: int | None) -> None:
        self.window = self.window if window is None else window
        if self.window and not self._is_pushed:
            self._is_pushed = True
            made = [ReceivedMessage("emails", 0, at, 0, 1, b"", lease=b"one") for at in (1, 2)]
            stream: Any = self
            self.session._pushed.append(PushedMessages(stream, made))
            self.session._streams.changed.wake()


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
@async_test
async def test_starts_that_fail_are_repeated_after_a_pause_that_grows(guarantee: str) -> None:
    node, clock = FailingNode("n1"), HastyClock()
    opened = node.session = session(node, clock=clock)
    opened._streams.consuming = Consuming(guarantee=guarantee)
    asking = asyncio.ensure_future(opened.next())
    await node.has_failed_often.wait()
    asking.cancel()
    assert clock.now > 5, "twenty times in so many seconds"
    assert node.starts == [[1]] * 20, "the second does not overtake the first"


class PlainNode(Node):
    """One that answers at once, and remembers what came back."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.returned: list[int] = []

    def tell(self, *, released: Sequence[Settlement] = (), **_: object) -> None:
        self.returned += [offset for one in leases_from(released).values() for offset in one]

    def send(self, request: object) -> asyncio.Future[Any]:
        if isinstance(request, Return):
            self.tell(released=request.settlements)
        answer = super().send(request)
        answer.set_result((Settled(), memoryview(b"")))
        return answer


@pytest.mark.parametrize(
    ("how", "expected"), [("message", [1, 7, 8]), ("client", [1, 7, 8]), ("ack", [1, 2, 3, 4])]
)
@async_test
async def test_what_follows_a_nacked_message_in_its_partition_is_not_handed_over(
    how: str, expected: list[int]
) -> None:
    node: Any = PlainNode("n1")
    opened = session(node)
    opened._streams.consuming = Consuming(ordering="partition")
    for lease, offsets in (b"one", range(1, 7)), (b"two", (7, 8)):
        made = [ReceivedMessage("emails", 0, at, 0, 1, b"", lease=lease) for at in offsets]
        opened._pushed.append(PushedMessages(node, made))
    opened._pace.handled(1000, 0.1)
    assert opened._pace.started == 4
    first = await opened.next()
    if how == "client":
        opened.settled(settlements_of(leases_of([first])), is_nack=True)
    else:
        opened.settle(first, Kind("nack") if how == "message" else ACK)
    found = [first, *[opened.take() or await opened.next() for _ in expected[1:]]]
    assert [message.offset for message in found] == expected
    await opened.flush()
    assert sorted(node.returned) == ([] if how == "ack" else [2, 3, 4, 5, 6])


class StartingNode(PlainNode):
    """One that answers a start when it is told to."""

    def start(self, *_: object) -> asyncio.Future[Any]:
        return Node.send(self, None)


@async_test
async def test_a_node_that_cannot_store_a_start_keeps_no_message_of_another_back() -> None:
    well, stuck = StartingNode("n1"), StartingNode("n2")
    streams: list[Any] = [well, stuck]
    opened = session(well, stuck)
    opened._streams.consuming = Consuming(guarantee="exactly-once")
    for stream, offsets in zip(streams, ((1, 2), (7, 8)), strict=True):
        lease = stream.address.encode()
        made = [ReceivedMessage("emails", 0, at, 0, 1, b"", lease=lease) for at in offsets]
        opened._pushed.append(PushedMessages(stream, made))
    opened._pace.handled(1000, 0.1)
    asking = asyncio.ensure_future(opened.next())
    await turns()
    well.answers[0].set_result((Settled(), memoryview(b"")))
    await turns()
    assert asking.done()
    assert [(await asking).offset, *[one.offset for one in opened._started]] == [1, 2]
    assert not stuck.answers, "nothing counts as delivered before the program can have it"


class GroupCluster(Cluster):
    """Remembers calls."""

    def __init__(self) -> None:
        self.calls: list[AnyRequest] = []

    async def call(self, request: AnyRequest, **_: object) -> tuple[str, Any]:
        self.calls.append(request)
        return "n1", (Done(), memoryview(b""))


@pytest.mark.parametrize(
    ("wanted", "leaves"),
    [({"n1", "n2"}, []), ({"n1", "n2", "n3"}, [Leave(subscription="emails", consumer="me")])],
)
@async_test
async def test_a_member_leaves_its_group_also_where_it_has_no_stream(
    wanted: set[str], leaves: list[Leave]
) -> None:
    cluster: Any = GroupCluster()
    opened = session(Node("n1"), Node("n2"), cluster=cluster)
    opened._streams.consuming = Consuming(ordering="partition", leaders=sorted(wanted))
    opened._streams._wanted = wanted
    await opened.close()
    assert cluster.calls == leaves


@async_test
async def test_a_member_leaves_its_group_if_a_node_did_not_hear_of_its_end() -> None:
    cluster: Any = GroupCluster()
    node = Node("n1")
    node.error = Unavailable()
    opened = session(node, Node("n2"), cluster=cluster)
    opened._streams.consuming = Consuming(ordering="partition", leaders=["n1", "n2"])
    opened._streams._wanted = {"n1", "n2"}
    await opened.close()
    assert cluster.calls == [Leave(subscription="emails", consumer="me")]


class OpeningChannel(SlowChannel):
    """A ``Channel`` to a node that opens streams at once."""

    def __init__(self, leaders: list[str]) -> None:
        super().__init__()
        self.opened.set_result((Consuming(leaders=leaders), memoryview(b"")))

    async def call(self, request: Progress) -> object:
        return self.told.append(request)


class HangingPool:
    """Connects to all nodes but one, which does not even refuse."""

    def __init__(self, hangs: str) -> None:
        self.leaders = ["n1", "n2", "n3"]
        self._hangs = hangs

    async def channel(self, address: str) -> OpeningChannel:
        if address == self._hangs:
            await asyncio.Event().wait()
        return OpeningChannel(self.leaders)


class HangingCluster(Cluster):
    def __init__(self, hangs: str) -> None:
        self.pool = HangingPool(hangs)

    async def any_channel(self) -> tuple[str, OpeningChannel]:
        return "n2", await self.pool.channel("n2")


@async_test
async def test_a_node_that_does_not_answer_keeps_no_stream_to_another_from_being_opened() -> None:
    cluster = HangingCluster("n1")
    opened = session(cluster=cluster)
    await opened.open()
    await turns()
    assert {stream.address for stream in opened._streams} == {"n2", "n3"}
    (stream, _) = opened._streams
    cluster.pool.leaders = ["n1", "n4"]
    opened._streams.told(stream, Consuming(leaders=cluster.pool.leaders))
    await turns()
    assert {stream.address for stream in opened._streams} == {"n4"}
    await opened.close()


@async_test
async def test_a_session_that_closes_leaves_no_stream_behind_that_was_being_opened() -> None:
    opened, channel = session(), SlowChannel()
    opening = asyncio.ensure_future(opened._streams._open_stream("n1", channel))
    await turns()
    opening.cancel()
    await turns()
    assert channel.told == []
    channel.opened.set_result((Consuming(), memoryview(b"")))
    await turns()
    assert [one.is_over for one in channel.told] == [True]


@async_test
async def test_a_message_that_is_held_for_too_long_is_given_up_and_logged_once() -> None:
    node, clock = Node("n1"), HastyClock()
    opened = session(node, clock=clock)
    opened._streams.consuming = Consuming(visibility_ms=1000, max_processing_ms=60_000)
    message(opened, node, 1)
    with capture_logs() as logs:
        for second in range(1, 70):
            clock.now = second
            if second == 30:
                opened._in_hand.add(node, {b"later": BitMap64([2])})  # type: ignore[arg-type]
            opened._streams._heartbeats.beat()
            assert (b"n1" in opened._in_hand.leases) == (second <= 61)
    assert list(opened._in_hand.leases) == [b"later"]
    assert [(entry["log_level"], entry["messages"]) for entry in logs] == [("warning", 1)]
