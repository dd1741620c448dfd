"""The errors' own promise: one code for each."""

from __future__ import annotations

from quiver.errors import QuiverError, error_classes, error_from


def _every_class() -> list[type[QuiverError]]:
    found, waiting = [], [QuiverError]
    while waiting:
        error = waiting.pop()
        found.append(error)
        waiting += error.__subclasses__()
    return found


def test_no_two_errors_share_a_code() -> None:
    assert len(error_classes()) == len(_every_class())


def test_an_error_comes_back_from_its_code_as_the_class_it_was() -> None:
    for code, error in error_classes().items():
        assert type(error_from(code, "why", {"a": 1})) is error
