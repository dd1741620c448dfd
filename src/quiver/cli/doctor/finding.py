"""What a check found: good, weak or wrong, in one sentence, and what to do about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and is weaker or slower than it could be."""
    FAILURE = "failure"
    """A node with these settings would not start, or not do what it promises."""


class Finding(msgspec.Struct, frozen=True):
    check: str
    verdict: Verdict
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, Verdict.OK, message)


def warning(check: str, message: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, message, advice)


def failure(check: str, message: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAILURE, message, advice)
