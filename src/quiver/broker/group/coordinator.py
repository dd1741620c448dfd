"""A consumer group at work: who reads which partition, driven by what its members do.

Whoever receives is a member, and lives as long as it waits, receives, settles or says so. A
partition that shall move is delivered no more to its owner, and goes to the other as soon as nothing
of it is in the owner's hands. What the group decides is for liveness only: whoever reads a
partition, the delivery machine hands out one portion at a time, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from quiver.broker.delivery.partition_delivery import PartitionDelivery
from quiver.broker.group.machine import GroupMachine
from quiver.broker.group.values import (
    Asked,
    Change,
    Granted,
    GroupSettings,
    MemberId,
    MemberJoined,
    MemberLeft,
    PartitionKey,
    Reason,
    Revoked,
)
from quiver.errors import InvalidRequest
from quiver.metrics.traffic import SubscriptionCounts
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds
from quiver.model.subscription import Guarantee, SubscriptionSettings

logger = structlog.get_logger()


class GroupCoordinator:
    """``on_change`` is called when somebody may read what it could not read before."""

    def __init__(
        self,
        name: str,
        settings: SubscriptionSettings,
        clock: Clock,
        on_change: Callable[[], None],
        counts: SubscriptionCounts | None = None,
        release_remote: Callable[[str], None] = lambda consumer: None,
    ) -> None:
        self._release_remote = release_remote
        self._name = name
        self._is_exactly_once = settings.guarantee is Guarantee.EXACTLY_ONCE
        self._clock = clock
        self._on_change = on_change
        self._counts = counts or SubscriptionCounts()
        self._group = GroupMachine(GroupSettings(session_timeout_us=settings.session_timeout_us))
        self._deliveries: dict[PartitionKey, PartitionDelivery] = {}

    def read(
        self, deliveries: Iterable[PartitionDelivery], places: Iterable[tuple[str, int]]
    ) -> None:
        """From now on the group reads these partitions, of which this node serves those it has."""
        self._deliveries = {PartitionKey(box.topic, box.partition): box for box in deliveries}
        keys = [PartitionKey(topic, partition) for topic, partition in places]
        self._follow(self._group.set_partitions(keys, self._now()))

    def _now(self) -> Microseconds:
        """Sessions are durations: the date may be set forward or back, which ends and extends none."""
        return Microseconds(round(self._clock.monotonic() * 1e6))

    # ------------------------------------------------------------------ members

    def seen(self, consumer: str) -> None:
        """A consumer asks for messages: it is a member from now on."""
        if not consumer:
            raise InvalidRequest(
                f"{self._name!r} is read by a group: each of its consumers needs a name"
            )
        _, changes = self._group.join(MemberId(consumer), self._now())
        self._follow(changes)

    def alive(self, consumers: Iterable[str]) -> None:
        """These are still there, those of them that are members."""
        for consumer in consumers:
            self._follow(self._group.heartbeat(MemberId(consumer), self._now())[1])

    def leave(self, consumer: str) -> None:
        self._follow(self._group.leave(MemberId(consumer), self._now()))

    def may_take(self, consumer: str, delivery: PartitionDelivery) -> bool:
        """Whether the consumer reads the partition."""
        partition = PartitionKey(delivery.topic, delivery.partition)
        owner = self._group.owner_of(partition)
        return (
            owner is not None
            and owner.member == consumer
            and self._group.may_receive(owner.member, partition, owner.epoch)
        )

    def partitions_of(self, consumer: str) -> list[PartitionKey]:
        return sorted(self._group.view(MemberId(consumer)).partitions)

    @property
    def members(self) -> dict[str, list[str]]:
        """Each member, and the partitions it reads."""
        return {
            member: [str(partition) for partition in self.partitions_of(member)]
            for member in sorted(self._group.members)
        }

    # ------------------------------------------------------------------ what changes

    def tick(self) -> None:
        """Do what is due: who fell silent is taken for dead."""
        self._follow(self._group.tick(self._now()))
        self.hand_over()

    def hand_over(self) -> None:
        """Partitions that were asked for move, where nothing of them is under way any more."""
        if not self._group.moving_count:
            return
        for member in list(self._group.members):
            given_up = {
                partition: epoch
                for partition, epoch in self._group.view(member).give_up.items()
                if not self._is_busy(partition, member)
            }
            if given_up:
                _, changes = self._group.heartbeat(member, self._now(), gave_up=given_up)
                self._follow(changes)

    def _is_busy(self, partition: PartitionKey, member: MemberId) -> bool:
        delivery = self._deliveries.get(partition)
        return delivery is not None and delivery.sessions.view.has_messages(member)

    def _ends_leases(self, revoked: Revoked) -> bool:
        """Whether what the member holds of the partition is another's to have at once.

        Of what was given up its owner may still hold something on another node, and exactly once
        means that a lease is good to its end, also that of a member nobody has heard of for long.
        """
        if revoked.reason is Reason.GAVE_UP:
            return False
        return revoked.reason is Reason.LEFT or not self._is_exactly_once

    def _follow(self, changes: list[Change]) -> None:
        if not changes:
            return
        for change in changes:
            if isinstance(change, Revoked) and self._ends_leases(change):
                delivery = self._deliveries.get(change.partition)
                if delivery is not None:
                    delivery.release(change.member)
                else:
                    self._release_remote(change.member)
            if isinstance(change, MemberJoined | MemberLeft):
                verb = "joined" if isinstance(change, MemberJoined) else "left"
                logger.info(f"member {verb}", subscription=self._name, member=change.member)
        if any(isinstance(change, Granted | Revoked) for change in changes):
            self._counts.rebalances += 1
        if any(isinstance(change, Asked) for change in changes):
            self.hand_over()
        self._on_change()
