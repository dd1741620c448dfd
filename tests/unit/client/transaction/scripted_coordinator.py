"""A node in memory that coordinates transactions, holds messages, and can lose its answers."""

from __future__ import annotations

from collections.abc import Callable

from pyroaring import BitMap64

from quiver import protocol
from quiver.errors import QuiverError, TransactionAborted, TransactionFenced
from quiver.model.transaction import TransactionId, producer_of
from tests.unit.client.scripted_node import NOW_US, ScriptedNode

LEASE = b"lease-of-twenty-six-bytes."
LEASE_S = 30.0
TOKEN = b"token"


class ScriptedCoordinator(ScriptedNode):
    """``before`` and ``after`` are called with each request; the error that they raise is the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[protocol.AnyRequest], None] = lambda _: None
        self.after: Callable[[protocol.AnyRequest], None] = lambda _: None
        self.outcomes: dict[int, bool] = {}
        self.held: dict[int, BitMap64] = {}
        """By transaction: the offsets that are held for it."""
        self.stale = BitMap64()
        self.returned = BitMap64()
        self.nacked: dict[int, str | None] = {}
        self.is_complete = True
        self._next_producer = 1_000
        self._owners: dict[str, int] = {}

    def answer(self, request: protocol.AnyRequest, body: bytes) -> tuple[protocol.AnyReply, bytes]:
        self.before(request)
        answer = self._answer(request) or super().answer(request, body)
        self.after(request)
        return answer if isinstance(answer, tuple) else (answer, b"")

    def _answer(
        self, request: protocol.AnyRequest
    ) -> protocol.AnyReply | tuple[protocol.AnyReply, bytes] | None:
        match request:
            case protocol.BeginTransactions():
                return self._begin(request)
            case protocol.EndTransaction():
                return self._end(request)
            case protocol.DescribeTransaction():
                state = {True: "committed", False: "aborted", None: "unknown"}
                outcome = self.outcomes.get(request.transaction)
                return protocol.TransactionInfo(
                    transaction=request.transaction, state=state[outcome]
                )
            case protocol.Receive():
                return self._receive(request)
            case protocol.Hold():
                return self._hold(request)
            case protocol.Return():
                for one in request.settlements:
                    self.returned |= BitMap64.deserialize(one.offsets)
                return protocol.Settled()
            case protocol.Nack():
                for one in request.settlements:
                    offsets = BitMap64.deserialize(one.offsets)
                    self.nacked |= dict.fromkeys(offsets, request.error)
                return protocol.Settled()
        return None

    def _begin(self, request: protocol.BeginTransactions) -> protocol.AnyReply:
        self._next_producer += 1
        if request.name is not None:
            self._owners[request.name] = self._next_producer
        return protocol.TransactionsBegun(producer_id=self._next_producer, token=TOKEN)

    def _end(self, request: protocol.EndTransaction) -> protocol.AnyReply:
        assert request.token == TOKEN
        producer, _ = producer_of(TransactionId(request.transaction))
        if request.name is not None and self._owners[request.name] != producer:
            raise TransactionFenced
        decided = self.outcomes.setdefault(request.transaction, request.is_commit)
        if request.is_commit and not decided:
            raise TransactionAborted
        return protocol.TransactionEnded(is_committed=decided, is_complete=self.is_complete)

    def _receive(self, request: protocol.Receive) -> tuple[protocol.AnyReply, bytes]:
        """Everything in the first partition of the topic of that name."""
        entries = self.partitions[request.subscription][0].entries
        data = b"".join(bytes(part) for entry in entries for part in entry.buffers())
        offsets = BitMap64(range(self.partitions[request.subscription][0].next_offset))
        portion = protocol.PortionInfo(
            topic=request.subscription,
            topic_number=self.topics[request.subscription].number,
            partition=0,
            lease=LEASE,
            deadline_us=NOW_US + round(LEASE_S * 1e6),
            offsets=offsets.serialize(),
            size=len(data),
        )
        return protocol.Received(portions=[portion] if entries else []), data

    def _hold(self, request: protocol.Hold) -> protocol.AnyReply:
        stale = []
        for one in request.settlements:
            offsets = BitMap64.deserialize(one.offsets)
            late = offsets & self.stale
            self.held.setdefault(request.transaction, BitMap64()).update(offsets - late)
            if late:
                stale.append(protocol.Settlement(one.lease, late.serialize()))
        return protocol.Settled(stale=stale)


def once(kind: type[protocol.Request], error: QuiverError) -> Callable[[protocol.AnyRequest], None]:
    """Fail the first request of a kind."""
    left = [error]

    def fail(request: protocol.AnyRequest) -> None:
        if isinstance(request, kind) and left:
            raise left.pop()

    return fail


def always(
    kind: type[protocol.Request], error: QuiverError
) -> Callable[[protocol.AnyRequest], None]:
    def fail(request: protocol.AnyRequest) -> None:
        if isinstance(request, kind):
            raise error

    return fail
