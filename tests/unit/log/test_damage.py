"""Rot, cuts, swaps and noise in the files of a small log: never a wrong answer, never a crash.

Each damaged folder is opened and asked for every offset and every time. Each answer has to be what
the whole log says, or an error with a clear code. A log that was closed cleanly loses nothing in
silence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations, permutations
from random import Random
from typing import NamedTuple

import pytest

from quiver.errors import CorruptLog, LogError, UnsupportedFormat
from quiver.log.segmented_log import SegmentedLog
from quiver.model.ids import Microseconds, Offset
from quiver.testing.disk import SimulatedDisk
from tests.unit.log.small_logs import (
    FOLDER,
    SECOND_US,
    Facts,
    SetClock,
    batch,
    disk_with,
    effort,
    facts,
    files_in,
    open_log,
    read_all,
    segment_count,
)

Files = dict[str, bytes]
Answers = dict[str, object]
"""What a log says of each offset and time: facts, an offset, or the code of an error."""

CLEAR_CODES = (CorruptLog.code, UnsupportedFormat.code)
LATER = SetClock(10_000 * SECOND_US)
SIZES = ([430, 13, 30], [40, 40], [40, 40], [5, 70])
"""Bodies in each segment: the first has several index entries, the next two are alike in size."""


class Small(NamedTuple):
    """A small log: its files as they were left, what was in it, and what it says of it."""

    files: Files
    entries: list[Facts]
    said: Answers


def make_small(*, clean: bool) -> Small:
    disk, clock = SimulatedDisk(1), SetClock()
    log = open_log(disk, clock)
    for segment, sizes in enumerate(SIZES):
        for place, size in enumerate(sizes):
            log.append([batch(size, count=1 + place % 2, seed=10 * segment + place)])
            clock.now_us += 1000
        clock.now_us += 2 * SECOND_US
    assert segment_count(log) == len(SIZES)
    entries = read_all(log)
    if clean:
        log.close()
    disk.kill()
    files = files_in(disk)
    return Small(files, entries, answers(open_log(disk, LATER), entries))


def answers(log: SegmentedLog, entries: list[Facts]) -> Answers:
    said: Answers = {"start": log.start_offset, "next": log.next_offset}
    for entry in entries:
        for offset in range(entry.base_offset, entry.next_offset):
            said[f"offset {offset}"] = ask(partial(read_one, log, offset))
        time = entry.append_time
        said[f"time {time}"] = ask(partial(log.offset_at, Microseconds(time)))
    said["everything"] = ask(partial(read_on, log, log.start_offset))
    return said


def ask(question: Callable[[], object]) -> object:
    try:
        return question()
    except LogError as error:
        return error.code


def read_one(log: SegmentedLog, offset: int) -> Facts:
    return facts(log.read(Offset(offset), 1)[0])


def read_on(log: SegmentedLog, offset: int) -> list[Facts]:
    return [facts(entry) for entry in log.read(Offset(offset))]


def judge(small: Small, files: Files, what: str) -> Answers | None:
    """Open these files instead, and compare all answers; ``None`` if the log does not open."""
    try:
        log = open_log(disk_with(files), LATER)
    except (CorruptLog, UnsupportedFormat):
        return None
    said = answers(log, small.entries)
    for question, answer in said.items():
        whole = small.said[question]
        if answer != whole and answer not in CLEAR_CODES:
            assert isinstance(answer, list), f"{what}: {question}"
            assert isinstance(whole, list)
            assert answer == whole[: len(answer)] != [], f"{what}: {question}"
    return said


CLOSED = make_small(clean=True)
NAMES = sorted(CLOSED.files)
LOGS = [name for name in NAMES if name.endswith(".log")]


def with_file(name: str, content: bytes) -> Files:
    return {**CLOSED.files, name: content}


def without(*names: str) -> Files:
    return {name: content for name, content in CLOSED.files.items() if name not in names}


def flipped(content: bytes, position: int, mask: int) -> bytes:
    return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]


def test_the_whole_log_answers_every_question() -> None:
    assert [
        CLOSED.said[f"offset {entry.base_offset}"] for entry in CLOSED.entries
    ] == CLOSED.entries
    assert [CLOSED.said[f"time {entry.append_time}"] for entry in CLOSED.entries] == [
        entry.base_offset for entry in CLOSED.entries
    ]


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("name", NAMES)
def test_no_flipped_byte_of_a_closed_log_changes_an_answer(name: str) -> None:
    content = CLOSED.files[name]
    for position in range(len(content)):
        masks = [1 + position * 37 % 255] + [1 << bit for bit in range(8) if effort() > 1]
        for mask in masks:
            damaged = with_file(name, flipped(content, position, mask))
            judge(CLOSED, damaged, f"{name} at {position} ^ {mask:#x}")


@pytest.mark.parametrize("name", LOGS)
def test_an_entry_whose_offset_turned_negative_is_not_passed_over(name: str) -> None:
    content = CLOSED.files[name]
    sign_bytes = [at + 23 for at in range(0, len(content), 8) if content.startswith(b"QVRE", at)]
    assert len(sign_bytes) >= 2
    for position in sign_bytes:
        damaged = with_file(name, flipped(content, position, 0x80))
        judge(CLOSED, damaged, f"{name} at {position}")
        del damaged["checkpoint"]
        judge(CLOSED, damaged, f"{name} at {position}, without a checkpoint")


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(LOGS)))
def test_an_index_or_checkpoint_that_is_damaged_or_gone_costs_no_answer(name: str) -> None:
    content = CLOSED.files[name]
    for position in range(0, len(content), 5):
        said = judge(CLOSED, with_file(name, flipped(content, position, 0x10)), name)
        assert said == CLOSED.said
    assert judge(CLOSED, without(name), f"without {name}") == CLOSED.said


@pytest.mark.parametrize("place", range(len(SIZES)))
def test_damage_in_one_body_costs_the_answers_about_that_entry_alone(place: int) -> None:
    name = LOGS[place]
    entry = [one for one in CLOSED.entries if f"{one.base_offset:020d}.log" >= name][1]
    at = CLOSED.files[name].index(entry.body)
    said = judge(CLOSED, with_file(name, flipped(CLOSED.files[name], at, 0x04)), name)
    assert said is not None
    lost = {f"offset {offset}" for offset in range(entry.base_offset, entry.next_offset)}
    assert {question for question in said if said[question] == CorruptLog.code} >= lost
    for question, answer in said.items():
        if question.startswith("offset") and question not in lost:
            assert answer == CLOSED.said[question]


@pytest.mark.parametrize("place", range(len(SIZES)))
def test_a_read_gives_what_is_whole_before_the_damage(place: int) -> None:
    name = LOGS[place]
    first, second = [one for one in CLOSED.entries if f"{one.base_offset:020d}.log" >= name][:2]
    at = CLOSED.files[name].index(second.body)
    log = open_log(disk_with(with_file(name, flipped(CLOSED.files[name], at, 0x04))), LATER)
    assert read_on(log, first.base_offset) == [first]
    with pytest.raises(CorruptLog):
        log.read(Offset(second.base_offset))


def test_damage_is_named_with_its_file_and_position() -> None:
    name, entry = LOGS[0], CLOSED.entries[1]
    at = CLOSED.files[name].index(entry.body)
    log = open_log(disk_with(with_file(name, flipped(CLOSED.files[name], at, 0x04))), LATER)
    with pytest.raises(CorruptLog) as caught:
        log.read(Offset(entry.base_offset))
    assert caught.value.details == {"file": f"{FOLDER}/{name}", "position": at - 88}


# ---------------------------------------------------------------------- whole files


@pytest.mark.parametrize("name", NAMES)
def test_no_cut_of_a_file_of_a_closed_log_changes_an_answer(name: str) -> None:
    content = CLOSED.files[name]
    for length in range(len(content)):
        judge(CLOSED, with_file(name, content[:length]), f"{name} cut to {length}")


@pytest.mark.parametrize("name", NAMES)
def test_surplus_bytes_at_the_end_of_a_file_change_no_answer(name: str) -> None:
    content = CLOSED.files[name]
    for surplus in (b"\0", bytes(88), bytes(4096), content, b"QVRE" * 30):
        judge(CLOSED, with_file(name, content + surplus), f"{name} longer")


@pytest.mark.parametrize("name", LOGS)
def test_a_missing_segment_changes_no_answer(name: str) -> None:
    judge(CLOSED, without(name), f"without {name}")


@pytest.mark.parametrize("name", [LOGS[0], LOGS[-1]])
def test_a_missing_first_or_last_segment_is_named_when_the_log_is_opened(name: str) -> None:
    with pytest.raises(CorruptLog, match="missing") as caught:
        open_log(disk_with(without(name)), LATER)
    assert caught.value.details["file"] == f"{FOLDER}/{name}"


def test_no_two_missing_files_change_an_answer() -> None:
    for gone in combinations(NAMES, 2):
        if gone not in ((LOGS[0], "checkpoint"), (LOGS[-1], "checkpoint")):  # no trace is left
            judge(CLOSED, without(*gone), f"without {gone}")


def test_no_two_files_can_change_places() -> None:
    for one, other in combinations(NAMES, 2):
        files = {**CLOSED.files, one: CLOSED.files[other], other: CLOSED.files[one]}
        judge(CLOSED, files, f"{one} and {other} swapped")


def test_no_file_can_stand_in_for_another() -> None:
    for one, other in permutations(NAMES, 2):
        judge(CLOSED, with_file(one, CLOSED.files[other]), f"{one} is a copy of {other}")


@pytest.mark.parametrize("base", [1, 5, 12, 500, 10**18, 10**19])
@pytest.mark.parametrize("size", [0, 30, 3000])
def test_a_foreign_segment_in_the_folder_changes_no_answer(base: int, size: int) -> None:
    noise = Random(size).randbytes(size)
    judge(CLOSED, with_file(f"{base:020d}.log", noise), f"a segment at {base}")


def test_files_that_are_not_the_logs_change_nothing_and_stay() -> None:
    beside = {"notes.txt": b"hello", "old.log": b"x", "1.index": b"y"}
    disk = disk_with({**CLOSED.files, **beside})
    assert answers(open_log(disk, LATER), CLOSED.entries) == CLOSED.said
    assert {name: disk.read(f"{FOLDER}/{name}") for name in beside} == beside


def test_a_file_that_is_not_the_newest_segments_is_not_cut() -> None:
    newest = with_file(LOGS[-1], CLOSED.files[LOGS[0]])
    disk = disk_with(newest)
    with pytest.raises(CorruptLog):
        open_log(disk, LATER)
    assert files_in(disk) == newest


def test_without_a_checkpoint_a_bad_tail_is_never_cut() -> None:
    files = without("checkpoint")
    files[LOGS[-1]] += b"more"
    disk = disk_with(files)
    with pytest.raises(CorruptLog):
        open_log(disk, LATER)
    assert files_in(disk) == files


# ---------------------------------------------------------------------- at random


def test_pieces_of_a_file_cannot_change_places() -> None:
    random = Random(5)
    for _ in range(200 * effort()):
        name = random.choice(NAMES)
        content = bytearray(CLOSED.files[name])
        length = random.randint(1, len(content) // 2)
        source, target = (random.randrange(len(content) - length + 1) for _ in range(2))
        content[target : target + length] = content[source : source + length]
        judge(CLOSED, with_file(name, bytes(content)), f"{name} {source} → {target}, {length}")


def test_noise_in_place_of_any_file_changes_no_answer() -> None:
    random = Random(7)
    for _ in range(200 * effort()):
        name = random.choice(NAMES)
        noise = random.randbytes(random.choice((0, 1, 50, len(CLOSED.files[name]), 5000)))
        judge(CLOSED, with_file(name, noise), f"noise for {name}")


def test_damage_in_several_files_at_once_changes_no_answer() -> None:
    random = Random(11)
    for _ in range(200 * effort()):
        files = dict(CLOSED.files)
        for name in random.choices(NAMES, k=5):
            position = random.randrange(len(files[name]))
            files[name] = flipped(files[name], position, 1 << random.randrange(8))
        judge(CLOSED, files, "several flips")


# ---------------------------------------------------------------------- a log that was not closed

NOT_CLOSED = make_small(clean=False)


def test_without_a_clean_close_only_the_last_entry_can_be_taken_for_torn() -> None:
    newest, content = LOGS[-1], NOT_CLOSED.files[LOGS[-1]]
    opened = 0
    for position in range(len(content)):
        files = {**NOT_CLOSED.files, newest: flipped(content, position, 0xFF)}
        try:
            log = open_log(disk_with(files), LATER)
        except CorruptLog:
            continue
        opened += 1
        found = read_all(log)
        assert found == NOT_CLOSED.entries[: len(found)]
        assert len(found) >= len(NOT_CLOSED.entries) - 1
    assert opened >= len(NOT_CLOSED.entries[-1].body)


def test_without_a_clean_close_a_cut_leaves_whole_entries_only() -> None:
    newest, content = LOGS[-1], NOT_CLOSED.files[LOGS[-1]]
    for length in range(len(content)):
        log = open_log(disk_with({**NOT_CLOSED.files, newest: content[:length]}), LATER)
        found = read_all(log)
        assert found == NOT_CLOSED.entries[: len(found)]
        assert len(found) >= len(NOT_CLOSED.entries) - 2
