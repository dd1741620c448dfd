"""The client's methods for subscriptions and queues: create, receive, acknowledge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, get_args

import msgspec
import pyarrow as pa

from quiver.client.api.settings import (
    duration_s,
    setting_values,
    subscription_settings,
    topic_settings,
)
from quiver.client.consumer.consumer import AsyncConsumer
from quiver.client.consumer.lease_times import lease_ms
from quiver.client.consumer.received import (
    ReceivedMessage,
    batch_in,
    messages_in,
    settlements,
)
from quiver.client.consumer.session.session import ConsumerSession
from quiver.client.consumer.session.terms import (
    AckMode,
    OnStale,
    OpenSession,
    Program,
    SessionTerms,
)
from quiver.client.consumer.settlement_kind import Kind
from quiver.client.reader.range import Position, mark_of
from quiver.client.transport.channel import Answer
from quiver.client.transport.cluster import Cluster, expect
from quiver.client.transport.known_leaders import KnownLeaders, Name
from quiver.errors import InvalidRequest, StaleReceipt
from quiver.model.clock import Clock
from quiver.model.receipt import place_of
from quiver.model.setting_names import own_names
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.model.units import Duration
from quiver.protocol import (
    Ack,
    AlterSubscription,
    CreateQueue,
    CreateSubscription,
    DeleteSubscription,
    DescribeSubscription,
    Extend,
    GroupMembership,
    Heartbeat,
    Leave,
    ListSubscriptions,
    Nack,
    Receive,
    Received,
    Reject,
    Return,
    Settled,
    Subscription,
    SubscriptionInfo,
    Subscriptions,
)

_WAIT_S = 20.0
_WAIT_S_MAX = 1e9
"""More is no time that somebody waits."""
_BYTES_MAX = 16 << 20
PREFETCH_MAX = 10_000


class SubscriptionsApi:
    """The methods of an ``AsyncClient`` for subscriptions and queues."""

    _clock: Clock
    _cluster: Cluster
    _read_cluster: Cluster
    _name: str
    """What this client is called where a consumer has no name of its own."""
    _leaders: KnownLeaders
    _sessions: set[OpenSession]
    _note_received: Callable[[str, Received], None]
    _consumer_numbers: Iterator[int]
    _settler: Callable[[], Any]
    """Gives who settles what is received: the client that the program uses."""

    # ------------------------------------------------------------------ subscriptions

    async def create_subscription(
        self,
        /,
        name: str,
        topics: Sequence[str],
        *,
        start: Position = "latest",
        exist_ok: bool = False,
        **settings: Any,
    ) -> SubscriptionInfo:
        """Create a subscription that reads these topics, or patterns such as ``"orders.*"``.

        ``start`` is ``"latest"``, ``"earliest"``, a time (``"-1h"``, a datetime) or an offset;
        ``settings`` are those of ``SubscriptionSettings``.
        """
        mark = mark_of(start, self._clock.time_us())
        request = CreateSubscription(
            name=name,
            settings=subscription_settings(list(topics), settings),
            start=mark.at or "latest",
            start_time_us=mark.time_us,
            start_offset=mark.offset,
            exist_ok=exist_ok,
        )
        _, (reply, _) = await self._cluster.call(request, repeatable=exist_ok)
        return expect(Subscription, reply).subscription

    async def create_queue(
        self, /, name: str, *, exist_ok: bool = False, **settings: Any
    ) -> SubscriptionInfo:
        """Create a queue: a topic with a subscription of the same name.

        ``settings`` are those of ``TopicSettings`` and of ``SubscriptionSettings``.
        """
        settings = own_names((TopicSettings, SubscriptionSettings), settings)
        of_topic = {k: v for k, v in settings.items() if k in TopicSettings.__struct_fields__}
        rest = {k: v for k, v in settings.items() if k not in of_topic}
        checked = msgspec.to_builtins(subscription_settings([name], rest))
        request = CreateQueue(
            name=name,
            topic=topic_settings(of_topic.pop("partitions", 1), of_topic),
            subscription={setting: checked[setting] for setting in rest},
            exist_ok=exist_ok,
        )
        _, (reply, _) = await self._cluster.call(request, repeatable=exist_ok)
        return expect(Subscription, reply).subscription

    async def alter_subscription(self, /, name: str, **changes: Any) -> SubscriptionInfo:
        """Change settings of a subscription or queue."""
        request = AlterSubscription(
            name=name, changes=setting_values(SubscriptionSettings, changes)
        )
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        return expect(Subscription, reply).subscription

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription. For a queue, its topic and messages are deleted too."""
        await self._cluster.call(DeleteSubscription(name=name), repeatable=False)

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        """Return a subscription's settings and its messages by state."""
        _, (reply, _) = await self._cluster.call(DescribeSubscription(name=name), repeatable=True)
        return expect(Subscription, reply).subscription

    async def list_subscriptions(self) -> list[SubscriptionInfo]:
        """Return the subscriptions that the caller may see, sorted by name, without message counts."""
        _, (reply, _) = await self._cluster.call(ListSubscriptions(), repeatable=True)
        return expect(Subscriptions, reply).subscriptions

    # ------------------------------------------------------------------ receiving

    async def receive(
        self,
        subscription: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        max_bytes: int = _BYTES_MAX,
    ) -> list[ReceivedMessage]:
        """Receive up to ``max_messages`` (at most 10,000). ``wait`` is at most 20 s.

        No more is taken once there are ``max_bytes``.
        """
        reply, body = await self._receive(
            subscription, max_messages, wait, visibility, consumer, max_bytes
        )
        return messages_in(reply, body, subscription, self._settler())

    async def receive_batch(
        self,
        subscription: str,
        max_messages: int = 10_000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        max_bytes: int = _BYTES_MAX,
    ) -> pa.RecordBatch:
        """Like ``receive``, as one Arrow batch with a ``receipt`` column, which ``ack`` accepts."""
        reply, body = await self._receive(
            subscription, max_messages, wait, visibility, consumer, max_bytes
        )
        return batch_in(reply, body)

    async def consume(
        self,
        subscription: str,
        *,
        prefetch: int | None = None,
        visibility: Duration | None = None,
        consumer: str = "",
        on_stale: OnStale | None = None,
        ack: AckMode = "manual",
    ) -> AsyncIterator[ReceivedMessage]:
        """Receive messages one by one, forever: ``async for message in client.consume("emails")``.

        ``prefetch`` is how many messages may wait for the program; without it, as its pace allows.
        ``visibility`` is how long the program may be silent before its messages go to others.
        ``on_stale`` is called with the receipts of messages that were settled too late.
        With ``ack="auto"`` a message that the program has not settled is acknowledged when it asks for
        the next one, and nacked if the loop is left before that.
        """
        async with self.consumer(
            subscription,
            prefetch=prefetch,
            visibility=visibility,
            consumer=consumer,
            on_stale=on_stale,
            ack=ack,
        ) as messages:
            async for message in messages:
                yield message

    def consumer(
        self,
        subscription: str,
        *,
        prefetch: int | None = None,
        visibility: Duration | None = None,
        consumer: str = "",
        on_stale: OnStale | None = None,
        ack: AckMode = "manual",
    ) -> AsyncConsumer:
        """Like ``consume``, as a block: ``async with client.consumer("emails") as messages``.

        When an exception leaves the block, the message in hand is nacked with its text.
        """
        terms = self._session_terms(subscription, prefetch, visibility, consumer, on_stale, ack)
        return AsyncConsumer(
            lambda settler: self._session(terms, settler, settler), self._sessions.discard
        )

    def _session_terms(
        self,
        subscription: str,
        prefetch: int | None,
        visibility: Duration | None,
        consumer: str,
        on_stale: OnStale | None,
        ack: AckMode,
    ) -> SessionTerms:
        if ack not in get_args(AckMode):
            raise InvalidRequest(f"ack must be 'manual' or 'auto', not {ack!r}")
        if prefetch is not None and not 1 <= prefetch <= PREFETCH_MAX:
            raise InvalidRequest(f"prefetch must be 1 to {PREFETCH_MAX:,}, not {prefetch:,}")
        return SessionTerms(
            subscription=subscription,
            consumer=consumer or f"{self._name}-{next(self._consumer_numbers)}",
            prefetch=prefetch,
            visibility_ms=None if visibility is None else lease_ms("visibility", visibility),
            on_stale=on_stale,
            ack=ack,
        )

    def _session(self, terms: SessionTerms, program: Program, settler: Any) -> ConsumerSession:
        session = ConsumerSession(self._read_cluster, self._clock, terms, program, settler)
        self._sessions.add(session)
        return session

    async def heartbeat(self, subscription: str, consumer: str = "") -> list[str]:
        """Keep a member of a group alive, and return its partitions as ``topic/partition``."""
        request = Heartbeat(subscription=subscription, consumer=consumer or self._name)
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        return expect(GroupMembership, reply).partitions

    async def leave(self, subscription: str, consumer: str = "") -> None:
        """Leave as a consumer. Its messages are ready again, and its partitions go to others."""
        request = Leave(subscription=subscription, consumer=consumer or self._name)
        await self._cluster.call(request, repeatable=True)

    async def _receive(
        self,
        subscription: str,
        max_messages: int,
        wait: Duration,
        visibility: Duration | None,
        consumer: str,
        max_bytes: int,
    ) -> tuple[Received, memoryview]:
        wait_s = min(duration_s("wait", wait, 0, _WAIT_S_MAX), _WAIT_S)
        request = Receive(
            subscription=subscription,
            messages_max=max_messages,
            bytes_max=max_bytes,
            wait_ms=round(wait_s * 1000),
            visibility_ms=None if visibility is None else lease_ms("visibility", visibility),
            consumer=consumer or self._name,
        )
        cluster = self._read_cluster
        asked, (reply, body) = await self._call_leader(
            cluster, request, subscription, cluster.timeout_s + wait_s
        )
        received = expect(Received, reply)
        if received.portions:
            leader = received.leader or asked
            self._leaders.learn(subscription, leader)
            for portion in received.portions:
                self._leaders.learn(place_of(portion.lease), leader)
            self._note_received(subscription, received)
        return received, body

    async def _call_leader(
        self,
        cluster: Cluster,
        request: Receive | Ack | Nack | Reject | Extend | Return,
        name: Name,
        timeout_s: float | None = None,
    ) -> tuple[str, Answer]:
        """Ask the node that had messages last. In a cluster this saves others from passing it on."""
        near, asked = self._leaders.get(name), None
        try:
            asked, answer = await cluster.call(
                request, repeatable=True, near=near, timeout_s=timeout_s
            )
            return asked, answer
        finally:
            if asked != near:
                self._leaders.forget(name, near)

    # ------------------------------------------------------------------ settling

    async def ack(self, subscription: str, messages: Any) -> None:
        """Acknowledge received messages, receipts or a received batch. It is durable on return."""
        await self._settle(Ack(subscription=subscription, settlements=settlements(messages)))

    async def nack(
        self,
        subscription: str,
        messages: Any,
        *,
        delay: Duration | None = None,
        error: str | None = None,
    ) -> None:
        """Report messages as failed, to be delivered again after ``delay`` or the back-off."""
        await self._settle(
            Nack(
                subscription=subscription,
                settlements=settlements(messages),
                delay_ms=None if delay is None else lease_ms("delay", delay),
                error=error,
            )
        )

    async def reject(self, subscription: str, messages: Any, *, error: str | None = None) -> None:
        """Make messages dead letters now: they can never succeed, however often they are tried."""
        await self._settle(
            Reject(subscription=subscription, settlements=settlements(messages), error=error)
        )

    async def give_back(self, subscription: str, messages: Any) -> None:
        """Return messages that were not processed. They are ready again, and no delivery is counted."""
        await self._settle(Return(subscription=subscription, settlements=settlements(messages)))

    async def extend(self, subscription: str, messages: Any, visibility: Duration) -> None:
        """Extend the leases of messages to ``visibility`` from now."""
        await self._settle(
            Extend(
                subscription=subscription,
                settlements=settlements(messages),
                visibility_ms=lease_ms("visibility", visibility),
            )
        )

    async def _settle_received(
        self, message: ReceivedMessage, kind: Kind, wait: bool | None
    ) -> None:
        """Settle a message that was received, and wait until that is stored."""
        request = kind.request(message.subscription, settlements([message]))
        await self._settle(request)  # type: ignore[arg-type]

    async def _settle(self, request: Ack | Nack | Reject | Extend | Return) -> None:
        if not request.settlements:
            return
        if not isinstance(request, Extend):
            for session in self._sessions:
                session.settled(request.settlements, is_nack=isinstance(request, Nack))
        place = place_of(request.settlements[0].lease)
        _, (reply, _) = await self._call_leader(self._cluster, request, place)
        stale = expect(Settled, reply).stale
        if stale:
            raise StaleReceipt(
                "some leases had ended: other consumers may have these messages; the rest of this call "
                "is settled",
                stale=[[one.lease, one.offsets] for one in stale],
            )
