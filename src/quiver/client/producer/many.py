"""Gives many messages to a producer, each with its own result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from quiver.client.producer.buffer_budget import BufferFull
from quiver.client.producer.delivery import Delivery
from quiver.client.producer.outgoing import MessageOptions, parts_of
from quiver.client.producer.producer import AsyncProducer
from quiver.errors import QuiverError


async def offer_each(
    producer: AsyncProducer, messages: Iterable[Any]
) -> Sequence[Delivery | QuiverError]:
    """What becomes of each message; the error of one that is not even sent."""
    validator = (await producer.open()).opened_validator
    if isinstance(messages, list) and all(type(message) is bytes for message in messages):
        plain = validator.offer_plain(messages)
        if plain is not None:
            return plain
    sent: list[Delivery | QuiverError] = []
    for message in messages:
        payload, key, options = parts_of(message)
        try:
            sent.append(validator.offer(payload, key, options))
        except BufferFull:
            sent.append(await _sent(producer, payload, key, options))
        except QuiverError as error:
            sent.append(error)
    return sent


async def _sent(
    producer: AsyncProducer, payload: Any, key: str | bytes | None, options: MessageOptions
) -> Delivery | QuiverError:
    try:
        return await producer.send(payload, key=key, **options)
    except QuiverError as error:
        return error
