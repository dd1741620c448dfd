"""What becomes of messages that a transaction has acknowledged when it is aborted."""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap64

from quiver.client.consumer.settlement_kind import RETURN
from quiver.client.transaction.held_messages import HeldGroup, HeldMessages
from quiver.client.transaction.holds import Holds
from quiver.model.transaction import TransactionId


class Session:
    channel = None

    def __init__(self) -> None:
        self.returned: list[Any] = []

    def by_stream(self, leases: Any) -> Any:
        return {self: leases}

    def send(self, _request: Any) -> None:
        """The connection is lost: there is no answer."""

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
