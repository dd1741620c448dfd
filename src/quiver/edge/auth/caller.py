"""Whoever is at the other end of a session: every request of theirs passes here before it is done.

It joins the two questions, may they, and is it within their quotas, and remembers what the answers
need: how much was sent to them, what they hold, what they did as administrators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pyroaring import BitMap64

from quiver import protocol
from quiver.cluster.records import NodeId
from quiver.edge.auth.authority import Authority
from quiver.edge.auth.call_permissions import (
    ADMIN,
    CLUSTER_ADMIN,
    CONSUME,
    SEE,
    Rule,
    subscription,
    topic,
)
from quiver.edge.auth.principal import PEER, Principal
from quiver.edge.auth.quotas import Usage
from quiver.errors import PermissionDenied, QuiverError, QuotaExceeded, Unauthenticated
from quiver.model.clock import Clock


class Caller:
    """``patience_s`` is how far ahead of its rates a caller may run and be slowed down for it."""

    def __init__(
        self,
        authority: Authority,
        clock: Clock,
        principal: Principal,
        *,
        address: str = "",
        patience_s: float = 0.0,
        peer_secret: str | None = None,
    ) -> None:
        """``peer_secret`` is what another node has shown, if this is one."""
        self.principal = principal
        self.address = address
        self.node: NodeId | None = None
        """The node of the cluster that copies logs over this conversation, if one does."""
        self.is_forwarder = False
        """Whether it is a forwarder that has announced itself over this conversation."""
        self._authority = authority
        self._clock = clock
        self._patience_s = patience_s
        self._peer_secret = peer_secret
        self._usage: Usage | None = authority.usage(principal)

    # ------------------------------------------------------------------ before a request

    def admit(self, request: protocol.AnyRequest, rule: Rule, size: int) -> float:
        """Let a request pass; for how long its carrier should then take no other."""
        if not self.principal.is_trusted:
            self._authority.check(self.principal, request, rule, self.address)
        elif self.principal is PEER and not rule.is_for_peers:
            error = PermissionDenied("nodes of the cluster do not send this request")
            self._authority.refused(self.principal, request, self.address, error)
            raise error
        if self._usage is None or not rule.is_metered:
            return 0.0
        try:
            rest_s = self._usage.admit(size, self._clock.monotonic(), self._patience_s)
        except QuotaExceeded as error:
            self._authority.refused(self.principal, request, self.address, error)
            raise
        return min(rest_s, self._patience_s)

    def require_standing(self) -> None:
        """``Unauthenticated`` if what the caller has shown does not count any more."""
        if not self.principal.is_trusted:
            self._authority.require_standing(self.principal)
        elif self._peer_secret is not None and not self._authority.is_peer_secret(
            self._peer_secret
        ):
            raise Unauthenticated("the secret of the nodes was replaced")

    def require_room_for_topic(self, name: str, topics: Callable[[], Collection[str]]) -> None:
        """``QuotaExceeded`` if the names that the caller is admin of hold as many as they may.

        ``topics`` names those that count. It is asked only if the caller has such a quota.
        """
        if self._usage is None or not self._usage.quotas.topics_max:
            return
        names = topics()
        if name not in names:
            mine = sum(self.principal.may(topic(ADMIN, one)) for one in names)
            self._usage.require_room_for_topic(mine)

    # ------------------------------------------------------------------ messages that are held

    def room_for_messages(self, asked: int) -> int:
        if self._usage is None:
            return asked
        return self._usage.room_for_messages(asked, self._clock.time_us())

    def took(self, received: protocol.Received) -> None:
        if self._holds is not None:
            for portion in received.portions:
                self._holds.leased.took(portion.lease, _count(portion.offsets), portion.deadline_us)

    def started(self, settlements: Sequence[protocol.Settlement], deadline_us: int) -> None:
        """The caller holds these now."""
        if self._holds is not None:
            for one in settlements:
                self._holds.leased.took(one.lease, _count(one.offsets), deadline_us)

    def settled(self, settlements: Sequence[protocol.Settlement]) -> None:
        """The caller does not hold these any more."""
        if self._holds is not None:
            for one in settlements:
                self._holds.leased.settled(one.lease, _count(one.offsets))

    def extended(self, settlements: Sequence[protocol.Settlement], visibility_ms: int) -> None:
        """The caller holds these for longer."""
        if self._holds is not None:
            deadline_us = self._clock.time_us() + visibility_ms * 1000
            for one in settlements:
                self._holds.leased.extended(one.lease, deadline_us)

    @property
    def _holds(self) -> Usage | None:
        """The usage, if it says how many messages may be held."""
        usage = self._usage
        return usage if usage is not None and usage.quotas.inflight_messages_max else None

    # ------------------------------------------------------------------ what they see and leave

    def sent(self, size: int) -> None:
        if self._usage is not None:
            self._usage.sent(size, self._clock.monotonic())

    def sees_topic(self, name: str) -> bool:
        return self.principal.may(topic(SEE, name))

    def reads_topic(self, name: str) -> bool:
        return self.principal.may(topic(CONSUME, name))

    def consumes(self, name: str) -> bool:
        """Whether the caller may consume from a subscription."""
        return self.principal.may(subscription(CONSUME, name))

    def sees_subscription(self, name: str) -> bool:
        return self.principal.may(subscription(SEE, name))

    @property
    def is_admin(self) -> bool:
        return self.principal.may(CLUSTER_ADMIN)

    @property
    def producer_owner(self) -> str:
        """Whose names of producers these are: nobody takes over a name of another's."""
        return "" if self.principal.is_trusted else self.principal.name

    @property
    def producer_names_max(self) -> int:
        """How many names of producers the caller may have; 0: any number."""
        return self._authority.quotas(self.principal).producer_names_max

    def did(self, request: protocol.AnyRequest, outcome: protocol.AnyReply | QuiverError) -> None:
        """An administrative call was carried out, or failed: a line of the audit log says so."""
        self._authority.audit.act(self.principal.name, request, self.address, outcome)

    # ------------------------------------------------------------------ connections

    def connect(self) -> None:
        """``QuotaExceeded`` if the principal has as many connections as it may."""
        if self._usage is not None:
            self._usage.connect()

    def disconnect(self) -> None:
        if self._usage is not None:
            self._usage.disconnect()


def _count(offsets: bytes) -> int:
    return len(BitMap64.deserialize(offsets))
