"""Stories of consumer groups, as conversations that a person can read.

Each file in ``group`` is a sequence of commands, with the time at which they come and the answers:

    # Why this is here.
    3s heartbeat ada orders/1@2
    ----
    orders/1@2 revoked from ada (given up)
    orders/1@3 granted to bob
    ada reads orders/0@1

``orders/1@2`` is the grant of that partition under epoch 2. A change of behaviour is reviewed as a
change of these files: ``QUIVER_REWRITE_TRANSCRIPTS=1`` writes what there is to see now into them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from quiver.broker.group.machine import GroupMachine
from quiver.broker.group.values import (
    Asked,
    Assignments,
    Change,
    Granted,
    GrantEpoch,
    GroupSettings,
    MemberId,
    MemberJoined,
    MemberLeft,
    PartitionKey,
    Revoked,
    Spared,
    View,
)
from quiver.model.ids import Microseconds

SECOND = 1_000_000
STORIES = sorted((Path(__file__).parent / "group").glob("*.txt"))
RULE = "----"


class Stage:
    """Plays one transcript."""

    def __init__(self) -> None:
        self.group = GroupMachine(GroupSettings())

    def play(self, line: str) -> list[str]:
        time, verb, *words = line.split()
        now = Microseconds(round(float(time.removesuffix("s")) * SECOND))
        return list(getattr(self, f"on_{verb.replace('-', '_')}")(now, *words)) or ["ok"]

    def on_partitions(self, now: Microseconds, *topics: str) -> Iterator[str]:
        """``orders=4``: the group reads four partitions of orders, and what else is named."""
        counts = (topic.split("=") for topic in topics)
        partitions = [
            PartitionKey(topic, index) for topic, count in counts for index in range(int(count))
        ]
        yield from told(self.group.set_partitions(partitions, now))

    def on_join(self, now: Microseconds, name: str) -> Iterator[str]:
        view, changes = self.group.join(MemberId(name), now)
        yield from told(changes)
        yield seen(name, view)

    def on_heartbeat(self, now: Microseconds, name: str, *gave_up: str) -> Iterator[str]:
        view, changes = self.group.heartbeat(MemberId(name), now, gave_up=grants(gave_up))
        yield from told(changes)
        yield seen(name, view)

    def on_leave(self, now: Microseconds, name: str) -> Iterator[str]:
        yield from told(self.group.leave(MemberId(name), now))

    def on_tick(self, now: Microseconds) -> Iterator[str]:
        yield from told(self.group.tick(now))

    def on_receive(self, _: Microseconds, name: str, grant: str) -> Iterator[str]:
        [(place, epoch)] = grants([grant]).items()
        yield "yes" if self.group.may_receive(MemberId(name), place, epoch) else "refused"

    def on_ack(self, _: Microseconds, name: str, grant: str) -> Iterator[str]:
        [(place, epoch)] = grants([grant]).items()
        yield "yes" if self.group.may_ack(MemberId(name), place, epoch) else "refused"

    def on_owners(self, _: Microseconds) -> Iterator[str]:
        for name in sorted(self.group.members):
            yield seen(name, self.group.view(name))


def grants(words: Iterable[str]) -> Assignments:
    parts = [word.replace("/", "@").split("@") for word in words]
    return {
        PartitionKey(topic, int(index)): GrantEpoch(int(epoch)) for topic, index, epoch in parts
    }


def told(changes: Iterable[Change]) -> Iterator[str]:
    for change in changes:
        match change:
            case MemberJoined(member):
                yield f"{member} joined"
            case MemberLeft(member, reason):
                yield f"{member} {reason}"
            case Granted(place, member, epoch):
                yield f"{place}@{epoch} granted to {member}"
            case Asked(place, member, epoch, deadline):
                yield f"{place}@{epoch} asked of {member}, until {deadline // SECOND}s"
            case Spared(place, member, epoch):
                yield f"{place}@{epoch} spared, stays with {member}"
            case Revoked(place, member, epoch, reason):
                yield f"{place}@{epoch} revoked from {member} ({reason})"


def seen(name: str, view: View | None) -> str:
    if view is None:
        return f"{name} must join again"
    text = f"{name} reads {listed(view.partitions)}"
    return text + (f", gives up {listed(view.give_up)}" if view.give_up else "")


def listed(grants_held: Assignments) -> str:
    return " ".join(f"{place}@{epoch}" for place, epoch in sorted(grants_held.items())) or "nothing"


def play(story: str) -> str:
    """The story with the answers that its commands get now."""
    stage = Stage()
    return "\n\n".join(played(stage, block) for block in story.strip().split("\n\n")) + "\n"


def played(stage: Stage, block: str) -> str:
    question = block.partition(f"\n{RULE}")[0]
    commands = [line for line in question.splitlines() if not line.startswith("#")]
    answers = [answer for line in commands for answer in stage.play(line)]
    return "\n".join([question, RULE, *answers]) if commands else block


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_group_answers_as_in_the_transcript(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    if os.environ.get("QUIVER_REWRITE_TRANSCRIPTS"):
        path.write_text(play(written), encoding="utf-8")
    else:
        assert play(written) == written
