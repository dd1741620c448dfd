"""Messages of a consumer in a transaction: out of the hands of the program, and back after an abort."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from quiver.client.consumer.consumer import give_up_current
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.session import ConsumerSession
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.consumer.settlement_kind import RETURN, Kind
from quiver.client.transaction.contents import TransactionContents
from quiver.errors import ConnectionLost, InvalidRequest, StaleReceipt
from quiver.model.clock import SystemClock
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.transaction import transaction_id
from quiver.protocol import Ack, AnyRequest, Consuming, Hold, Nack, Return, Settled, Settlement
from tests.aio import async_test, turns

TRANSACTION = transaction_id(ProducerId(7), ProducerEpoch(1))


class Stream:
    """A stream to a node that answers when it is told to."""

    address = "n1"
    channel = None
    is_open = True

    def __init__(self) -> None:
        self.sent: list[tuple[AnyRequest, asyncio.Future[Any]]] = []
        self.is_over = False

    def send(self, request: AnyRequest) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.sent.append((request, answer))
        if not isinstance(request, Hold):
            answer.set_result((Settled(), memoryview(b"")))
        return answer

    def answer(self, *stale: Settlement) -> None:
        self.sent[-1][1].set_result((Settled(stale=list(stale)), memoryview(b"")))

    def tell(self, **_: object) -> None: ...

    async def close(self, _: object, **__: bool) -> None:
        assert all(answer.done() for _, answer in self.sent), "what is held was told first"
        self.is_over = True


class Cluster:
    timeout_s = 1.0

    def __init__(self) -> None:
        self.called: list[AnyRequest] = []
        self.pool = SimpleNamespace(any_open=lambda: None)

    async def call(self, request: AnyRequest, **_: object) -> tuple[str, Any]:
        self.called.append(request)
        return "n2", (Settled(), memoryview(b""))


class Trial:
    """A session with messages in the program's hands, and a transaction that may acknowledge them."""

    def __init__(self, **consuming: Any) -> None:
        self.cluster: Any = Cluster()
        terms = SessionTerms(subscription="orders", consumer="me")
        program = SimpleNamespace(call_soon=lambda call: call())
        self.session = ConsumerSession(self.cluster, SystemClock(), terms, program, None)
        self.session._streams.consuming = Consuming(**consuming)
        self.stream = Stream()
        self.session._streams._streams["n1"] = self.stream  # type: ignore[assignment]
        producer: Any = SimpleNamespace(transaction=TRANSACTION, senders=[])
        self.contents = TransactionContents(self.cluster, producer)

    def message(self, offset: int) -> ReceivedMessage:
        """The one that the program has taken last."""
        lease = b"lease"
        self.session._in_hand.add(self.stream, {lease: BitMap64([offset])})  # type: ignore[arg-type]
        one = ReceivedMessage(
            "orders",
            0,
            offset,
            0,
            1,
            b"",
            subscription="orders",
            lease=lease,
            settler=SimpleNamespace(session=self.session),
        )
        self.session._started.append(one)
        assert self.session.take() is one
        return one

    def ack(self, message: ReceivedMessage) -> None:
        self.contents.ack(message, self, client=None, sessions={self.session})

    async def hold(self) -> None:
        """The session asks the transaction to hold."""
        await self.contents.held()

    @property
    def in_hand(self) -> list[int]:
        return [one for offsets in self.session._in_hand.leases.values() for one in offsets]

    def sent(self, kind: type) -> list[AnyRequest]:
        return [request for request, _ in self.stream.sent if isinstance(request, kind)]


@async_test
async def test_a_message_goes_over_its_own_stream_and_needs_heartbeats_until_it_is_held() -> None:
    trial = Trial()
    trial.ack(trial.message(1))
    storing = asyncio.ensure_future(trial.contents.stored())
    await turns()
    (hold,) = trial.sent(Hold)
    assert isinstance(hold, Hold)
    assert (hold.subscription, hold.transaction) == ("orders", TRANSACTION)
    assert trial.in_hand == [1]
    trial.stream.answer()
    await storing
    assert trial.in_hand == []


