"""Creates something, or finds that it exists already with the same settings; and says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from quiver.errors import SubscriptionExists, TopicExists

T = TypeVar("T")

IfNotExists = Annotated[
    bool,
    typer.Option("--if-not-exists", help="Succeed if it exists already with the same settings."),
]


def created(create: Callable[[bool], T], if_not_exists: bool) -> tuple[T, str]:
    """What was created or found, and which it was. ``create`` is told whether it may exist."""
    try:
        return create(False), "created"
    except (TopicExists, SubscriptionExists):
        if not if_not_exists:
            raise
    return create(True), "found"
