"""A consumer group through anything: joins, leaves, silences, late and repeated words, clock jumps,
other partitions and other coordinators, against what its members see.

``QUIVER_TEST_EFFORT=20`` searches twenty times as long. A failure prints the steps to play again.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quiver.broker.group.machine import GroupMachine
from quiver.broker.group.values import (
    Asked,
    Assignments,
    Change,
    Granted,
    GrantEpoch,
    GroupSettings,
    MemberId,
    MemberLeft,
    Owner,
    PartitionKey,
    Reason,
    Revoked,
    Spared,
    View,
)
from quiver.model.ids import Microseconds
from tests.unit.log.small_logs import effort

SECOND = 1_000_000
SESSION, REBALANCE = 3 * SECOND, 5 * SECOND
SETTINGS = GroupSettings(session_timeout_us=SESSION, rebalance_timeout_us=REBALANCE)
NAMES = [MemberId(name) for name in ("ada", "bob", "cleo", "dan", "eve")]
names = st.sampled_from(NAMES)
SILENT, STUBBORN, PROMPT = "silent", "stubborn", "prompt"


class Consumer:
    """A member as it is: what it believes to own, and whether it gives up what it is asked for."""

    def __init__(self, name: MemberId) -> None:
        self.name = name
        self.manner = PROMPT
        self.view = View({}, {})

    @property
    def holdings(self) -> Assignments:
        return self.view.partitions | self.view.give_up

    def release(self) -> Assignments:
        """Give up what it is asked for, or not."""
        if self.manner == STUBBORN:
            return {}
        released, self.view = self.view.give_up, View(self.view.partitions, {})
        return released


class GroupHistory(RuleBasedStateMachine):
    @initialize(count=st.integers(0, 8))
    def begin(self, count: int) -> None:
        self.now = self.clock = 100 * SECOND
        self.consumers: dict[MemberId, Consumer] = {}
        self.late: list[tuple[MemberId, Assignments]] = []
        self.partitions = [PartitionKey("orders", index) for index in range(count)]
        self.start(GroupMachine(SETTINGS))

    def start(self, group: GroupMachine) -> None:
        self.group = group
        self.owners: dict[PartitionKey, Owner] = {}
        self.epochs: dict[PartitionKey, GrantEpoch] = {}
        self.asked: dict[PartitionKey, int] = {}
        self.heard: dict[MemberId, int] = {}
        self.see(group.set_partitions(self.partitions, self.time()))

    def time(self) -> Microseconds:
        """What the clock shows; ``now`` is the latest that it has shown."""
        self.now = max(self.now, self.clock)
        return Microseconds(self.clock)

    # ------------------------------------------------------------------ what is seen is checked

    def see(self, changes: Iterable[Change], gave_up: Assignments | None = None) -> None:
        changes = list(changes)
        for change in changes:
            match change:
                case Granted(place, member, epoch):
                    assert place not in self.owners, "no partition has two owners"
                    assert epoch > self.epochs.get(place, 0), "epochs strictly increase"
                    self.owners[place] = Owner(member, epoch)
                    self.epochs[place] = epoch
                case Asked(place, member, epoch):
                    assert self.owners[place] == Owner(member, epoch)
                    self.asked[place] = self.now
                case Spared(place):
                    del self.asked[place]
                case Revoked(place, member, epoch, reason):
                    assert self.owners.pop(place) == Owner(member, epoch)
                    asked = self.asked.pop(place, None)
                    if reason is Reason.GAVE_UP:
                        assert gave_up is not None
                        assert gave_up[place] == epoch
                    if reason is Reason.TOO_LATE:
                        assert asked is not None
                        assert asked + REBALANCE <= self.now
                case MemberLeft(member, reason):
                    heard = self.heard.pop(member)
                    assert reason is Reason.LEFT or heard + SESSION <= self.now
        for change in changes:
            if isinstance(change, Asked):
                fair = len(self.partitions) // len(self.group.members)
                left = self.group.view(change.member).partitions
                assert len(left) >= fair, "nobody is asked for more than balance needs"

    @invariant()
    def one_owner_as_told(self) -> None:
        for place in self.partitions:
            assert self.group.owner_of(place) == self.owners.get(place)
            valid = [
                consumer.name
                for consumer in self.consumers.values()
                if place in consumer.holdings
                and self.group.may_ack(consumer.name, place, consumer.holdings[place])
            ]
            assert len(valid) <= 1, "what an old owner sends is fenced off"
        assert self.owners.keys() <= set(self.partitions)
        assert {owner.member for owner in self.owners.values()} <= self.group.members

    # ------------------------------------------------------------------ what may happen

    def heartbeat(self, consumer: Consumer) -> None:
        view = self.hear(consumer.name, consumer.release())
        if view is None:
            self.join(consumer.name)
        else:
            consumer.view = view

    def hear(self, name: MemberId, released: Assignments) -> View | None:
        view, changes = self.group.heartbeat(name, self.time(), gave_up=released)
        if view is not None:
            self.heard[name] = self.now
        self.see(changes, released)
        return view

    def tick(self) -> None:
        self.see(self.group.tick(self.time()))
        dead = {name for name, heard in self.heard.items() if heard + SESSION <= self.now}
        assert not dead & self.group.members, "the silent are taken for dead at the next tick"

    @rule(name=names)
    def join(self, name: MemberId) -> None:
        consumer = self.consumers.setdefault(name, Consumer(name))
        view, changes = self.group.join(name, self.time())
        self.heard[name] = self.now
        consumer.view = view
        self.see(changes)

    @rule(name=names)
    def leave(self, name: MemberId) -> None:
        self.consumers.pop(name, None)
        self.see(self.group.leave(name, self.time()))

    @rule(name=names, manner=st.sampled_from([SILENT, STUBBORN, PROMPT]))
    def change_manner(self, name: MemberId, manner: str) -> None:
        if name in self.consumers:
            self.consumers[name].manner = manner

    @rule(seconds=st.integers(1, 7))
    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock += SECOND
            for consumer in list(self.consumers.values()):
                if consumer.manner != SILENT:
                    self.heartbeat(consumer)
            self.tick()

    @rule(name=names)
    def send_what_comes_late(self, name: MemberId) -> None:
        if name in self.consumers:
            self.late.append((name, self.consumers[name].release()))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def deliver_what_comes_late(self, data: st.DataObject) -> None:
        """It stays in the list: the same may come again, even after its sender has left."""
        self.hear(*data.draw(st.sampled_from(self.late)))

    @rule(seconds=st.sampled_from([-60, -2, 2, 60]))
    def jump_the_clock(self, seconds: int) -> None:
        self.clock += seconds * SECOND
        self.tick()

    @rule(first=st.integers(0, 3), count=st.integers(0, 8))
    def change_partitions(self, first: int, count: int) -> None:
        self.partitions = [PartitionKey("orders", index) for index in range(first, first + count)]
        self.see(self.group.set_partitions(self.partitions, self.time()))

    # ------------------------------------------------------------------ in the end, calm

    def teardown(self) -> None:
        """When nothing happens any more, all is shared out soon, and then nothing moves."""
        self.clock = self.now
        for consumer in self.consumers.values():
            if consumer.manner == STUBBORN:
                consumer.manner = PROMPT
        self.pass_time(SESSION // SECOND + 3)
        living = [one for one in self.consumers.values() if one.manner != SILENT]
        assert self.group.members == {one.name for one in living}
        if living:
            assert self.owners.keys() == set(self.partitions), "every partition has an owner"
            counts = [len(consumer.view.partitions) for consumer in living]
            assert sum(counts) == len(self.partitions), "and its owner knows"
            assert max(counts) - min(counts) <= 1
        settled = dict(self.owners)
        self.pass_time(2 * REBALANCE // SECOND)
        assert self.owners == settled
        assert self.group.moving_count == 0


def test_every_partition_has_one_owner_through_anything() -> None:
    run_state_machine_as_test(
        GroupHistory,
        settings=settings(
            max_examples=120 * effort(),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=set(Phase) - {Phase.explain},
        ),
    )
