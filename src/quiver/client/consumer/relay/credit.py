"""The credit of a relay: how many more messages may be taken, shared among the nodes that push them.

No more is reserved than the credit allows. What waits beyond it is ready again at once.
"""

from __future__ import annotations

import asyncio

from quiver.client.consumer.session.leases import settlements_of
from quiver.client.consumer.session.node_stream import NodeStream
from quiver.client.consumer.session.push_queue import PushQueue
from quiver.client.consumer.session.streams import NodeStreams

WINDOW_MAX = 10_000


class Credit:
    """``messages`` may be taken; none while it ``is_resting``."""

    def __init__(self, streams: NodeStreams, pushed: PushQueue) -> None:
        self.messages = 0
        self.is_resting = False
        self._streams = streams
        self._pushed = pushed
        self._served: NodeStream | None = None
        """The stream whose messages were taken last."""

    def set(self, messages: int) -> None:
        """So many more messages may be taken. What waits beyond that is ready again at once."""
        self.messages = messages
        self.is_resting = False
        self.trim()
        self._offer()
        if messages and self._pushed:
            self._streams.changed.wake()

    def rest(self) -> None:
        """Return what waits, and get nothing until ``set``: nobody takes it now."""
        self.is_resting = True
        self.trim()
        self._offer()

    # ------------------------------------------------------------------ as messages are taken

    def use(self, messages: int, last: NodeStream) -> None:
        """So many are taken, the last of them from this stream."""
        self.messages -= messages
        self._served = last

    def new_window(self, stream: NodeStream) -> int | None:
        """What to tell the node of a stream whose messages are taken, if it is another window."""
        window = 0 if self._takes_turns and stream is self._served else self._share
        return None if window == stream.window else window

    def offer_rest(self) -> None:
        """The nodes whose messages were taken have been told their windows: tell the others."""
        self._streams.window = self._share
        if len(self._streams) > 1:
            self._offer()
        self.trim()

    def trim(self) -> None:
        """Return what waits beyond the credit. Who pushed it pushes nothing until the next offer."""
        allowed = 0 if self.is_resting or self._streams.is_closed else self.messages
        excess = sum(map(len, self._pushed)) - allowed
        while excess > 0:
            pushed = self._pushed[-1]
            count = min(excess, len(pushed))
            excess -= count
            released = settlements_of(pushed.give_back(count))
            if not pushed:
                self._pushed.pop()
            pushed.stream.tell(released=released, window=0)

    # ------------------------------------------------------------------ shares

    @property
    def _share(self) -> int:
        """How many messages each node may push."""
        if self.is_resting or not self.messages:
            return 0
        return min(WINDOW_MAX, max(1, self.messages // max(1, len(self._streams))))

    @property
    def _takes_turns(self) -> bool:
        """Whether the credit is too small for all nodes at the same time."""
        return self._share > 0 and self.messages < len(self._streams)

    def _offer(self) -> None:
        """Tell the nodes how many messages they may push.

        If that is not even one each, the node whose message was taken last comes last: it may be
        this very node, which would always be the first.
        """
        share = self._streams.window = self._share
        last = self._served if self._takes_turns else None
        told = [
            stream
            for stream in self._streams
            if stream is not last and _is_other(stream.window, share, len(self._streams))
        ]
        if last is None or not told:
            for stream in told:
                stream.tell(window=share)
            if last is not None:
                self.offer_to(last)
            return
        answers = [stream.start((), share) for stream in told]
        others = asyncio.gather(*answers, return_exceptions=True)
        others.add_done_callback(lambda _: self.offer_to(last))

    def offer_to(self, stream: NodeStream) -> None:
        """Tell one node its share, if it does not know it."""
        if stream.is_open and not self._streams.is_closed and stream.window != self._share:
            stream.tell(window=self._share)


def _is_other(told: int, share: int, nodes: int) -> bool:
    """Whether a node has to be told its share. Of several nodes, one may have about as much."""
    if nodes == 1 or not share or not told:
        return told != share
    return not share <= 2 * told <= 4 * share
