"""The user's half of a producer: checks a message, finds its partition, and adds it to a batch.

The blocking client calls ``offer`` in the user's thread, the async client on the event loop. It never
waits: if there is no space it raises ``BufferFull``, and the caller decides what to do.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from quiver.client.producer.accumulator import Rerouted
from quiver.client.producer.buffer_budget import BufferFull
from quiver.client.producer.delivery import BatchPromise, Delivery, Placement
from quiver.client.producer.outgoing import (
    MessageOptions,
    checked_columns,
    checked_key,
    checked_payload,
    columns_size,
    is_partition,
)
from quiver.client.producer.sender import Sender
from quiver.client.transport.cluster import TopicLayout
from quiver.errors import InvalidRequest, MessageTooLarge, PartitionNotFound
from quiver.model.builder import MESSAGE_OVERHEAD
from quiver.model.clock import Clock
from quiver.tracing import SendSpans, end, tracer


class MessageValidator:
    def __init__(self, sender: Sender, clock: Clock) -> None:
        self._sender = sender
        self._clock = clock
        self._add = sender.accumulator.add
        self._last_sequence = -1
        self._sequence_turn = threading.Lock()
        maker = tracer()
        if maker is not None:
            self._spans = SendSpans(maker, sender.topic)
            self.offer = self._offer_traced  # type: ignore[method-assign]

    def _offer_traced(
        self, payload: Any, key: str | bytes | None, options: MessageOptions
    ) -> Delivery:
        """Like ``offer``, in a span that lasts until the message is stored."""
        headers = dict(options.get("headers") or {})
        span = self._spans.begin(headers)
        try:
            delivery = MessageValidator.offer(self, payload, key, {**options, "headers": headers})
        except BufferFull:
            raise  # it is offered again, in another span; this one is not ended and not told
        except BaseException as error:
            end(span, error)
            raise
        delivery.add_done_callback(lambda done: end(span, done.exception()))
        return delivery

    def offer(self, payload: Any, key: str | bytes | None, options: MessageOptions) -> Delivery:
        """Take a message, or raise what is wrong with it."""
        if type(payload) is not bytes:
            payload = checked_payload(payload)
        if key is None and not options:
            size = len(payload)
            if size > self._sender.message_bytes_max:
                raise self._too_large(size)
            return self._add(payload, size + MESSAGE_OVERHEAD)
        return self._offer_with(payload, checked_key(key), options)

    def offer_plain(self, payloads: Sequence[bytes]) -> Sequence[Delivery] | None:
        """Take messages that are only payloads, all at once; ``None`` if each has to be offered."""
        sizes = list(map(len, payloads))
        is_traced = "offer" in self.__dict__
        if is_traced or not sizes or max(sizes) > self._sender.message_bytes_max:
            return None
        return self._sender.accumulator.add_plain(
            payloads, sum(sizes) + MESSAGE_OVERHEAD * len(sizes)
        )

    def _offer_with(self, payload: bytes, key: bytes | None, options: MessageOptions) -> Delivery:
        while True:
            try:
                return self._offer_routed(payload, key, options, self._sender.routing)
            except Rerouted:
                continue  # by the layout that has taken the place of the one above

    def _offer_routed(
        self,
        payload: bytes,
        key: bytes | None,
        options: MessageOptions,
        routing: TopicLayout,
    ) -> Delivery:
        partition, routed_by = options.get("partition"), None
        if partition is not None:
            self.check_partition(partition)
        elif key is not None:
            partition, routed_by = routing.router.partition(key), routing
        elif isinstance(dedup_id := options.get("dedup_id"), str):
            # Repeats have to meet where the original is.
            partition = routing.router.partition(dedup_id.encode(errors="replace"))
            routed_by = routing
        message_size = len(payload) + (0 if key is None else len(key))
        columns: dict[str, Any] | None = None
        size = message_size + MESSAGE_OVERHEAD
        if options:
            columns, header_size = checked_columns(options, self._clock.time_us())
            message_size += header_size
            size += header_size + columns_size(columns)
            columns = columns or None
        if message_size > self._sender.message_bytes_max:
            raise self._too_large(message_size)
        if columns and "sequence" in columns:
            if partition is None:
                number: int = columns["sequence"]
                partition, routed_by = (
                    routing.router.partition(number.to_bytes(8, "little")),
                    routing,
                )
            return self._offer_numbered(payload, size, partition, key, columns, routed_by)
        return self._add(payload, size, partition, key, columns, routed_by)

    def _offer_numbered(
        self,
        payload: bytes,
        size: int,
        partition: int,
        key: bytes | None,
        columns: dict[str, Any],
        routing: TopicLayout | None,
    ) -> Delivery:
        """A message that carries the user's number: a rerun finds those that are stored already."""
        if self._sender.name is None:
            raise InvalidRequest("a sequence needs a named producer: producer(…, name='…')")
        sequence: int = columns["sequence"]
        with self._sequence_turn:
            if sequence <= self._last_sequence:
                raise InvalidRequest(
                    f"sequences must increase: {sequence} came after {self._last_sequence}"
                )
            if sequence <= self._sender.stored_before.get(partition, -1):
                delivery = self.already_stored(partition)
            else:
                delivery = self._add(payload, size, partition, key, columns, routing)
            self._last_sequence = sequence
            return delivery

    def already_stored(self, partition: int) -> Delivery:
        """The delivery of a message that an earlier run has stored."""
        promise = BatchPromise(self._sender.topic, partition)
        number = self._sender.layout.info.number
        promise.keep(Placement(topic_number=number, duplicate=True))
        return Delivery(promise, 0)

    def take_numbers(self, sequences: list[int], partitions: list[int]) -> list[bool]:
        """Whether each numbered message is to be sent, in turn with those that ``offer`` takes."""
        with self._sequence_turn:
            last = self._last_sequence
            for sequence in sequences:
                if sequence <= last:
                    raise InvalidRequest(f"sequences must increase: {sequence} came after {last}")
                last = sequence
            self._last_sequence = last
        before = self._sender.stored_before
        return [
            sequence > before.get(partition, -1)
            for sequence, partition in zip(sequences, partitions, strict=True)
        ]

    def check_partition(self, partition: Any) -> None:
        """``PartitionNotFound`` if the topic has no such partition."""
        if not is_partition(partition):
            raise InvalidRequest(f"partition must be 0 or more, not {partition!r}")
        known = self._sender.routing.partitions
        if partition not in known:
            raise PartitionNotFound(
                f"topic {self._sender.topic!r} has partitions {known[0]} to {known[-1]}, "
                f"not {partition}",
                topic=self._sender.topic,
                partition=partition,
            )

    def _too_large(self, size: int) -> MessageTooLarge:
        limit = self._sender.message_bytes_max
        # The topic may take more by now than when it was looked up.
        self._sender.refresh_soon()
        return MessageTooLarge(
            f"the message has {size:,} bytes with key and headers; topic {self._sender.topic!r} "
            f"allows {limit:,}",
            size=size,
            limit=limit,
        )
