"""Which nodes hold which partitions: pure, and the same for the same input.

In this order: every partition has its replicas on different nodes that may hold them; a partition is
spread over as many zones as there are; nodes hold equally many replicas; nodes lead equally many
partitions; nothing moves that need not. Leading costs nothing to move, so it is evened out last and
apart. The first replica of a partition is the one that leads it if all is well.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heappop, heappush

import msgspec

from quiver.cluster.records import NodeId, PartitionId


class Site(msgspec.Struct, frozen=True):
    """A node that may hold replicas, and the zone it would be lost with."""

    node: NodeId
    zone: str = ""


Assignment = dict[PartitionId, tuple[NodeId, ...]]


def place(
    wanted: Mapping[PartitionId, int],
    sites: Iterable[Site],
    current: Mapping[PartitionId, tuple[NodeId, ...]] = {},
    pinned: Collection[PartitionId] = frozenset(),
) -> Assignment:
    """The best place for every partition in ``wanted`` (its number of replicas), moving little.

    A partition gets fewer replicas if there are fewer sites. ``current`` may name nodes that are no
    sites: what they hold moves away. One that is ``pinned`` stays where it is and is led by whom it
    is led; it only gets or loses replicas if it has not as many as are wanted.
    """
    board = _Board(sites, wanted, current, pinned)
    if not board.zone_of:
        return dict.fromkeys(sorted(wanted), ())
    for partition in sorted(wanted):
        board.fill(partition, wanted[partition])
        if partition not in pinned:
            board.spread(partition)
    _even(board.loads, board.unmade.first, board.move)
    _even(board.loads, board.movable.first, board.move)
    return _with_even_leaders(board.held, board.loads, pinned)


class _Movable:
    """The first partition that may move from one node to another, for every two nodes.

    Asked for again and again while one partition after the other moves, so each two nodes have a
    heap: of all that may be movable between them, and of some that are not any more.
    """

    def __init__(
        self,
        on: Callable[[NodeId], Iterable[PartitionId]],
        may_move: Callable[[PartitionId, NodeId, NodeId], bool],
    ) -> None:
        self._on = on
        self._may_move = may_move
        self._heaps: dict[NodeId, dict[NodeId, list[PartitionId]]] = defaultdict(dict)

    def first(self, source: NodeId, target: NodeId) -> PartitionId | None:
        heap = self._heaps[source].get(target)
        if heap is None:
            heap = self._heaps[source][target] = sorted(self._on(source))
        while heap and not self._may_move(heap[0], source, target):
            heappop(heap)
        return heap[0] if heap else None

    def changed(self, partition: PartitionId, holders: Iterable[NodeId]) -> None:
        """Where it may move to from its holders has to be seen anew."""
        for source in holders:
            for heap in self._heaps[source].values():
                heappush(heap, partition)


class _Board:
    """The replicas as they stand while they are being placed."""

    def __init__(
        self,
        sites: Iterable[Site],
        wanted: Mapping[PartitionId, int],
        current: Mapping[PartitionId, tuple[NodeId, ...]],
        pinned: Collection[PartitionId],
    ) -> None:
        self.zone_of = {site.node: site.zone for site in sorted(sites, key=lambda one: one.node)}
        self.loads = dict.fromkeys(self.zone_of, 0)
        self.held: Assignment = {}
        self._on: dict[NodeId, set[PartitionId]] = defaultdict(set)
        self._shared: Counter[tuple[NodeId, NodeId]] = Counter()
        self._before = current
        self._pinned = pinned
        self.movable = _Movable(self._on.__getitem__, self._may_move)
        self.unmade = _Movable(self._on.__getitem__, self._may_move_unmade)
        """Only what was just put there: its data has not been copied yet."""
        for partition in sorted(wanted):
            self.held[partition] = ()
            for node in dict.fromkeys(self._current(partition)):
                if node in self.zone_of:
                    self._add(partition, node)

    def fill(self, partition: PartitionId, count: int) -> None:
        """Bring a partition to its number of replicas."""
        while len(self.held[partition]) > count:
            self._remove(partition, max(self.held[partition], key=self._crowding(partition)))
        while len(self.held[partition]) < min(count, len(self.zone_of)):
            free = [node for node in self.zone_of if node not in self.held[partition]]
            self._add(partition, min(free, key=self._crowding(partition)))

    def spread(self, partition: PartitionId) -> None:
        """Move replicas out of zones that hold more of this partition than another could."""
        while True:
            zones = self._zones(partition)
            free = [node for node in self.zone_of if node not in self.held[partition]]
            if not free or not self.held[partition]:
                return
            best = min(free, key=self._crowding(partition))
            worst = max(self.held[partition], key=self._crowding(partition))
            if zones[self.zone_of[worst]] < zones[self.zone_of[best]] + 2:
                return
            self.move(partition, worst, best)

    def _may_move(self, partition: PartitionId, source: NodeId, target: NodeId) -> bool:
        """Whether it may go from one node to another: without crowding a zone."""
        held = self.held[partition]
        if source not in held or target in held or partition in self._pinned:
            return False
        from_zone, to_zone = self.zone_of[source], self.zone_of[target]
        if from_zone == to_zone:
            return True
        zones = self._zones(partition)
        return zones[to_zone] < zones[from_zone]

    def _may_move_unmade(self, partition: PartitionId, source: NodeId, target: NodeId) -> bool:
        made = source in self._current(partition)
        return not made and self._may_move(partition, source, target)

    def move(self, partition: PartitionId, source: NodeId, target: NodeId) -> None:
        before = self.held[partition]
        self._remove(partition, source)
        self._add(partition, target)
        held = self.held[partition] = tuple(target if node == source else node for node in before)
        self.movable.changed(partition, held)
        self.unmade.changed(partition, held)

    def _current(self, partition: PartitionId) -> tuple[NodeId, ...]:
        return self._before.get(partition, ())

    def _add(self, partition: PartitionId, node: NodeId) -> None:
        self._count_shared(partition, node, 1)
        self.held[partition] += (node,)
        self._on[node].add(partition)
        self.loads[node] += 1

    def _remove(self, partition: PartitionId, node: NodeId) -> None:
        self.held[partition] = tuple(one for one in self.held[partition] if one != node)
        self._on[node].remove(partition)
        self.loads[node] -= 1
        self._count_shared(partition, node, -1)

    def _count_shared(self, partition: PartitionId, node: NodeId, change: int) -> None:
        for other in self.held[partition]:
            self._shared[node, other] += change
            self._shared[other, node] += change

    def _zones(self, partition: PartitionId) -> Counter[str]:
        return Counter(self.zone_of[node] for node in self.held[partition])

    def _crowding(self, partition: PartitionId) -> Callable[[NodeId], tuple[int, int, int, NodeId]]:
        """How full it is where a node is, for this partition: the zone, then the node.

        Of equal nodes, one that shares few partitions with those that hold this one: when a node is
        lost, many others take over what it held.
        """
        zones = self._zones(partition)
        others = self.held[partition]

        def crowding(node: NodeId) -> tuple[int, int, int, NodeId]:
            shared = sum(self._shared[node, other] for other in others if other != node)
            return zones[self.zone_of[node]], self.loads[node], shared, node

        return crowding


def _with_even_leaders(
    held: Assignment, loads: Mapping[NodeId, int], pinned: Collection[PartitionId]
) -> Assignment:
    """The same replicas, with those that lead put first so that all nodes lead equally many."""
    placed = dict(held)
    led: dict[NodeId, int] = dict.fromkeys(loads, 0)
    leads: dict[NodeId, set[PartitionId]] = defaultdict(set)
    for partition, replicas in placed.items():
        if replicas:
            led[replicas[0]] += 1
            leads[replicas[0]].add(partition)

    def may_move(partition: PartitionId, source: NodeId, target: NodeId) -> bool:
        replicas = placed[partition]
        return replicas[0] == source and target in replicas and partition not in pinned

    movable = _Movable(leads.__getitem__, may_move)

    def move(partition: PartitionId, source: NodeId, target: NodeId) -> None:
        leads[source].remove(partition)
        leads[target].add(partition)
        led[source] -= 1
        led[target] += 1
        others = tuple(node for node in placed[partition] if node != target)
        placed[partition] = (target, *others)
        movable.changed(partition, [target])

    _even(led, movable.first, move)
    return placed


def _even(
    loads: Mapping[NodeId, int],
    movable: Callable[[NodeId, NodeId], PartitionId | None],
    move: Callable[[PartitionId, NodeId, NodeId], None],
) -> None:
    """Shift one thing at a time from a fuller node towards an emptier, over others if need be.

    Each shift takes one from a node and leaves a node with two fewer or less with one more, and what
    lies between as it was: the sum of squares falls, so this ends.
    """
    while True:
        for fullest in sorted(loads, key=lambda node: (-loads[node], node)):
            path = _way_down(fullest, loads, movable)
            if path is not None:
                break
        else:
            return
        for source, target in reversed(path):
            partition = movable(source, target)
            if partition is None:
                break  # an earlier step of this shift was the last that could be made
            move(partition, source, target)


def _way_down(
    start: NodeId,
    loads: Mapping[NodeId, int],
    movable: Callable[[NodeId, NodeId], PartitionId | None],
) -> list[tuple[NodeId, NodeId]] | None:
    """The shortest chain of possible moves to a node with at least two fewer than ``start``."""
    came_from: dict[NodeId, NodeId] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for other in sorted(loads, key=lambda one: (loads[one], one)):
            if other in came_from or other == start or movable(node, other) is None:
                continue
            came_from[other] = node
            if loads[other] <= loads[start] - 2:
                return _chain(start, other, came_from)
            waiting.append(other)
    return None


def _chain(
    start: NodeId, end: NodeId, came_from: Mapping[NodeId, NodeId]
) -> list[tuple[NodeId, NodeId]]:
    steps = []
    while end != start:
        steps.append((came_from[end], end))
        end = came_from[end]
    return steps[::-1]
