"""The client for async programs.

It connects when it is first used, shares its connections between all calls, and belongs to the event
loop of its first use. ``Client`` has the same methods without ``await``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import weakref
from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self, Unpack
from weakref import WeakSet

import pyarrow as pa

from quiver.client.api.cluster_admin import ClusterAdminApi
from quiver.client.api.mirrors import MirrorsApi
from quiver.client.api.settings import (
    duration_s,
    producer_settings,
    setting_values,
    topic_settings,
)
from quiver.client.api.subscription_admin import SubscriptionAdminApi
from quiver.client.api.subscriptions import SubscriptionsApi
from quiver.client.api.transactions import TransactionsApi
from quiver.client.producer.delivery import Delivery, Published, outcomes, stored_of
from quiver.client.producer.many import offer_each
from quiver.client.producer.outgoing import MessageOptions
from quiver.client.producer.partition_queue import ProducerSession
from quiver.client.producer.producer import AsyncProducer, ProducerSettings
from quiver.client.producer.shared_producers import SharedProducers
from quiver.client.reader.range import Position
from quiver.client.reader.reader import AsyncReader, ReadRequest
from quiver.client.transaction.coordinator import Coordinator
from quiver.client.transaction.received_leases import ReceivedLeases
from quiver.client.transaction.transaction_producers import TransactionProducers
from quiver.client.transport.access import Tls, access_from_environment
from quiver.client.transport.addresses import DEFAULT_URL, addresses_in, is_secure
from quiver.client.transport.channel import Dialer
from quiver.client.transport.cluster import Cluster, expect
from quiver.client.transport.dialer import SocketDialer
from quiver.client.transport.known_leaders import KnownLeaders
from quiver.client.transport.pool import Pool
from quiver.errors import InvalidRequest, QuiverError, TopicNotFound
from quiver.model.clock import Clock, SystemClock
from quiver.model.topic import TopicSettings, topic_name
from quiver.model.units import Duration, Size
from quiver.protocol import (
    AlterTopic,
    AnyReply,
    AnyRequest,
    CreateTopic,
    DeleteTopic,
    DescribeNode,
    DescribeTopic,
    ListTopics,
    Node,
    Topic,
    TopicInfo,
    Topics,
)

_SHARED_LINGER_S = 0.001
"""A single publish waits for its confirmation, so batching must add little to that time."""


class AsyncClient(
    SubscriptionsApi, SubscriptionAdminApi, TransactionsApi, ClusterAdminApi, MirrorsApi
):
    """A client of Quiver. Use it in a ``with`` block (``async with``), or call ``close``.

    ``url`` names one or more nodes, as ``quiver://host:port,host2:port2``. ``quivers://`` connects
    with TLS, and ``tls`` names its files. ``timeout`` bounds every call. ``token`` authenticates the
    client; the default is the variable ``QUIVER_TOKEN``. ``zone`` is the client's zone, for reads from
    near replicas; the default is the variable ``QUIVER_ZONE``. ``dialer`` replaces the network, as an
    embedded broker does.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: Duration = "30s",
        token: str | None = None,
        tls: Tls | None = None,
        zone: str | None = None,
        dialer: Dialer | None = None,
        clock: Clock | None = None,
    ) -> None:
        addresses = addresses_in(url)
        self.url = url
        self.zone = os.environ.get("QUIVER_ZONE", "") if zone is None else zone
        self._timeout_s = duration_s("timeout", timeout, 0.001, 86_400)
        self._clock = clock or SystemClock()
        self._dialer = dialer or SocketDialer(
            access_from_environment(token, tls, is_secure=is_secure(url)), addresses
        )
        # Reading has connections of its own: long replies and long waits must not hold up publishes.
        self._cluster, self._read_cluster = (
            Cluster(
                Pool(self._dialer, addresses, clock=self._clock),
                clock=self._clock,
                timeout_s=self._timeout_s,
            )
            for _ in range(2)
        )
        self._settler = weakref.ref(self)  # what it made must not keep it from being freed
        self._name = f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._leaders = KnownLeaders()
        self._sessions = set()
        self._consumer_numbers = count(1)
        self._producers: set[AsyncProducer] = set()
        self._readers: WeakSet[AsyncReader] = WeakSet()
        self._shared = SharedProducers(
            lambda topic, acks: self.producer(
                topic, acks=acks, linger=_SHARED_LINGER_S, delivery_timeout=self._timeout_s
            )
        )
        self._transactions = TransactionProducers(
            Coordinator(self._cluster, self._clock),
            self._transaction_producer,
            ReceivedLeases(self._cluster, self._clock),
        )
        self._note_received = self._transactions.received
        self._closed = False

    @property
    def cluster(self) -> Cluster:
        """The connections to the nodes, for code that makes its own calls."""
        return self._cluster

    # ------------------------------------------------------------------ topics

    async def create_topic(
        self, /, name: str, *, partitions: int = 1, exist_ok: bool = False, **settings: Any
    ) -> TopicInfo:
        """Create a topic. ``settings`` are those of ``TopicSettings``, such as ``retention``.

        With ``exist_ok``, an existing topic with the same settings is not an error.
        """
        request = CreateTopic(
            name=topic_name(name), settings=topic_settings(partitions, settings), exist_ok=exist_ok
        )
        return expect(Topic, await self._call(request, repeatable=exist_ok)).topic

    async def alter_topic(self, /, name: str, **changes: Any) -> TopicInfo:
        """Change settings of a topic. ``retention`` may be a dict with some of its limits."""
        request = AlterTopic(name=name, changes=setting_values(TopicSettings, changes))
        return expect(Topic, await self._call(request, repeatable=True)).topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its messages."""
        await self._call(DeleteTopic(name=name), repeatable=False)
        self._cluster.forget(name)
        self._read_cluster.forget(name)

    async def describe_topic(self, name: str) -> TopicInfo:
        """Return a topic's settings and partitions."""
        return expect(Topic, await self._call(DescribeTopic(name=name), repeatable=True)).topic

    async def list_topics(self) -> list[TopicInfo]:
        """Return the topics that the caller may see, sorted by name."""
        return expect(Topics, await self._call(ListTopics(), repeatable=True)).topics

    async def describe_node(self) -> Node:
        """Return the version, uptime and counters of the node that answers."""
        return expect(Node, await self._call(DescribeNode(), repeatable=True))

    async def _call(self, request: AnyRequest, *, repeatable: bool) -> AnyReply:
        self._check_open()
        _, (reply, _) = await self._cluster.call(request, repeatable=repeatable)
        return reply

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | bytes | None = None,
        acks: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Published:
        """Publish a message and wait until it is stored. Concurrent publishes share a batch.

        Bytes are stored as they are, text as UTF-8, anything else as JSON. ``options`` are
        ``headers``, ``priority``, ``delay``, ``deliver_at``, ``ttl``, ``event_time``, ``dedup_id``,
        ``partition``.
        """
        self._check_open()
        with self._shared.producer(topic, acks) as producer:
            return await (await producer.send(payload, key=key, **options))

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Any] | pa.RecordBatch | pa.Table,
        *,
        acks: str | None = None,
    ) -> list[Published]:
        """Publish many messages, wait until all are stored, and return their positions in order.

        ``messages`` are payloads, ``OutgoingMessage`` values, dicts with a ``payload`` and other
        fields of ``OutgoingMessage``, or an Arrow batch or table with those columns. If some fail,
        the first error is raised when all are stored or failed.
        """
        if not isinstance(messages, pa.RecordBatch | pa.Table):
            return stored_of(await self.publish_each(topic, messages, acks=acks))
        self._check_open()
        with self._shared.producer(topic, acks) as producer:
            return await (await producer.send_arrow(messages))

    async def publish_each(
        self,
        topic: str,
        messages: Iterable[Any] | pa.RecordBatch | pa.Table,
        *,
        acks: str | None = None,
    ) -> list[Published | QuiverError]:
        """Like ``publish_many``, but the result has the error of each message that failed."""
        self._check_open()
        with self._shared.producer(topic, acks) as producer:
            if isinstance(messages, pa.RecordBatch | pa.Table):
                results = await (await producer.send_arrow(messages)).outcomes()
            else:
                sent = await offer_each(producer, messages)
                for promise in {one.promise: None for one in sent if isinstance(one, Delivery)}:
                    if not promise.is_done():
                        await promise.future()
                results = outcomes(sent)
            if results and isinstance(results[0], TopicNotFound):
                raise results[0]
            return results

    async def publish_table(
        self, topic: str, data: pa.RecordBatch | pa.Table, *, acks: str | None = None
    ) -> int:
        """Publish the rows of an Arrow batch or table, wait until all are stored, and return their number.

        Unlike ``publish_many`` it returns no positions, so it has no cost for each row.
        """
        self._check_open()
        with self._shared.producer(topic, acks) as producer:
            return await (await producer.send_arrow(data)).stored()

    def producer(
        self,
        topic: str,
        *,
        acks: str | None = None,
        name: str | None = None,
        compression: str | None = None,
        linger: Duration = "5ms",
        batch_bytes: Size = "1MiB",
        batch_count: int = 10_000,
        buffer_bytes: Size = "64MiB",
        delivery_timeout: Duration = "2m",
    ) -> AsyncProducer:
        """Return a producer for many messages: ``async with client.producer("orders") as p``.

        With a ``name`` and ``send(…, sequence=n)``, a second run of the program skips what is already
        stored, and a producer that opened the same name earlier is fenced.
        """
        self._check_open()
        settings = producer_settings(
            acks=acks,
            name=name,
            compression=compression,
            linger=linger,
            batch_bytes=batch_bytes,
            batch_count=batch_count,
            buffer_bytes=buffer_bytes,
            delivery_timeout=delivery_timeout,
            send_timeout_s=self._timeout_s,
        )
        producer = AsyncProducer(
            self._cluster, topic, settings, self._clock, self._producers.discard
        )
        # Held until closed: what was sent with it must not be lost with the last reference to it.
        self._producers.add(producer)
        return producer

    def _transaction_producer(self, topic: str, session: ProducerSession) -> AsyncProducer:
        settings = ProducerSettings(
            delivery_timeout_s=self._timeout_s, send_timeout_s=self._timeout_s
        )
        return AsyncProducer(self._cluster, topic, settings, self._clock, session=session)

    # ------------------------------------------------------------------ reading

    def read(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: Position = "earliest",
        end: Position | None = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        read_from: str = "leader",
        isolation: str = "committed",
    ) -> AsyncReader:
        """Read a topic as record batches, or as messages with ``.messages()``.

        ``start`` and ``end`` (exclusive) are an offset, "earliest", "latest", a duration such as
        "-1h", or a datetime. Without ``end`` the reader stops at the present end of the topic; with
        ``follow`` it waits for new messages. ``read_from="nearest"`` reads from in-sync replicas in
        this client's ``zone``, which may be slightly behind the leader. ``isolation="uncommitted"``
        also reads messages of transactions that are open or were aborted.
        """
        self._check_open()
        if read_from not in ("leader", "nearest"):
            raise InvalidRequest(f"read_from must be 'leader' or 'nearest', not {read_from[:80]!r}")
        request = ReadRequest(
            topic=topic,
            partition=partition,
            start=start,
            end=end,
            follow=follow,
            columns=columns,
            zone=self.zone if read_from == "nearest" else None,
            isolation=isolation,
        )
        reader = AsyncReader(self._read_cluster, request, self._clock)
        self._readers.add(reader)
        return reader

    # ------------------------------------------------------------------ endings

    async def close(self) -> None:
        """Flush producers, stop readers and consumers, and disconnect."""
        if self._closed:
            return
        self._closed = True
        await self._transactions.close()
        for session in list(self._sessions):
            with contextlib.suppress(QuiverError):
                await session.close()
        for reader in list(self._readers):
            await reader.close()
        try:
            results = await asyncio.gather(
                *(producer.close() for producer in list(self._producers)), return_exceptions=True
            )
        finally:
            for producer in list(self._producers):
                await producer.abort()
            await self._shared.close()
            await self._cluster.close()
            await self._read_cluster.close()
            await self._dialer.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the client is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
