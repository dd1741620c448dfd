"""What is taken for a far or slow link."""

from __future__ import annotations

import pytest

from quiver.edge.mirror.link_gauge import LinkGauge

MIB = 1 << 20


def gauge(*answers: tuple[float, int, int]) -> LinkGauge:
    made = LinkGauge()
    for answer in answers:
        made.note(*answer)
    return made


def test_nothing_is_known_before_the_first_answer() -> None:
    assert not gauge().is_far


@pytest.mark.parametrize(
    ("said", "took_s", "arrived", "unpacked", "is_far"),
    [
        ("an empty answer from the same data centre", 0.001, 0, 0, False),
        ("an empty answer over 100 ms", 0.1, 0, 0, True),
        ("16 MiB at 500 MB/s", 0.034, 16 * MIB, 16 * MIB, False),
        ("16 MiB at 16 MB/s", 1.05, 16 * MIB, 16 * MIB, True),
        ("16 MiB at 65 MB/s over 100 ms", 0.36 + 0.1, 16 * MIB, 16 * MIB, True),
        ("16 MiB that the source compressed to a tenth", 0.05, MIB + MIB // 2, 16 * MIB, False),
        ("the same at 16 MB/s over 100 ms", 0.24, MIB + MIB // 2, 16 * MIB, True),
        ("1 MiB while others filled a near link", 0.2, 64 * MIB, 64 * MIB, False),
    ],
)
def test_a_link_is_judged_by_how_long_an_answer_takes(
    said: str, took_s: float, arrived: int, unpacked: int, is_far: bool
) -> None:
    assert gauge((took_s, arrived, unpacked)).is_far is is_far, said


def test_a_near_link_is_not_far_while_one_of_the_last_answers_was_quick() -> None:
    slow, quick = (0.5, MIB, MIB), (0.005, MIB, MIB)
    assert not gauge(quick, *[slow] * 7).is_far
    assert gauge(quick, *[slow] * 8).is_far
    assert not gauge(*[slow] * 8, quick).is_far
