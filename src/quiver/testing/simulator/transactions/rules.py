"""What should not have happened to transactions: more rules for the checker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from quiver.testing.simulator.history import History, Transaction


def partly_visible(history: History) -> Iterator[str]:
    """All results of a committed transaction are visible in the end, each once; none of any other."""
    if not history.transactions:
        return
    visible = Counter(value for values in history.results.values() for _, value in values)
    for one in history.transactions:
        expected = 1 if one.outcome == "committed" else 0
        for partition, value in one.outputs:
            if visible[value] != expected:
                yield f"{value} of {_named(one)} is {visible[value]} times in {partition}"


def told_otherwise(history: History) -> Iterator[str]:
    """What a worker was told is what the coordinator says in the end; every transaction has ended."""
    for one in history.transactions:
        if one.outcome not in ("committed", "aborted"):
            yield f"{_named(one)} has not ended"
        if one.told and one.told != one.outcome:
            yield f"{one.worker} was told that {_named(one)} is {one.told}"


def committed_unasked(history: History) -> Iterator[str]:
    for one in history.transactions:
        if one.outcome == "committed" and one.asked != "commit":
            yield f"{_named(one)}: the worker asked for {one.asked or 'nothing'}"


def zombie_committed(history: History) -> Iterator[str]:
    """Who asks for a commit after another life had its name gets none."""
    for one in history.transactions:
        if one.outcome == "committed" and one.fenced <= one.asked_at:
            yield f"{_named(one)}: another had its name from {one.fenced:.3f} s on"


def read_too_early(history: History) -> Iterator[str]:
    """Nobody ever reads a result of a transaction that is not committed."""
    ends = {str(one.id): one for one in history.transactions}
    for read in history.seen:
        for offset, value in read.values:
            one = ends[value.rpartition("@")[2]]
            if one.outcome != "committed":
                yield (
                    f"reader {read.reader} saw {value} at {read.partition}:{offset} at "
                    f"{read.ended:.3f} s, of {_named(one)}"
                )
            elif read.ended < one.asked_at:
                yield (
                    f"reader {read.reader} saw {value} at {read.ended:.3f} s, and the commit of "
                    f"{_named(one)} was asked for at {one.asked_at:.3f} s"
                )


def acknowledged_and_undone(history: History) -> Iterator[str]:
    """Each message is taken by one committed transaction: not by two, and not finished without."""
    if not history.drained or not history.transactions:
        return
    takers: dict[tuple[str, int], list[Transaction]] = defaultdict(list)
    for one in history.transactions:
        for partition, offset in one.inputs if one.outcome == "committed" else ():
            takers[partition, offset].append(one)
    for partition, end in history.drained_to.items():
        for offset in range(end):
            found = takers[partition, offset]
            if len(found) != 1:
                who = ", ".join(map(_named, found)) or "nobody"
                yield f"{partition}:{offset} is finished, and was taken by {who}"


def committed_but_not_delivered(history: History) -> Iterator[str]:
    """A consumer is given every result that a reader sees, and nothing that is hidden."""
    if not history.drained:
        return
    visible = {(place, offset) for place, values in history.results.items() for offset, _ in values}
    delivered = set(history.delivered)
    for partition, offset in sorted(visible - delivered):
        yield f"{partition}:{offset} was delivered to nobody"
    for partition, offset in sorted(delivered - visible):
        yield f"{partition}:{offset} was delivered, and no reader sees it"


def _named(one: Transaction) -> str:
    return f"transaction {one.id} ({one.outcome or 'open'}, of {one.worker} at {one.began:.3f} s)"


TRANSACTION_RULES = (
    partly_visible,
    told_otherwise,
    committed_unasked,
    zombie_committed,
    read_too_early,
    acknowledged_and_undone,
    committed_but_not_delivered,
)
