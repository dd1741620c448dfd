"""The result of a check: a verdict, one sentence, and what to do."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, but less safely or more slowly than it could."""
    FAILURE = "failure"
    """A node with these settings would not start, or would break a guarantee."""


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
