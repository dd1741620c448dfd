"""The folders of the simulated disk, and the changes to their entries that are not durable yet.

Each change (an entry made, renamed or removed) survives a power loss whole or not at all, and never
without the earlier changes to the same name: so a name that a lost rename would have replaced still
has its old file. Changes to different names are reordered freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from quiver.testing.power_loss import PowerLoss
from quiver.testing.simulated_file import SimulatedFile


class SimulatedFolder:
    """Names, as a program sees them (``entries``) and as a power loss would leave them."""

    __slots__ = ("entries", "synced")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.synced: dict[str, Node] = {}

    def files(self) -> Iterator[SimulatedFile]:
        """Every file here and below."""
        for node in self.entries.values():
            if isinstance(node, SimulatedFile):
                yield node
            else:
                yield from node.files()


Node = SimulatedFile | SimulatedFolder
Slot = tuple[SimulatedFolder, str]


@dataclass(slots=True, kw_only=True)
class _EntryChange:
    emptied: Slot | None
    filled: Slot | None
    node: Node
    slots: frozenset[Slot] = field(init=False)
    unsynced: set[SimulatedFolder] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = frozenset(slot for slot in (self.emptied, self.filled) if slot is not None)
        self.unsynced = {folder for folder, _ in self.slots}

    def show(self) -> None:
        if self.emptied:
            del self.emptied[0].entries[self.emptied[1]]
        if self.filled:
            self.filled[0].entries[self.filled[1]] = self.node

    def make_durable(self) -> None:
        if self.emptied:
            del self.emptied[0].synced[self.emptied[1]]
        if self.filled:
            self.filled[0].synced[self.filled[1]] = self.node


class EntryJournal:
    """Makes the changes to all folders below ``root``, and knows which of them are durable.

    A rename between two folders is durable once both are synced, and is one change until then.
    """

    __slots__ = ("_pending", "root")

    def __init__(self) -> None:
        self.root = SimulatedFolder()
        self._pending: list[_EntryChange] = []

    def create(self, slot: Slot, node: Node) -> None:
        self._record(_EntryChange(emptied=None, filled=slot, node=node))

    def rename(self, old: Slot, new: Slot) -> None:
        self._record(_EntryChange(emptied=old, filled=new, node=old[0].entries[old[1]]))

    def remove(self, slot: Slot) -> None:
        self._record(_EntryChange(emptied=slot, filled=None, node=slot[0].entries[slot[1]]))

    def sync_folder(self, folder: SimulatedFolder) -> None:
        for change in self._pending:
            change.unsynced.discard(folder)
        self._make_durable(lambda change: not change.unsynced)

    def sync_entries(self, slots: Iterable[Slot]) -> None:
        """Make just these names durable, not their neighbours in the folder."""
        wanted = frozenset(slots)
        self._make_durable(lambda change: not wanted.isdisjoint(change.slots))

    def lose_power(self, loss: PowerLoss) -> None:
        """Leave what was synced and the changes that ``loss`` spares, in folders and in files."""
        lost: set[Slot] = set()
        for change, spared in zip(self._pending, loss.survivors(len(self._pending)), strict=True):
            if spared and lost.isdisjoint(change.slots):
                change.make_durable()
            else:
                lost.update(change.slots)
        self._pending.clear()
        _show_durable(self.root, loss)

    def _record(self, change: _EntryChange) -> None:
        change.show()
        self._pending.append(change)

    def _make_durable(self, due: Callable[[_EntryChange], bool]) -> None:
        chosen: list[_EntryChange] = []
        others: list[_EntryChange] = []
        slots: set[Slot] = set()
        for change in reversed(self._pending):
            if due(change) or not slots.isdisjoint(change.slots):
                slots.update(change.slots)
                chosen.append(change)
            else:
                others.append(change)
        for change in reversed(chosen):
            change.make_durable()
        self._pending = others[::-1]


def _show_durable(folder: SimulatedFolder, loss: PowerLoss) -> None:
    folder.entries = dict(folder.synced)
    for node in folder.entries.values():
        if isinstance(node, SimulatedFile):
            node.lose_power(loss)
        else:
            _show_durable(node, loss)
