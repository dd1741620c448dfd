"""A file of the simulated disk: what a program reads from it, and what a power loss would leave.

The two are kept apart: a change is seen at once, and is durable only after ``sync``. Writing costs
the bytes written, never the bytes that are already there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quiver.testing.power_loss import PowerLoss

SECTOR_BYTES = 512


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes
    abandoned: bool = False
    synced: bool = False

    def apply(self, content: bytearray) -> None:
        if self.position > len(content):
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data

    def parts(self) -> Iterator[_Write]:
        """The write, cut where the sectors of the file meet."""
        start = 0
        while start < len(self.data):
            end = start + SECTOR_BYTES - (self.position + start) % SECTOR_BYTES
            yield _Write(self.position + start, self.data[start:end], synced=self.synced)
            start = end

    def corrupt(self, position: int, data: bytes) -> None:
        start = max(position, self.position)
        end = min(position + len(data), self.position + len(self.data))
        if start < end:
            rotten = bytearray(self.data)
            rotten[start - self.position : end - self.position] = data[
                start - position : end - position
            ]
            self.data = bytes(rotten)


@dataclass(slots=True)
class _Truncate:
    size: int
    abandoned: bool = False
    synced: bool = False

    def apply(self, content: bytearray) -> None:
        del content[self.size :]

    def parts(self) -> Iterator[_Truncate]:
        yield self

    def corrupt(self, position: int, data: bytes) -> None:
        """There are no bytes here to rot."""


class SimulatedFile:
    """Bytes, with the changes to them that are not durable yet.

    After ``sync``, every earlier change survives every power loss, except those that an earlier
    sync failed on: as in a kernel that drops dirty pages after an error, these stay readable, and
    no later sync makes them durable.
    """

    __slots__ = ("_changes", "_synced", "_visible")

    def __init__(self) -> None:
        self._visible = bytearray()
        self._synced = bytearray()
        self._changes: list[_Write | _Truncate] = []

    @property
    def size(self) -> int:
        return len(self._visible)

    def window(self, position: int, length: int) -> memoryview:
        """A copy of those bytes, which no later change reaches."""
        assert position >= 0
        assert position + length <= self.size
        return memoryview(self._visible[position : position + length]).toreadonly()

    def write(self, position: int, data: bytes) -> None:
        """Replace bytes in the file, or add to its end, or both."""
        assert 0 <= position <= self.size
        if not data:
            return
        write = _Write(position, data)
        write.apply(self._visible)
        self._changes.append(write)

    def truncate(self, size: int) -> None:
        assert 0 <= size <= self.size
        self._changes.append(_Truncate(size))
        del self._visible[size:]

    def sync(self) -> None:
        for change in self._changes:
            change.synced = not change.abandoned
        # What follows an abandoned change waits behind it: should that one survive after all, the
        # later change must still be applied on top of it.
        folded = 0
        while folded < len(self._changes) and self._changes[folded].synced:
            self._changes[folded].apply(self._synced)
            folded += 1
        del self._changes[:folded]

    def abandon(self) -> None:
        """A sync failed: what it was to make durable is up to chance from now on."""
        for change in self._changes:
            change.abandoned = not change.synced

    def corrupt(self, position: int, data: bytes) -> None:
        """Overwrite bytes in every copy there is, as rot on the medium does."""
        assert position >= 0
        assert position + len(data) <= self.size, "there is nothing to corrupt past the end"
        self._visible[position : position + len(data)] = data
        for change in self._changes:
            change.corrupt(position, data)
        durable = data[: max(len(self._synced) - position, 0)]
        self._synced[position : position + len(durable)] = durable

    def lose_power(self, loss: PowerLoss) -> None:
        """Leave what was synced, and of the rest the sectors that ``loss`` spares."""
        if not self._changes:
            return
        content = self._synced
        parts = [part for change in self._changes for part in change.parts()]
        for part, spared in zip(parts, loss.survivors(len(parts)), strict=True):
            if spared or part.synced:
                part.apply(content)
        if len(content) < self.size:
            content.extend(bytes(loss.size(len(content), self.size) - len(content)))
        self._changes.clear()
        self._visible = bytearray(content)
