"""Where the messages of a mirrored topic come from.

The clusters that they came through are part of it, so that a cluster never takes its own messages back.
"""

from __future__ import annotations

import msgspec


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the messages of a mirrored topic come from."""

    mirror: str
    """The mirror that copies it, by its name here."""
    cluster: str
    """The id of the cluster that it is copied from."""
    topic: str
    """Its name there."""
    number: int
    """Its number there: a topic that is created again under the same name has another."""
    promotions: int = 0
    """How many copies had been promoted on the way to that topic: who has more is the later primary."""
    through: list[str] = []
    """The clusters that its messages came through before that one, the first of all first."""

    @property
    def clusters(self) -> list[str]:
        """Every cluster that its messages were in before this one."""
        return [*self.through, self.cluster]

    @property
    def hops(self) -> int:
        return len(self.through) + 1

    def __str__(self) -> str:
        return f"{self.topic!r} of mirror {self.mirror!r}"
