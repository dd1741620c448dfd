"""Grants and needs in the words of the matrix. Written again here, so that it does not repeat a mistake.

A need is ``permissions:kind:name``: one of the permissions (``publish|admin``) on one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NEVER = "nobody:cluster:*"
"""No grant is enough."""


def covers(grant: str, need: str) -> bool:
    permission, *kind, pattern = grant.split(":")
    permissions, needed_kind, name = need.split(":")
    kinds = (
        {"queue": ("topic", "subscription")}.get(kind[0], (kind[0],)) if kind else (needed_kind,)
    )
    return (
        permission in permissions.split("|") and needed_kind in kinds and (pattern in ("*", name))
    )


def suffice(grants: Iterable[str], needs: Sequence[str]) -> bool:
    return all(any(covers(grant, need) for grant in grants) for need in needs)


def exact(needs: Sequence[str]) -> list[str]:
    """As little as is needed: one grant for each need."""
    return [
        f"{need.split(':')[0].split('|')[0]}:{need.partition(':')[2]}"
        for need in needs
        if need != NEVER
    ]
