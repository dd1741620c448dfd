"""Requests that wait until others of the same connection have gone well.

A pure machine over the ids of one session's requests. A dependent goes on well only on evidence: each
request that it names was answered, and went well, since the first dependent came. A request that failed, or
that is not known, or not any more, did not go well.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import msgspec

KNOWN_MAX = 256
"""How many of the requests that went well last are known."""

GoOn = Callable[[bool], object]
"""Called once, with whether all requests that the dependent names went well."""


class _Dependent(msgspec.Struct, eq=False):
    left: set[int]
    """The requests without an answer."""
    go_on: GoOn


class Dependents:
    def __init__(self) -> None:
        self._waiting: dict[int, list[_Dependent]] = {}
        """By the id of a request without an answer."""
        self._went_well: dict[int, None] = {}
        """The ids of requests that went well, the newest last."""
        self.is_used = False
        """Whether a dependent ever came: until then there is nothing to note."""

    def add(self, after: Iterable[int], unanswered: Container[int], go_on: GoOn) -> None:
        """``go_on`` is called when all requests ``after`` which it comes are answered, or one failed."""
        self.is_used = True
        left: set[int] = set()
        for one in after:
            if one in unanswered:
                left.add(one)
            elif one not in self._went_well:
                go_on(False)
                return
        if not left:
            go_on(True)
            return
        dependent = _Dependent(left, go_on)
        for one in left:
            self._waiting.setdefault(one, []).append(dependent)

    def awaits(self, request_id: int) -> bool:
        """Whether a dependent waits for the answer of this request."""
        return bool(self._waiting.get(request_id))

    def answered(self, request_id: int, *, went_well: bool) -> None:
        """A request of this id is answered."""
        if went_well:
            self._went_well[request_id] = None
            if len(self._went_well) > KNOWN_MAX:
                del self._went_well[next(iter(self._went_well))]
        else:
            self._went_well.pop(request_id, None)
        for dependent in self._waiting.pop(request_id, ()):
            if not went_well:
                self._refuse(dependent)
                continue
            dependent.left.discard(request_id)
            if not dependent.left:
                dependent.go_on(True)

    def _refuse(self, dependent: _Dependent) -> None:
        for one in dependent.left:
            others = self._waiting.get(one)
            if others is not None and dependent in others:
                others.remove(dependent)
        dependent.go_on(False)
