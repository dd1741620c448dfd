"""A relay's credit, with nodes that only remember what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from quiver.aio import failed_future
from quiver.client.consumer.received import RECEIVED_SCHEMA, ReceivedMessage, leases_of
from quiver.client.consumer.relay.relay import Relay, RelayEnd
from quiver.client.consumer.session.leases import Leases, settlements_of
from quiver.client.consumer.session.pushed import PushedBatch, PushedMessages
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.errors import NotEnoughReplicas, QuiverError, StaleReceipt
from quiver.model.clock import Clock, SystemClock
from quiver.model.receipt import receipts
from quiver.protocol import AnyRequest, Consuming, Settled, Settlement
from tests.aio import async_test, turns
from tests.unit.client.scripted_node import HastyClock


class FakeStream:
    """A ``NodeStream`` whose node answers at once."""

    def __init__(self, address: str, told: list[str]) -> None:
        self.address = address
        self.window = 0
        self.is_open = True
        self.started: list[int] = []
        self.released: list[int] = []
        self.requests: list[AnyRequest] = []
        self.stale: list[Settlement] = []
        self.held: list[int] = []
        self.ends: list[str] = []
        self.errors: list[QuiverError] = []
        """With which the next starts fail."""
        self.lost: list[Settlement] = []
        self.on_window: Callable[[], None] = lambda: None
        """Called when the node is told a window, in which it may push."""
        self._told = told

    def tell(
        self,
        *,
        started: Sequence[Settlement] = (),
        released: Sequence[Settlement] = (),
        window: int | None = None,
    ) -> None:
        self.started += offsets_in(started)
        self.released += offsets_in(released)
        if window is not None:
            self.window = window
            self._told.append(f"{self.address}={window}")
            if window:
                self.on_window()

    def start(self, started: Sequence[Settlement], window: int | None) -> asyncio.Future[Any]:
        self.tell(started=started, window=window)
        if self.errors:
            return failed_future(self.errors.pop())
        return self._answer(Settled(stale=self.lost))

    def send(self, request: AnyRequest) -> asyncio.Future[Any]:
        self.requests.append(request)
        return self._answer(Settled(stale=self.stale))

    def beat(self, held: Sequence[Settlement]) -> None:
        self.held += offsets_in(held)

    async def close(
        self, released: Sequence[Settlement], *, is_silent: bool = False, is_moved: bool = False
    ) -> None:
        self.is_open = False
        self.released += offsets_in(released)
        self.ends.append("moved" if is_moved else "silent" if is_silent else "closed")

    def _answer(self, reply: Settled) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result((reply, memoryview(b"")))
        return answer


class FakeCluster:
    timeout_s = 5.0


class FakeClient:
    def __init__(self, clock: Clock | None) -> None:
        self._read_cluster: Any = FakeCluster()
        self._clock = clock or SystemClock()
        self._sessions: set[Any] = set()


class Fixture:
    def __init__(self, *addresses: str, is_arrow: bool = False, clock: Clock | None = None) -> None:
        self.told: list[str] = []
        self.problems: list[QuiverError] = []
        self.relay = Relay(
            FakeClient(clock),
            SessionTerms(subscription="emails", consumer="me"),
            is_arrow=is_arrow,
            on_problem=self.problems.append,
        )
        self.streams: list[Any] = [FakeStream(address, self.told) for address in addresses]
        self.relay._streams._streams = {stream.address: stream for stream in self.streams}

    def push(self, stream: int, *offsets: int) -> None:
        """What a node does with what it has, as far as its window goes."""
        lease = bytes([stream]) * 26
        source = self.streams[stream]
        if self.relay._is_arrow:
            column = receipts(lease, pa.array(offsets, pa.int64()))
            rows = [{"receipt": one.as_py(), "offset": 0} for one in column]
            batch = pa.RecordBatch.from_pylist(rows, schema=RECEIVED_SCHEMA)
            self.relay._pushed.append(PushedBatch(source, batch))
        else:
            made = [
                ReceivedMessage("emails", 0, offset, 0, 1, b"", lease=lease) for offset in offsets
            ]
            self.relay._pushed.append(PushedMessages(source, made))
        self.relay.credit.trim()


def offsets_in(settlements: Sequence[Settlement]) -> list[int]:
    return [offset for one in settlements for offset in BitMap64.deserialize(one.offsets)]


def of(stream: int, *offsets: int) -> Leases:
    return {bytes([stream]) * 26: BitMap64(offsets)}


@async_test
async def test_credit_is_used_up_by_messages_that_are_taken() -> None:
    one = Fixture("a")
    one.relay.credit.set(3)
    one.push(0, 1, 2)
    messages = await one.relay.next_messages(10)
    assert [message.offset for message in messages] == [1, 2]
    assert (one.relay.credit.messages, one.streams[0].window, one.streams[0].started) == (
        1,
        1,
        [1, 2],
    )


@pytest.mark.parametrize("is_arrow", [False, True])
@async_test
async def test_what_is_pushed_beyond_the_credit_is_returned_at_once(is_arrow: bool) -> None:
    one = Fixture("a", is_arrow=is_arrow)
    one.relay.credit.set(2)
    one.push(0, 1, 2, 3, 4)
    assert one.streams[0].released == [3, 4]
    assert one.streams[0].window == 0  # or it would push them again
    one.relay.credit.set(0)
    assert sorted(one.streams[0].released) == [1, 2, 3, 4]
    assert not one.relay._pushed


@pytest.mark.parametrize("is_arrow", [False, True])
@async_test
async def test_some_of_a_push_are_taken_and_the_rest_later(is_arrow: bool) -> None:
    one = Fixture("a", is_arrow=is_arrow)
    one.relay.credit.set(10)
    one.push(0, 1, 2, 3)
    for limit in (2, 2):
        await (one.relay.next_batch(limit) if is_arrow else one.relay.next_messages(limit))
    assert one.streams[0].started == [1, 2, 3]


@async_test
async def test_the_nodes_share_the_credit() -> None:
    three = Fixture("a", "b", "c")
    three.relay.credit.set(31)
    assert [stream.window for stream in three.streams] == [10, 10, 10]
    three.relay.credit.rest()
    assert [stream.window for stream in three.streams] == [0, 0, 0]


@async_test
async def test_with_little_credit_the_node_that_was_served_last_comes_last() -> None:
    three = Fixture("a", "b", "c")
    three.relay.credit.set(1)
    three.push(0, 1)
    await three.relay.next_messages(1)
    assert [stream.window for stream in three.streams] == [0, 0, 0]
    three.told.clear()
    three.relay.credit.set(1)
    assert three.told == ["b=1", "c=1"]
    await turns()
    assert three.told == ["b=1", "c=1", "a=1"]


@async_test
async def test_settlements_of_one_kind_go_together_and_kinds_in_order() -> None:
    one = Fixture("a")
    one.relay.credit.set(10)
    one.push(0, 1, 2, 3, 4)
    await one.relay.next_messages(10)
    one.relay.settlements.settle_all(ACK, of(0, 1))
    one.relay.settlements.settle_all(ACK, of(0, 2))
    one.relay.settlements.settle_all(Kind("reject"), of(0, 3))
    one.relay.settlements.settle_all(ACK, of(0, 4))
    await one.relay.settlements.flush()
    assert [
        (type(request).__name__, offsets_in(request.settlements))
        for request in one.streams[0].requests
    ] == [("Ack", [1, 2]), ("Reject", [3]), ("Ack", [4])]


@async_test
async def test_who_waits_is_told_of_what_came_too_late_and_nobody_else() -> None:
    one = Fixture("a")
    one.relay.credit.set(10)
    one.push(0, 1, 2)
    await one.relay.next_messages(10)
    one.streams[0].stale = [
        Settlement(lease, offsets.serialize()) for lease, offsets in of(0, 1).items()
    ]
    late, fine = (one.relay.settlements.settle_watched(ACK, of(0, offset)) for offset in (1, 2))
    with pytest.raises(StaleReceipt):
        await one.relay.settlements.stored(late)
    await one.relay.settlements.stored(fine)
    assert one.problems == []


@pytest.mark.parametrize(
    ("end", "returned", "told"),
    [
        (RelayEnd.CLOSED, [[2, 3]], "closed"),
        (RelayEnd.SILENT, [[3]], "silent"),
        (RelayEnd.KEPT, [], "silent"),
    ],
)
@async_test
async def test_the_end_decides_what_becomes_of_unsettled_messages(
    end: RelayEnd, returned: list[list[int]], told: str
) -> None:
    one = Fixture("a")
    one.relay.credit.set(10)
    one.push(0, 1, 2, 3)
    one.push(0, 4)
    await one.relay.next_messages(3)
    one.relay.settlements.settle_all(ACK, of(0, 1))
    await one.relay.close(end)
    settled = [
        (type(request).__name__, offsets_in(request.settlements))
        for request in one.streams[0].requests
    ]
    assert settled == [("Ack", [1]), *[("Return", offsets) for offsets in returned]]
    assert one.streams[0].released == [4]
    assert one.streams[0].ends == [told]


@async_test
async def test_a_session_leaves_a_node_when_it_has_nothing_of_it_in_hand() -> None:
    two = Fixture("localhost:7401", "127.0.0.1:7401")
    two.relay.credit.set(10)
    two.push(0, 1, 2, 3)
    messages = await two.relay.next_messages(2)
    two.relay._streams._wanted = {"127.0.0.1:7401"}
    await two.relay._streams._close_unwanted()
    assert two.streams[0].ends == [], "the node may lead after all, and extends the leases"
    two.relay.settled(settlements_of(leases_of(messages)), is_nack=False)
    await two.relay._streams._close_unwanted()
    assert two.streams[0].ends == ["moved"]
    assert two.streams[0].released == [3]
    assert two.streams[0].requests == []


@async_test
async def test_starts_that_fail_use_up_no_credit_and_are_repeated_after_a_pause() -> None:
    one = Fixture("a", clock=(clock := HastyClock()))
    one.relay._streams.consuming = Consuming(guarantee="exactly-once")
    node = one.streams[0]
    node.errors = [NotEnoughReplicas() for _ in range(20)]
    node.on_window = lambda: one.push(0, 1, 2)
    one.relay.credit.set(1)
    messages = await one.relay.next_messages(10)
    assert [message.offset for message in messages] == [1]
    assert node.started == [1] * 21
    assert clock.now > 5, "twenty times in so many seconds"


@pytest.mark.parametrize(
    ("guarantee", "expected"), [("exactly-once", [[1], [2]]), ("at-least-once", [[1, 2]])]
)
@async_test
async def test_messages_of_two_nodes_are_taken_together_unless_a_start_has_to_be_stored(
    guarantee: str, expected: list[list[int]]
) -> None:
    one = Fixture("a", "b")
    one.relay._streams.consuming = Consuming(guarantee=guarantee)
    one.relay.credit.set(4)
    one.push(0, 1)
    one.push(1, 2)
    taken = [[message.offset for message in await one.relay.next_messages(4)] for _ in expected]
    assert taken == expected


@async_test
async def test_messages_that_the_program_may_not_have_use_up_no_credit() -> None:
    one = Fixture("a")
    one.relay._streams.consuming = Consuming(guarantee="exactly-once")
    one.relay.credit.set(3)
    one.push(0, 1, 2, 3)
    one.streams[0].lost = settlements_of(of(0, 1, 3))
    messages = await one.relay.next_messages(10)
    assert [message.offset for message in messages] == [2]
    assert (one.relay.credit.messages, one.streams[0].window) == (2, 2)


@pytest.mark.parametrize("is_arrow", [False, True])
@pytest.mark.parametrize(
    ("ordering", "released"), [("partition", [2, 3]), ("key", []), ("none", [])]
)
@async_test
async def test_what_follows_a_nacked_message_in_its_partition_is_returned(
    ordering: str, released: list[int], is_arrow: bool
) -> None:
    two = Fixture("a", "b", is_arrow=is_arrow)
    two.relay._streams.consuming = Consuming(ordering=ordering)
    two.relay.credit.set(10)
    two.push(0, 1, 2, 3)
    two.push(1, 7, 8)
    await (two.relay.next_batch(1) if is_arrow else two.relay.next_messages(1))
    two.relay.settlements.settle_all(Kind("nack"), of(0, 1))
    assert two.streams[0].released == released
    assert two.streams[1].released == []
    await two.relay.close()
