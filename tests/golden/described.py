"""All that a client can learn of a node's data, as one value that JSON can hold.

It is stored beside golden data by the version that wrote it; later versions must tell the same of
that data. They may tell more: ``missing`` says what of the old is not in the new.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quiver import AsyncClient, SubscriptionStatus
from quiver.model.message import Message

_PASSING = {"leader", "in_sync"}
"""What a partition's description has that is about the nodes that run, not about the data."""


async def described(client: AsyncClient) -> dict[str, Any]:
    """Topics with their messages, subscriptions with the state of each message, and tokens."""
    told = {
        # First, so that each subscription has looked at all of its messages.
        "subscriptions": {
            info.name: await _subscription(client, info.name)
            for info in await client.list_subscriptions()
        },
        "topics": {info.name: await _topic(client, info) for info in await client.list_topics()},
        "tokens": {info.name: info for info in await client.list_tokens()},
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))
    return plain


async def _topic(client: AsyncClient, listed: Any) -> dict[str, Any]:
    info = msgspec.to_builtins(await client.describe_topic(listed.name))
    for partition in info["partitions"]:
        for name in _PASSING:
            partition.pop(name, None)
        reader = client.read(listed.name, partition=partition["index"])
        messages = [one async for one in reader.messages()]
        table = await client.read(listed.name, partition=partition["index"]).table()
        partition["columns"] = table.to_pydict()
        partition["ids"] = [message.id for message in messages]
        partition["states"] = [await _states(client, message) for message in messages]
    return dict(info)


async def _states(client: AsyncClient, message: Message) -> dict[str, Any]:
    """Where it stands with each subscription of its topic."""
    status = await client.message_status(message.topic, message.id)
    assert status.message == message
    return {one.subscription: _as_it_was_told(one) for one in status.subscriptions}


_ENDS = {"expired", "cancelled", "purged", "skipped", "filtered", "before-subscription", "finished"}


def _as_it_was_told(status: SubscriptionStatus) -> SubscriptionStatus:
    """Earlier versions called every end an acknowledgement, and told nothing else of it."""
    if status.state in _ENDS or status.state == "acknowledged":
        return SubscriptionStatus(status.subscription, "acknowledged")
    if status.state == "dead-lettered":
        return SubscriptionStatus(status.subscription, status.state)
    return status


async def _subscription(client: AsyncClient, name: str) -> dict[str, Any]:
    pending = {
        f"{one.topic}/{one.partition}": {
            "next_offset": one.next_offset,
            "states": {state: list(offsets) for state, offsets in one.states.items() if offsets},
            "deliveries": {str(count): list(of) for count, of in one.deliveries.items() if of},
        }
        for one in await client.pending(name)
    }
    info = msgspec.to_builtins(await client.describe_subscription(name))
    del info["members"], info["consumers"]  # who is there now
    info["ready"] += info.pop("unseen")  # a node that starts has not looked at all of them yet
    return {**info, "pending": pending}


def missing(old: Any, new: Any, where: str = "") -> list[str]:
    """Where the new differs from the old; what the new has besides is no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            difference
            for name, value in old.items()
            for difference in missing(value, new.get(name), f"{where}/{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            difference
            for place, (one, other) in enumerate(zip(old, new, strict=True))
            for difference in missing(one, other, f"{where}/{place}")
        ]
    return [] if old == new else [f"{where}: {old!r} is now {new!r}"]
