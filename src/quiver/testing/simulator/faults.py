"""What goes wrong in a simulated cluster, drawn from the seed: several things at a time.

Every fault ends by itself after a while, and all end when the simulation heals the cluster. One disk is
lost or damaged at most, while every partition has another replica that is in sync or eligible: no cluster
survives more.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from random import Random

from quiver.cluster.metadata.store import Delete, Entry, Put
from quiver.cluster.records import DRAINING, PARTITIONS, PartitionRecord, decode
from quiver.testing.memory_store import MemoryStore
from quiver.testing.simulator.loop import VirtualLoop
from quiver.testing.simulator.network import STORE, SimulatedNetwork
from quiver.testing.simulator.node import FOLDER, STOP_SECONDS_MAX, SimulatedNode
from quiver.testing.simulator.store import Outage

_ROT_BYTES_MIN = 1024


class Faults:
    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        *,
        loop: VirtualLoop,
        network: SimulatedNetwork,
        store: MemoryStore,
        outage: Outage,
        rng: Random,
        beyond: Sequence[str] = (),
    ) -> None:
        """``beyond`` are nodes of another cluster, from which these may be cut off too."""
        self.story: list[tuple[float, str]] = []
        """What was done to the cluster, and when."""
        self._nodes = nodes
        self._beyond = list(beyond)
        self._loop = loop
        self._network = network
        self._store = store
        self._outage = outage
        self._rng = rng
        self._lost_disks = 0
        kinds: list[tuple[int, Callable[[], object]]] = [
            (5, self._crash),
            (3, self._kill),
            (3, self._stop),
            (4, self._pause),
            (4, self._cut_off),
            (3, self._cut_one_way),
            (3, self._cut_store),
            (3, self._refuse),
            (2, self._store_outage),
            (2, self._slow_store),
            (3, self._bad_network),
            (2, self._failing_sync),
            (2, self._crash_mid_write),
            (2, self._slow_disk),
            (1, self._full_crash),
            (1, self._lose_disk),
            (1, self._damage),
            (1, self._set_clock),
            (2, self._drain),
        ]
        chosen = rng.sample(kinds, rng.randint(3, len(kinds)))
        self._kinds = [kind for _, kind in chosen]
        self._weights = [weight for weight, _ in chosen]

    async def run(self, until: float) -> None:
        if self._rng.random() < 0.5:
            self._loop.create_task(self._hunt(until))
        calm = self._rng.choice((0.3, 0.8, 2.0))
        while self._loop.time() < until:
            await asyncio.sleep(self._rng.expovariate(1 / calm))
            (fault,) = self._rng.choices(self._kinds, self._weights)
            fault()

    async def _hunt(self, until: float) -> None:
        """Strike where it hurts: whenever a partition changes hands or members, right there."""
        records: dict[str, PartitionRecord] = {}
        position = 0
        while self._loop.time() < until:
            await self._store.wait_beyond(position)
            batches, position = self._store.changes_after(PARTITIONS, position)
            for batch in batches:
                for change in batch.changes:
                    if isinstance(change, Entry):
                        record = decode(change.value, PartitionRecord)
                        before = records.get(change.key)
                        records[change.key] = record
                        if before is not None and self._rng.random() < 0.3:
                            self._strike(before, record)

    def _strike(self, before: PartitionRecord, record: PartitionRecord) -> None:
        """Hurt those who were concerned by a change, at once or in a moment."""
        by_name = {node.name: node for node in self._nodes}
        leader = by_name[record.leader]
        joined = sorted(set(record.in_sync) - set(before.in_sync) - {record.leader})
        if record.eligible and record.in_sync == (leader.name,) and self._rng.random() < 0.5:
            self._rng.choice((self._lose_disk_of, self._damage_disk_of))(leader)
            return
        others = [by_name[name] for name in record.replicas if name != record.leader] or [leader]
        other = by_name[joined[0]] if joined else self._rng.choice(others)
        if joined and self._rng.random() < 0.5:
            # The leader does not learn that the other has joined, and goes on without it.
            self._part(leader.name, STORE)
            self._part(leader.name, other.name)
            self._after(self._rng.uniform(0.1, 1.0), lambda: self._crash_one(leader))
            return
        strikes: list[Callable[[], object]] = [
            lambda: self._crash_one(leader),
            lambda: self._crash_one(other),
            lambda: self._part(leader.name, STORE),
            lambda: self._part(leader.name, other.name),
            self._refuse,
            lambda: self._pause_one(leader),
            lambda: self._pause_one(other),
            lambda: self._pause_one(self._controller()),
        ]
        for strike in self._rng.sample(strikes, self._rng.randint(1, 3)):
            self._after(self._rng.choice((0.0, 0.002, 0.02, 0.5, 1.5)) * self._rng.random(), strike)

    def _controller(self) -> SimulatedNode:
        for node in self._nodes:
            state = node.cluster.view.state if node.cluster is not None else None
            if state is not None and state.controller and state.controller.node == node.name:
                return node
        return self._any()

    def heal(self) -> None:
        """End everything, and start whatever is down."""
        self._record("heal")
        self._network.heal()
        self._end_outage()
        for node in self._nodes:
            self._drain_no_more(node)
            node.disk.heal()
            node.disk_delay_s = (0.0001, 0.002)
            self._loop.resume(node.process)
            if node.process.is_dead:
                node.start()
            self._start_again(node, STOP_SECONDS_MAX + 1)  # one that is being stopped ends later

    def _record(self, what: str) -> None:
        self.story.append((self._loop.time(), what))

    def _after(self, seconds: float, work: Callable[[], object]) -> None:
        self._loop.call_later(seconds, work)

    def _any(self) -> SimulatedNode:
        return self._rng.choice(self._nodes)

    def _start_again(self, node: SimulatedNode, seconds: float) -> None:
        def start() -> None:
            if node.process.is_dead:
                self._record(f"{node.name} starts")
                node.start()

        self._after(seconds, start)

    # ------------------------------------------------------------------ processes

    def _crash(self) -> None:
        self._crash_one(self._any())

    def _full_crash(self) -> None:
        for node in self._nodes:
            self._crash_one(node)

    def _crash_one(self, node: SimulatedNode) -> None:
        self._record(f"{node.name} loses power")
        node.crash()
        self._start_again(node, self._rng.choice((0.1, 1.0, 5.0)) * self._rng.random())

    def _kill(self) -> None:
        node = self._any()
        self._record(f"{node.name} is killed")
        node.kill()
        self._start_again(node, self._rng.choice((0.05, 1.0, 5.0)) * self._rng.random())

    def _stop(self) -> None:
        node = self._any()
        if node.process.is_dead:
            return
        self._record(f"{node.name} is stopped")
        node.stop()
        for seconds in (0.5, 2.0, 12.0):  # it may take its time
            self._start_again(node, seconds * self._rng.uniform(0.5, 1))

    def _crash_mid_write(self) -> None:
        node = self._any()
        if node.process.is_dead:
            return
        self._record(f"{node.name} will lose power in the middle of a write")
        node.disk.crash_at(node.disk.operation_count + self._rng.randint(1, 12))
        self._start_again(node, self._rng.uniform(1, 5))

    def _pause(self) -> None:
        self._pause_one(self._any())

    def _pause_one(self, node: SimulatedNode) -> None:
        process = node.process
        seconds = self._rng.choice((0.3, 2.0, 4.0, 8.0)) * self._rng.uniform(0.5, 1)
        self._record(f"{node.name} stands still for {seconds:.1f} s")
        self._loop.pause(process)
        self._after(seconds, lambda: self._loop.resume(process))

    # ------------------------------------------------------------------ network and store

    def _cut_off(self) -> None:
        """One node is cut off from some or all others, perhaps also from the store."""
        node = self._any()
        others: list[str] = [other.name for other in self._nodes if other is not node]
        others += self._beyond
        chosen = self._rng.sample(others, self._rng.randint(1, len(others)))
        if self._rng.random() < 0.4:
            chosen.append(STORE)
        seconds = self._cut_seconds()
        for other in chosen:
            self._part(node.name, other, seconds)

    def _cut_one_way(self) -> None:
        names = [*(node.name for node in self._nodes), *self._beyond]
        source, target = self._rng.sample(names, 2)
        self._cut(source, target, self._cut_seconds())

    def _refuse(self) -> None:
        """A node lives and works, but nobody can connect to it."""
        node, seconds = self._any(), self._cut_seconds()
        self._record(f"{node.name} refuses connections for {seconds:.1f} s")
        self._network.refuse(node.name)
        self._after(seconds, lambda: self._network.accept(node.name))

    def _cut_store(self) -> None:
        node, seconds = self._any(), self._cut_seconds()
        self._cut(STORE, node.name, seconds)
        if self._rng.random() < 0.5:
            self._cut(node.name, STORE, seconds)

    def _part(self, one: str, other: str, seconds: float | None = None) -> None:
        seconds = self._cut_seconds() if seconds is None else seconds
        self._cut(one, other, seconds)
        self._cut(other, one, seconds)

    def _cut(self, source: str, target: str, seconds: float) -> None:
        self._record(f"nothing gets from {source} to {target} for {seconds:.1f} s")
        self._network.cut(source, target)
        self._after(seconds, lambda: self._network.mend(source, target))

    def _cut_seconds(self) -> float:
        return self._rng.choice((0.5, 3.0, 12.0)) * self._rng.random()

    def _bad_network(self) -> None:
        self._record("the network is slow, loses and repeats")
        self._network.delay_s = (0.0005, self._rng.choice((0.02, 0.2, 0.6)))
        self._network.repeated_share = self._rng.choice((0.0, 0.1, 0.3))
        self._network.lost_share = self._rng.choice((0.0, 0.02, 0.1))
        self._after(self._cut_seconds(), self._network.calm)

    def _store_outage(self) -> None:
        self._record("the store is away")
        self._outage.is_on = True
        self._after(self._rng.uniform(0.3, 6.0), self._end_outage)

    def _slow_store(self) -> None:
        self._record("the store is slow")
        self._outage.delay_s_max = self._rng.choice((0.1, 0.5, 1.5))

        def heal() -> None:
            self._outage.delay_s_max = 0.0

        self._after(self._rng.uniform(0.5, 6.0), heal)

    def _end_outage(self) -> None:
        self._outage.delay_s_max = 0.0
        if self._outage.is_on:
            self._record("the store is back")
            self._outage.is_on = False
            self._store.renew_all()

    def _drain(self) -> None:
        """An operator wants a node empty, and changes his mind after a while."""
        node = self._any()
        self._record(f"{node.name} is to be drained")
        self._loop.create_task(self._store.commit([], [Put(DRAINING + node.name, b"")]))
        self._after(self._rng.uniform(2, 10), lambda: self._drain_no_more(node))

    def _drain_no_more(self, node: SimulatedNode) -> None:
        self._loop.create_task(self._store.commit([], [Delete(DRAINING + node.name)]))

    # ------------------------------------------------------------------ disks and clocks

    def _failing_sync(self) -> None:
        node = self._any()
        self._record(f"a sync fails on {node.name}")
        node.disk.fail("sync", errno.EIO, times=1, after=self._rng.randint(0, 3))
        if self._rng.random() < 0.4:
            self._part(node.name, STORE)

    def _slow_disk(self) -> None:
        node = self._any()
        self._record(f"{node.name}'s disk is slow")
        node.disk_delay_s = (0.001, self._rng.choice((0.05, 0.5, 2.0)))

        def heal() -> None:
            node.disk_delay_s = (0.0001, 0.002)

        self._after(self._rng.uniform(0.5, 5), heal)

    def _lose_disk(self) -> None:
        self._lose_disk_of(self._any())

    def _lose_disk_of(self, node: SimulatedNode) -> None:
        if not self._spares(node):
            return
        self._record(f"{node.name} loses its disk")
        node.lose_disk()
        self._start_again(node, self._rng.uniform(0.1, 4))

    def _damage(self) -> None:
        self._damage_disk_of(self._any())

    def _damage_disk_of(self, node: SimulatedNode) -> None:
        """Bits rot in what a node has stored, and it meets them when it starts again."""
        if not self._spares(node):
            return
        node.kill()
        paths = sorted(_files(node, FOLDER + "/partitions"))
        if paths:
            path = self._rng.choice(paths)
            # Rot in the very last entries cannot be told from a torn write by one node alone.
            rotten = node.disk.size(path) // 2
            if rotten > _ROT_BYTES_MIN:
                self._record(f"a bit of {path} on {node.name} rots")
                node.disk.flip_bit(path, self._rng.randrange(rotten), self._rng.randrange(8))
        self._start_again(node, self._rng.uniform(0.1, 3))

    def _spares(self, node: SimulatedNode) -> bool:
        """Whether this is the first disk, and every partition has everything on another one."""
        if self._lost_disks:
            return False
        for key, (entry, _) in self._store._entries.items():
            if key.startswith(PARTITIONS):
                record = decode(entry.value, PartitionRecord)
                if not {*record.in_sync, *record.eligible} - {node.name}:
                    return False
        self._lost_disks += 1
        return True

    def _set_clock(self) -> None:
        node = self._any()
        node.clock.jump(round(self._rng.uniform(-5, 5) * 1e6))
        self._record(f"{node.name}'s clock jumps")


def _files(node: SimulatedNode, folder: str) -> list[str]:
    if not node.disk.exists(folder):
        return []
    found = []
    for name in node.disk.list_folder(folder):
        path = f"{folder}/{name}"
        try:
            found += _files(node, path)
        except NotADirectoryError:
            if name.endswith(".log"):
                found.append(path)
    return found
