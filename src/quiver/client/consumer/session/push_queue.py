"""What was pushed to a session and waits for the program, in the order in which it came."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from quiver.client.consumer.session.leases import Leases, union
from quiver.client.consumer.session.node_stream import NodeStream
from quiver.client.consumer.session.pushed import Pushed


class PushQueue(deque[Pushed]):
    """Pushes, the next one first."""

    def take_all(self) -> dict[NodeStream, Leases]:
        """What the program will not get, by stream."""
        parts: dict[NodeStream, list[Leases]] = {}
        while self:
            pushed = self.popleft()
            parts.setdefault(pushed.stream, []).append(pushed.leases())
        return {stream: union(leases) for stream, leases in parts.items()}

    def remove_leases(self, leases: Container[bytes]) -> dict[NodeStream, Leases]:
        """What is of these leases, by stream: the program will not get it."""
        parts: dict[NodeStream, list[Leases]] = {}
        for _ in range(len(self)):
            pushed = self.popleft()
            found = {key: offsets for key, offsets in pushed.leases().items() if key in leases}
            if found:
                parts.setdefault(pushed.stream, []).append(found)
                pushed = pushed.without(found)
            if len(pushed):
                self.append(pushed)
        return {stream: union(found) for stream, found in parts.items()}

    def remove_all_of(self, stream: NodeStream) -> Leases:
        """What came over this stream: the program will not get it."""
        removed = [pushed for pushed in self if pushed.stream is stream]
        kept = [pushed for pushed in self if pushed.stream is not stream]
        self.clear()
        self.extend(kept)
        return union(pushed.leases() for pushed in removed)
