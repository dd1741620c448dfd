"""The failback of a topic: how far it has come on its way to be a copy of its own former copy.

It is kept in the topic's record, so that whoever leads a partition goes on where another stopped. The steps
of a partition are: its log is compared with the source's, what only this log has is kept aside, and the log
is cut there. The topic is a copy when all its partitions are cut.
"""

from __future__ import annotations

import msgspec

from quiver.model.mirror.origin import Origin


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log that is to be dropped."""

    begin: int
    end: int
    """Where the log ended when this was decided."""

    def applies_to(self, end: int) -> bool:
        """Whether a log that ends there is to be cut: one that has more was not looked at."""
        return self.begin < end <= self.end


class FailbackPartition(msgspec.Struct, frozen=True, array_like=True):
    """One partition whose log was compared."""

    cut: int
    """Where the last entry ends that both logs have; or, if a transaction is open there, where that began."""
    end: int
    """Where the log ended when it was compared. What is from ``cut`` to here is kept aside."""
    is_kept: bool = False
    is_cut: bool = False

    @property
    def diverged(self) -> int:
        """How many offsets the source does not have, or may have ended otherwise."""
        return self.end - self.cut


class Failback(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is about to be a copy. It takes no publishes, and nothing is delivered from it."""

    origin: Origin
    """What it will be a copy of."""
    aside: str
    """The name of the topic for what only this cluster has, if there is anything."""
    partitions: list[FailbackPartition | None]
    """By index; ``None`` until it is compared."""

    @property
    def is_compared(self) -> bool:
        return all(one is not None for one in self.partitions)

    @property
    def is_kept(self) -> bool:
        """Whether nothing is lost if the logs are cut."""
        return all(one is not None and one.is_kept for one in self.partitions)

    @property
    def is_cut(self) -> bool:
        return all(one is not None and one.is_cut for one in self.partitions)

    @property
    def diverged(self) -> int:
        """How many offsets only this cluster has, as far as is known."""
        return sum(one.diverged for one in self.partitions if one is not None)

    def cut_of(self, index: int) -> Cut | None:
        """What is to be dropped of a partition's log; nothing before all of it is kept aside."""
        part = self.partitions[index] if index < len(self.partitions) else None
        if part is None or not self.is_kept or part.cut == part.end:
            return None
        return Cut(begin=part.cut, end=part.end)

    def with_partition(self, index: int, part: FailbackPartition | None) -> Failback:
        partitions = [*self.partitions]
        partitions[index] = part
        return msgspec.structs.replace(self, partitions=partitions)

    def __str__(self) -> str:
        """What is being done now."""
        if not self.is_compared:
            return "its log is compared with the source's"
        if not self.is_kept:
            return f"what only this cluster has is kept in {self.aside!r}"
        return "its log is cut to what the source has too"
