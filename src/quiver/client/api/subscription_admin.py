"""The client's methods to administer subscriptions: seek, peek, purge, redrive, message status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from quiver.client.consumer.peeked import (
    MessageStatus,
    PeekedMessage,
    PendingMessages,
    peeked_in,
    pending_in,
    status_in,
)
from quiver.client.reader.range import Position, mark_of
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import InvalidRequest
from quiver.model.clock import Clock
from quiver.protocol import (
    Cancel,
    Counted,
    FindMessage,
    MessageFound,
    Peek,
    Peeked,
    Place,
    Purge,
    ReadState,
    Redrive,
    Redriven,
    Seek,
    StateRead,
)

_STEP = 1000
STATES = ("ready", "delayed", "leased")


class SubscriptionAdminApi:
    """The methods of an ``AsyncClient`` to administer subscriptions."""

    _clock: Clock
    _cluster: Cluster
    _read_cluster: Cluster

    async def seek(self, subscription: str, to: Position | Mapping[tuple[str, int], int]) -> None:
        """Move a subscription to another position.

        ``to`` is ``"earliest"``, ``"latest"``, a time (``"-1h"``, a datetime), an offset, or offsets
        by ``(topic, partition)``; other partitions stay where they are. Messages before the position
        are acknowledged, messages after it are delivered. Earlier receipts become invalid.
        """
        if isinstance(to, Mapping):
            places = [Place(topic, index, offset) for (topic, index), offset in to.items()]
            request = Seek(subscription=subscription, places=places)
        else:
            mark = mark_of(to, self._clock.time_us())
            request = Seek(
                subscription=subscription, at=mark.at, time_us=mark.time_us, offset=mark.offset
            )
        await self._cluster.call(request, repeatable=True)

    async def peek(
        self,
        subscription: str,
        max_messages: int = 10,
        *,
        states: Sequence[str] = STATES,
    ) -> list[PeekedMessage]:
        """Return the first pending messages of each partition without receiving them.

        ``states`` selects from ``"ready"``, ``"delayed"`` and ``"leased"``.
        """
        request = Peek(
            subscription=subscription,
            messages_max=max_messages,
            bytes_max=16 << 20,
            states=list(states),
        )
        _, (reply, body) = await self._read_cluster.call(request, repeatable=True)
        return peeked_in(expect(Peeked, reply), body)

    async def pending(self, subscription: str) -> list[PendingMessages]:
        """Return the offsets of all pending messages by partition, state and number of deliveries."""
        request = ReadState(subscription=subscription)
        _, (reply, body) = await self._read_cluster.call(request, repeatable=True)
        return pending_in(expect(StateRead, reply), body)

    async def purge(self, subscription: str, *, filter: str | None = None) -> int:
        """Discard pending messages, all or those that match the filter, and return their number."""
        request = Purge(subscription=subscription, filter=filter)
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        return expect(Counted, reply).count

    async def cancel(self, topic: str, ids: str | Iterable[str]) -> int:
        """Cancel delayed messages that are not due yet, and return how many were cancelled."""
        request = Cancel(topic=topic, ids=[ids] if isinstance(ids, str) else list(ids))
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        return expect(Counted, reply).count

    async def message_status(self, topic: str, message_id: str) -> MessageStatus:
        """Return a message by its id, and its state in each subscription of its topic."""
        request = FindMessage(topic=topic, message_id=message_id)
        _, (reply, body) = await self._read_cluster.call(request, repeatable=True)
        return status_in(expect(MessageFound, reply), body, topic)

    async def redrive(
        self,
        subscription: str,
        *,
        to: str | None = None,
        filter: str | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        max_messages: int | None = None,
        on_progress: Callable[[int], object] = lambda _: None,
    ) -> int:
        """Send the dead letters of a subscription back to it, and return their number.

        ``to`` sends them to another topic. ``filter`` selects messages. ``rate`` limits the messages
        per second. ``dry_run`` only counts them. ``on_progress`` is called with the number sent so far.
        """
        if rate is not None and rate <= 0:
            raise InvalidRequest(f"rate must be above 0, not {rate}")
        request = Redrive(subscription=subscription, to=to, filter=filter, dry_run=dry_run)
        if dry_run:
            return (await self._redrive(request)).count
        sent, began = 0, self._clock.monotonic()
        step = _STEP if rate is None else max(1, min(_STEP, int(rate)))
        while max_messages is None or sent < max_messages:
            request.messages_max = step if max_messages is None else min(step, max_messages - sent)
            count = (await self._redrive(request)).count
            if not count:
                break
            sent += count
            on_progress(sent)
            if rate is not None:
                await self._clock.sleep(max(0.0, began + sent / rate - self._clock.monotonic()))
        return sent

    async def _redrive(self, request: Redrive) -> Redriven:
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        return expect(Redriven, reply)
