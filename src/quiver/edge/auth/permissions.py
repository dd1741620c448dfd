"""Permissions and grants: whether a grant covers what a call needs. No I/O.

A grant is written ``permission:pattern`` or ``permission:kind:pattern``, as in ``publish:orders.*`` and
``consume:queue:emails``; ``*`` matches any characters. Whatever no grant covers is refused.
"""

from __future__ import annotations

import re
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from quiver.errors import InvalidSetting

GRANTS_MAX = 100
_PATTERN = re.compile(r"[A-Za-z0-9_.*-]{1,200}")
_NAME_MAX = 200
_OWN = "__"
"""How Quiver's own names begin: a grant of everything is not one of these."""

_PUBLIC = frozenset({"__alerts"})


class Permission(StrEnum):
    PUBLISH = "publish"
    """Store messages in a topic or queue."""
    CONSUME = "consume"
    """Read a topic; receive from a queue or subscription, and settle what was received."""
    ADMIN = "admin"
    """Create, alter and delete. Neither publishing nor consuming is part of it."""


class ResourceKind(StrEnum):
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    QUEUE = "queue"
    """The topic and the subscription of one name."""
    CLUSTER = "cluster"
    """What belongs to nobody in particular, such as tokens. Its only name is ``*``."""


class Need(msgspec.Struct, frozen=True):
    """One of these permissions, on one thing. ``name`` may be a pattern: then on all it matches."""

    permissions: tuple[Permission, ...]
    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        words = " or ".join(self.permissions)
        return f"{words} on {self.kind} {self.name[:_NAME_MAX]!r}"


class Grant(msgspec.Struct, frozen=True):
    permission: Permission
    kind: ResourceKind | None
    """``None`` for every kind."""
    pattern: str

    def __str__(self) -> str:
        kind = "" if self.kind is None else f"{self.kind}:"
        return f"{self.permission}:{kind}{self.pattern}"

    def covers(self, need: Need) -> bool:
        return (
            self.permission in need.permissions
            and self._covers_kind(need.kind)
            and (self._covers_name(need.name) or self._covers_public(need.name))
        )

    def _covers_kind(self, kind: ResourceKind) -> bool:
        if self.kind is ResourceKind.QUEUE:
            return kind in (ResourceKind.TOPIC, ResourceKind.SUBSCRIPTION)
        return self.kind is None or self.kind is kind

    def _covers_public(self, name: str) -> bool:
        """Whoever may read everything may read those of Quiver's own topics that are for all."""
        return self.permission is Permission.CONSUME and self.pattern == "*" and name in _PUBLIC

    def _covers_name(self, name: str) -> bool:
        if name.startswith(_OWN) and not self.pattern.startswith(_OWN):
            return False
        # In a name that is itself a pattern, "*" is matched by nothing but a "*" of the grant, so
        # that whatever the name matches is matched by the grant too.
        if self.pattern == "*":
            return True
        return len(name) <= _NAME_MAX and fnmatchcase(name, self.pattern)


EVERYTHING = tuple(Grant(permission, None, "*") for permission in Permission)


def parse_grant(text: str) -> Grant:
    """The grant that ``text`` writes; ``InvalidSetting`` if it writes none."""
    parts = text.split(":") if isinstance(text, str) else []
    try:
        permission, *kind, pattern = parts
        if len(kind) > 1 or not _PATTERN.fullmatch(pattern):
            raise ValueError
        return Grant(Permission(permission), ResourceKind(kind[0]) if kind else None, pattern)
    except ValueError:
        raise InvalidSetting(
            f"{str(text)[:80]!r} is not a grant; write it as 'publish:orders.*' or "
            "'consume:queue:emails': publish, consume or admin, then optionally topic, queue, "
            "subscription or cluster, then a name in which * matches any characters",
            setting="grants",
        ) from None


def parse_grants(texts: list[str]) -> tuple[Grant, ...]:
    if not 1 <= len(texts) <= GRANTS_MAX:
        raise InvalidSetting(f"give 1 to {GRANTS_MAX} grants, not {len(texts):,}")
    return tuple(dict.fromkeys(map(parse_grant, texts)))
