"""Kills a node at a step of a failback."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from quiver.broker.definitions.subscriptions import Subscriptions
from quiver.broker.definitions.topics import Topics
from quiver.broker.partition.partition_store import LocalPartitionStore
from quiver.model.mirror.failback import FailbackPartition

Step = Callable[..., Awaitable[Any]]


def _compared(part: FailbackPartition) -> bool:
    return not part.is_kept


def _kept(part: FailbackPartition) -> bool:
    return part.is_kept and not part.is_cut


def _cut(part: FailbackPartition) -> bool:
    return part.is_cut


STEPS: dict[str, tuple[type, str, Callable[[FailbackPartition], bool] | None]] = {
    "begin": (Topics, "begin_failback", None),
    "compared": (Topics, "note_failback", _compared),
    "kept": (Topics, "note_failback", _kept),
    "truncate": (LocalPartitionStore, "cut", None),
    "cut": (Topics, "note_failback", _cut),
    "adopt": (Subscriptions, "adopt", None),
    "finish": (Topics, "finish_failback", None),
}
"""Where each is done, and which of the calls it is."""


def crash(step: str, moment: str) -> None:
    """Let this process end without a word ``before`` or ``after`` a step."""
    owner, name, is_it = STEPS[step]
    original: Step = getattr(owner, name)

    async def crashing(self: object, *given: Any) -> Any:
        is_meant = is_it is None or is_it(given[2])
        if is_meant and moment == "before":
            os._exit(9)
        result = await original(self, *given)
        if is_meant:
            os._exit(9)
        return result

    setattr(owner, name, crashing)
