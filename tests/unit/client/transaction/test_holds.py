"""What becomes of messages that a transaction has acknowledged when it is aborted."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from pyroaring import BitMap64

from quiver.client.consumer.settlement_kind import RETURN
from quiver.client.transaction.held_messages import HeldGroup, HeldMessages
from quiver.client.transaction.holds import Holds
from quiver.errors import ConnectionLost
from quiver.model.transaction import TransactionId
from tests.aio import async_test, turns


class Session:
    channel = None

    def __init__(self) -> None:
        self.returned: list[Any] = []
        self.answer: asyncio.Future[Any] | None = None
        """None: the connection is lost, there is no answer."""

    def by_stream(self, leases: Any) -> Any:
        return {self: leases}

    def send(self, _request: Any) -> asyncio.Future[Any] | None:
        return self.answer

    def undone(self, leases: Any, kind: Any) -> None:
        self.returned.append((leases, kind))


def test_what_was_sent_without_an_answer_is_given_back_by_its_session() -> None:
    session: Any = Session()
    messages, leases = HeldMessages(), {b"lease": BitMap64([3])}
    messages._batches.append(HeldGroup(session, "jobs", leases))
    cluster: Any = None
    holds = Holds(cluster, TransactionId(1), messages)
    holds.send()
    holds.undo()
    assert session.returned == [(leases, RETURN)]


@async_test
async def test_an_answer_that_nobody_waits_for_any_more_is_not_reported() -> None:
    reported: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    session: Any = Session()
    session.answer = loop.create_future()
    messages, cluster = HeldMessages(), None
    messages._batches.append(HeldGroup(session, "jobs", {b"lease": BitMap64([3])}))
    holds = Holds(cluster, TransactionId(1), messages)  # type: ignore[arg-type]
    holds.send()  # and a publish of the transaction fails before its answer comes
    session.answer.set_exception(ConnectionLost("the node is gone"))
    await turns()
    del holds, session, messages
    gc.collect()
    assert reported == []
