"""What should not have happened to the batches of a sink, which are shared transactions: more rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from quiver.testing.simulator.history import History, SinkCommit


def unnamed_part_visible(history: History) -> Iterator[str]:
    """Nobody ever reads a row of an attempt that no commit has named, nor before one did."""
    named: dict[int, float] = {}
    for commit in history.sink_commits:
        for part in commit.parts:
            named[part] = min(named.get(part, 1e9), commit.asked_at)
    for read in history.sink_seen:
        for offset, value in read.values:
            asked_at = named.get(_part_of(value), 1e9)
            if read.ended < asked_at:
                yield (
                    f"reader {read.reader} saw {value} at {read.partition}:{offset} at "
                    f"{read.ended:.3f} s, and {_asked(asked_at)}"
                )
    for place, values in history.sink_results.items():
        for offset, value in values:
            if _part_of(value) not in named:
                yield f"{value} is visible at {place}:{offset}, and no commit has named its attempt"


def seen_and_taken_back(history: History) -> Iterator[str]:
    """What somebody has read is there in the end."""
    if not history.sink_results:
        return
    final = {value for values in history.sink_results.values() for _, value in values}
    for read in history.sink_seen:
        for offset, value in read.values:
            if value not in final:
                yield f"reader {read.reader} saw {value} at {read.partition}:{offset}, and it is gone"


def batch_partly_visible(history: History) -> Iterator[str]:
    """Of a batch every row is visible once, or none is. Who was told that it is committed finds it."""
    if not history.sink_results:
        return
    rows: dict[int, Counter[str]] = defaultdict(Counter)
    for values in history.sink_results.values():
        for _, value in values:
            row = value.partition("@")[0]
            rows[int(row.partition(".")[0])][row] += 1
    told = {one.number: one.told_at for one in history.sink_commits if one.told_at < 1e9}
    for number, expected in history.sink_rows.items():
        visible = rows[number]
        if not visible and number not in told:
            continue
        if visible != Counter(expected):
            yield f"batch {number} has {sorted(visible.elements())} of {sorted(expected)}"


def committed_twice(history: History) -> Iterator[str]:
    """All that is visible of a batch is of one commit."""
    commits: dict[int, list[SinkCommit]] = defaultdict(list)
    for commit in history.sink_commits:
        commits[commit.number].append(commit)
    visible: dict[int, set[int]] = defaultdict(set)
    for values in history.sink_results.values():
        for _, value in values:
            visible[int(value.partition(".")[0])].add(_part_of(value))
    for number, parts in visible.items():
        if not any(parts.issubset(one.parts) for one in commits[number]):
            yield f"batch {number} is visible with parts {sorted(parts)} of several commits"


def _part_of(value: str) -> int:
    return int(value.rpartition("@")[2])


def _asked(at: float) -> str:
    return "no commit named it" if at == 1e9 else f"its commit was asked for at {at:.3f} s"


SINK_RULES = (
    unnamed_part_visible,
    seen_and_taken_back,
    batch_partly_visible,
    committed_twice,
)
