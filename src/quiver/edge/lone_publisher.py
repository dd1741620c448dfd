"""Stores a message that comes alone, without a producer.

A producer gathers messages into batches, numbers the batches so that they can be sent again, and finds their
leader. For a lone message on a node without peers there is nothing to gather and no leader to find. Whatever
is out of the ordinary before it is stored takes a producer, which retries or says what is wrong. The batch
has no number, so a write that fails is told at once: to send it again could store it twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Unpack

from quiver import protocol
from quiver.broker.partition.producers.in_flight import unavailable
from quiver.client.producer.delivery import Published
from quiver.client.producer.outgoing import (
    MessageOptions,
    checked_columns,
    checked_key,
    checked_payload,
)
from quiver.client.transport.channel import CALL_TIMEOUT_S
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import Principal
from quiver.edge.calls.table import CALLS
from quiver.edge.in_process import InProcessDialer, InsideClient
from quiver.edge.messages.publish_order import publish_one
from quiver.edge.services import NodeServices
from quiver.errors import LogClosed, LogFailed, QuiverError, RequestTimeout
from quiver.model.builder import BatchBuilder
from quiver.model.key_hash import KeyRouter
from quiver.model.topic import Acks
from quiver.tracing import tracer

_CALL = CALLS[protocol.Publish]
_TAG = protocol.Publish.__struct_config__.tag


class LonePublisher:
    """Publishes for one principal."""

    def __init__(self, services: NodeServices, principal: Principal) -> None:
        self._services = services
        self._principal = principal
        self._caller = Caller(services.authority, services.clock, principal)
        self._chance = random.Random()
        self._is_able = (
            services.peers is None
            and services.authority.usage(principal)
            is None  # who is over a rate waits in a producer
            and tracer() is None
        )

    async def publish(
        self, topic: str, payload: Any, key: str | bytes | None, options: MessageOptions
    ) -> Published | None:
        """Where the message is stored; ``None`` if nothing is stored and it takes a producer."""
        if not self._is_able or options.keys() & {"partition", "sequence"}:
            return None
        try:
            request, body = self._prepared(topic, payload, key, options)
        except _TakesProducer:
            return None
        self._caller.admit(request, _CALL, len(body))
        self._services.metrics.requests_of(_TAG).inc()
        one = publish_one(self._services, request, body)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await one.reply
        except TimeoutError:
            raise RequestTimeout from None
        except QuiverError as error:
            if not one.is_under_way:
                return None
            told = unavailable(error) if isinstance(error, LogFailed | LogClosed) else error
            self._services.metrics.errors.labels(told.code).inc()
            raise told from error
        assert isinstance(reply, protocol.Published), "the topic has acknowledgements"
        return _published(topic, request.partition, reply)

    def _prepared(
        self, topic: str, payload: Any, key: str | bytes | None, options: MessageOptions
    ) -> tuple[protocol.Publish, memoryview]:
        if not self._principal.is_trusted and not self._principal.has_passed(
            (protocol.Publish, topic)
        ):
            raise _TakesProducer
        try:
            record = self._services.broker.publisher.topic(topic)
            data, key = checked_payload(payload), checked_key(key)
            columns, size = checked_columns(options, self._services.clock.time_us())
        except QuiverError:
            raise _TakesProducer from None
        settings = record.settings
        size += len(data) + (0 if key is None else len(key))
        if settings.acks is Acks.NONE or size > settings.message_bytes_max:
            raise _TakesProducer
        routed_by = key if key is not None else columns.get("dedup_id", "").encode() or None
        request = protocol.Publish(
            topic=topic,
            partition=self._partition(record.first_hashes, routed_by),
            timeout_ms=round(CALL_TIMEOUT_S * 1000),
            layout=0 if routed_by is None else record.layout,
        )
        builder = BatchBuilder()
        builder.add(data, key, **columns)
        batch = builder.build(settings.compression)
        return request, memoryview(b"".join((batch.head, batch.body)))

    def _partition(self, first_hashes: list[int], routed_by: bytes | None) -> int:
        if len(first_hashes) == 1:
            return 0
        if routed_by is None:
            return self._chance.randrange(len(first_hashes))
        return KeyRouter.of(first_hashes).partition(routed_by)


class _TakesProducer(Exception):
    """The message is not one for this short way."""


class NodeClient(InsideClient):
    """A principal's client inside the node, which stores messages that come alone itself."""

    def __init__(
        self,
        services: NodeServices,
        principal: Principal,
        dialer: InProcessDialer,
        is_alone: Callable[[], bool],
    ) -> None:
        super().__init__(dialer, services.clock)
        self._lone = LonePublisher(services, principal)
        self._is_alone = is_alone

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | bytes | None = None,
        acks: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Published:
        """Publish a message and wait until it is stored."""
        self._check_open()
        if acks is None and self._is_alone():
            stored = await self._lone.publish(topic, payload, key, options)
            if stored is not None:
                return stored
        return await super().publish(topic, payload, key=key, acks=acks, **options)


def _published(topic: str, partition: int, reply: protocol.Published) -> Published:
    repeat = reply.repeats.get(0)
    offset, time_us = reply.base_offset, reply.append_time
    if repeat is not None:
        offset, time_us = repeat.offset, repeat.append_time
    return Published(
        topic,
        partition,
        offset if offset >= 0 else None,  # below zero: before a split, in another partition
        time_us,
        reply.topic_number,
        reply.duplicate or repeat is not None,
    )