@async_test
async def test_a_hold_that_is_lost_with_its_stream_goes_to_any_node() -> None:
    trial = Trial()
    trial.ack(trial.message(1))
    storing = asyncio.ensure_future(trial.contents.stored())
    await turns()
    trial.stream.sent[-1][1].set_exception(ConnectionLost())
    await storing
    assert [type(one) for one in trial.cluster.called] == [Hold]


@async_test
async def test_the_session_does_not_nack_what_a_transaction_has_when_the_loop_is_left() -> None:
    trial = Trial()
    trial.ack(trial.message(1))
    give_up_current(trial.session, ValueError())
    trial.session._settlements.send_buffered()
    assert not trial.sent(Nack)


@async_test
async def test_the_loop_does_not_acknowledge_it_by_itself() -> None:
    trial = Trial()
    trial.session._terms = SessionTerms(subscription="orders", consumer="me", ack="auto")
    trial.ack(trial.message(1))
    assert trial.session.take_handled() is None


@async_test
async def test_a_session_that_closes_has_its_messages_held_first() -> None:
    trial = Trial()
    trial.ack(trial.message(1))
    closing = asyncio.ensure_future(trial.session.close())
    await turns()
    assert trial.sent(Hold)
    assert not trial.stream.is_over
    trial.stream.answer()
    await closing
    assert trial.stream.is_over
    await trial.contents.stored()  # it is held already
    assert len(trial.sent(Hold)) == 1


@async_test
async def test_an_abort_returns_what_is_not_held_over_the_stream() -> None:
    trial = Trial()
    trial.ack(trial.message(1))
    await trial.contents.give_back(RETURN)
    trial.session._settlements.send_buffered()
    assert len(trial.sent(Return)) == 1
    assert not trial.sent(Ack)
    assert trial.in_hand == []


@async_test
async def test_after_an_abort_what_follows_in_an_ordered_partition_is_not_given_out() -> None:
    trial = Trial(ordering="partition")
    trial.ack(trial.message(1))
    later = trial.message(2)
    trial.session._started.append(later)
    storing = asyncio.ensure_future(trial.contents.stored())
    await turns()
    trial.stream.answer()
    await storing
    trial.contents.undo()
    assert trial.session.take() is None


@async_test
async def test_a_lease_that_has_ended_is_named() -> None:
    trial = Trial()
    one = trial.message(1)
    trial.ack(one)
    storing = asyncio.ensure_future(trial.contents.stored())
    await turns()
    trial.stream.answer(Settlement(b"lease", BitMap64([1]).serialize()))
    with pytest.raises(StaleReceipt) as caught:
        await storing
    assert caught.value.details["stale"] == [one.receipt]


@async_test
async def test_what_is_delivered_at_most_once_is_in_no_transaction() -> None:
    trial = Trial(guarantee="at-most-once")
    with pytest.raises(InvalidRequest, match="at-most-once"):
        trial.ack(trial.message(1))


@async_test
async def test_a_message_whose_consumer_is_closed_is_refused() -> None:
    trial = Trial()
    message = trial.message(1)
    with pytest.raises(InvalidRequest, match="its consumer is closed"):
        trial.contents.ack(message, trial, client=None, sessions=set())


@async_test
async def test_heartbeats_keep_the_lease_so_that_a_failure_can_still_count() -> None:
    trial = Trial()
    trial.ack(trial.message(1))
    trial.contents.keep_leases()
    assert not trial.sent(Hold)
    await trial.contents.give_back(Kind("nack", error="bad order"))
    trial.session._settlements.send_buffered()
    (nack,) = trial.sent(Nack)
    assert isinstance(nack, Nack)
    assert nack.error == "bad order"
