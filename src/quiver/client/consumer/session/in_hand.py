"""What a session has started and the program has not settled, and over which stream each lease came."""

from __future__ import annotations

from pyroaring import BitMap64

from quiver.client.consumer.session.leases import Leases
from quiver.client.consumer.session.node_stream import NodeStream
from quiver.model.clock import Clock


class InHand:
    """``leases`` are the messages that the program may have."""

    def __init__(self, clock: Clock) -> None:
        self.leases: Leases = {}
        self._clock = clock
        self._started: dict[bytes, float] = {}
        """When the last messages of each lease were started."""
        self._streams: dict[bytes, NodeStream] = {}

    def __bool__(self) -> bool:
        return bool(self.leases)

    def add(self, stream: NodeStream, leases: Leases, *, is_final: bool = False) -> None:
        """The program gets these. What is ``is_final`` needs no settlement."""
        for lease, offsets in leases.items():
            self._streams[lease] = stream
            if not is_final:
                self._started[lease] = self._clock.monotonic()
                self.leases.setdefault(lease, BitMap64()).update(offsets)

    def forget(self, leases: Leases) -> None:
        """The program does not have these any more."""
        for lease, offsets in leases.items():
            held = self.leases.get(lease)
            if held is not None:
                held -= offsets
                self.leases[lease] = held
                if not held:
                    del self.leases[lease], self._started[lease]

    def take_started_before(self, moment: float) -> Leases:
        """Forget the leases of which nothing was started since; which they were."""
        old = [lease for lease, started in self._started.items() if started < moment]
        for lease in old:
            del self._started[lease]
        return {lease: self.leases.pop(lease) for lease in old}

    def tidy(self) -> None:
        """Forget the streams of leases that hold nothing."""
        self._streams = {
            lease: stream for lease, stream in self._streams.items() if lease in self.leases
        }

    def is_known(self, lease: bytes) -> bool:
        """Whether messages of this lease were started in this session."""
        return lease in self._streams

    def stream_of(self, lease: bytes) -> NodeStream | None:
        """The stream over which the lease came, if it is open."""
        stream = self._streams.get(lease)
        return stream if stream is not None and stream.is_open else None

    def has_some_of(self, stream: NodeStream) -> bool:
        """Whether the program has messages that came over this stream."""
        return any(self._streams.get(lease) is stream for lease in self.leases)
