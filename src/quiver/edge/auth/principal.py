"""A principal: who makes a call, and what was granted to them.

All sessions of a token share one principal, so ending it ends them all. Decisions are cached within a
bound, because every publish is checked.
"""

from __future__ import annotations

from quiver.edge.auth.permissions import EVERYTHING, Grant, Need

DECISIONS_MAX = 4096


class Principal:
    """``is_trusted`` stands for all that is allowed when nobody is asked who they are."""

    __slots__ = (
        "_decisions",
        "_passed",
        "expires_us",
        "grants",
        "has_ended",
        "is_trusted",
        "name",
        "token_id",
    )

    def __init__(
        self,
        name: str,
        grants: tuple[Grant, ...],
        *,
        token_id: str | None = None,
        expires_us: int | None = None,
        is_trusted: bool = False,
    ) -> None:
        self.name = name
        self.grants = grants
        self.token_id = token_id
        self.expires_us = expires_us
        self.is_trusted = is_trusted
        self.has_ended = False
        self._decisions: dict[Need, bool] = {}
        self._passed: set[tuple[type, str]] = set()

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"

    def may(self, need: Need) -> bool:
        """Whether some grant covers it."""
        if self.is_trusted:
            return True
        decided = self._decisions.get(need)
        if decided is None:
            decided = any(grant.covers(need) for grant in self.grants)
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[need] = decided
        return decided

    def has_passed(self, call: tuple[type, str]) -> bool:
        """Whether a call about this name was found to be allowed before."""
        return call in self._passed

    def note_passed(self, call: tuple[type, str]) -> None:
        if len(self._passed) >= DECISIONS_MAX:
            self._passed.clear()
        self._passed.add(call)

    def is_over(self, now_us: int) -> bool:
        """Whether its token or certificate counts no more."""
        return self.has_ended or (self.expires_us is not None and now_us >= self.expires_us)

    def end(self) -> None:
        """It was revoked."""
        self.has_ended = True


ANONYMOUS = Principal("anonymous", EVERYTHING, is_trusted=True)
"""Everybody, on a node without authentication."""
INTERNAL = Principal("internal", EVERYTHING, is_trusted=True)
"""The program that has the broker inside it."""
PEER = Principal("peer", EVERYTHING, is_trusted=True)
"""Another node of the cluster, which has asked whoever it speaks for."""
NOBODY = Principal("nobody", ())
"""Whoever has not said who they are."""
NOBODY.end()
