"""The calls about subscriptions and queues.

To create or alter a subscription, the caller needs permissions on the topics that it reads and on its
dead-letter topic. So a subscription never gives access to a topic. Who sends its messages to an endpoint
or to another dead-letter topic needs permission to consume it: ``admin`` alone does not read.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from quiver import protocol
from quiver.edge.auth.call_permissions import (
    ADMIN,
    CONSUME,
    PUBLISH,
    SEE,
    Definitions,
    Needs,
    nothing,
    on_subscription,
    subscription,
    topic,
)
from quiver.edge.auth.caller import Caller
from quiver.edge.calls import merge
from quiver.edge.calls.call import Call
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import AtLeaders
from quiver.errors import InvalidRequest


async def create(context: Context, request: protocol.CreateSubscription, _: memoryview) -> Answer:
    push = request.settings.push
    if push is not None:
        await context.services.require_push(push.url, push.secret)
    if request.start not in ("earliest", "latest"):
        raise InvalidRequest(
            f"a subscription starts at 'earliest' or 'latest', not {request.start[:80]!r}"
        )
    info = await context.services.broker.subscriptions.create(
        request.name,
        request.settings,
        start=request.start,
        start_time=request.start_time_us,
        start_offset=request.start_offset,
        exist_ok=request.exist_ok,
    )
    return protocol.Subscription(subscription=info), ()


async def create_queue(context: Context, request: protocol.CreateQueue, _: memoryview) -> Answer:
    broker = context.services.broker
    _require_room(context, request.name)
    _require_room_for_letters(context, request.subscription)
    await context.services.require_push(*_push(request.subscription))
    info = await broker.subscriptions.create_queue(
        request.name, request.topic, request.subscription, exist_ok=request.exist_ok
    )
    return protocol.Subscription(subscription=info), ()


async def alter(context: Context, request: protocol.AlterSubscription, _: memoryview) -> Answer:
    _require_room_for_letters(context, request.changes)
    await context.services.require_push(*_push(request.changes))
    info = await context.services.broker.subscriptions.alter(request.name, request.changes)
    return protocol.Subscription(subscription=info), ()


async def delete(context: Context, request: protocol.DeleteSubscription, _: memoryview) -> Answer:
    broker = context.services.broker
    broker.mirrors.require_deletable(request.name)
    await broker.subscriptions.delete(request.name)
    return protocol.Done(), ()


async def describe(
    context: Context, request: protocol.DescribeSubscription, _: memoryview
) -> Answer:
    info = await context.services.broker.subscriptions.describe(request.name)
    return protocol.Subscription(subscription=info), ()


async def list_all(context: Context, _request: protocol.ListSubscriptions, _: memoryview) -> Answer:
    return protocol.Subscriptions(subscriptions=context.services.broker.subscriptions.infos()), ()


def hide_subscriptions(caller: Caller, reply: protocol.Subscriptions) -> None:
    sees = caller.sees_subscription
    reply.subscriptions = [one for one in reply.subscriptions if sees(one.name)]


def _require_room(context: Context, topic: str) -> None:
    """``NAME.dlq`` comes with the queue and does not count."""

    def counted() -> set[str]:
        names = context.services.broker.topics.names
        return names - {f"{name}.dlq" for name in names}

    context.caller.require_room_for_topic(topic, counted)


def _require_room_for_letters(context: Context, settings: dict[str, Any]) -> None:
    letters = settings.get("dead_letter")
    if isinstance(letters, str):
        _require_room(context, letters)


def _push(settings: dict[str, Any]) -> tuple[str | None, str | None]:
    """The URL and the name of the secret in the push settings, where they are given."""
    push = settings.get("push")
    given = push if isinstance(push, dict) else {}
    url, secret = given.get("url"), given.get("secret")
    return url if isinstance(url, str) else None, secret if isinstance(secret, str) else None


# ---------------------------------------------------------------------- what they need


def create_needs(request: protocol.CreateSubscription, _: Definitions) -> Needs:
    settings = request.settings
    return (
        subscription(ADMIN, request.name),
        *_sent_on(request.name, settings.push, settings.dead_letter),
        *_reached(settings.topics, settings.dead_letter),
    )


def create_queue_needs(request: protocol.CreateQueue, _: Definitions) -> Needs:
    return (
        topic(ADMIN, request.name),
        subscription(ADMIN, request.name),
        *_sent_on(
            request.name,
            request.subscription.get("push"),
            request.subscription.get("dead_letter"),
        ),
        *_reached_by(request.subscription),
    )


def alter_needs(request: protocol.AlterSubscription, _: Definitions) -> Needs:
    """Also back to ``NAME.dlq`` the dead letters go to others than before."""
    has_other_letters = "dead_letter" in request.changes
    return (
        subscription(ADMIN, request.name),
        *_sent_on(request.name, request.changes.get("push"), has_other_letters or None),
        *_reached_by(request.changes),
    )


def delete_needs(request: protocol.DeleteSubscription, definitions: Definitions) -> Needs:
    of_queue = (topic(ADMIN, request.name),) if definitions.is_queue(request.name) else ()
    return (subscription(ADMIN, request.name), *of_queue)


def _sent_on(name: str, push: Any, dead_letter: Any) -> Needs:
    """Whoever sends the messages of a subscription somewhere could read them there."""
    return () if push is None and dead_letter is None else (subscription(CONSUME, name),)


def _reached_by(settings: dict[str, Any]) -> Needs:
    return _reached(settings.get("topics", []), settings.get("dead_letter"))


def _reached(topics: Any, dead_letter: Any) -> Needs:
    """The topics that a subscription reads or writes. A value that is no name stands for all."""
    reads = topics if isinstance(topics, list) else ["*"]
    needs = [topic(CONSUME, one if isinstance(one, str) else "*") for one in reads]
    if dead_letter is not None:
        letters = dead_letter if isinstance(dead_letter, str) else "*"
        # A redrive takes them out again.
        needs += [topic(PUBLISH, letters), topic(CONSUME, letters)]
    return tuple(needs)


CALLS = (
    Call(
        request=protocol.CreateSubscription,
        handler=create,
        needs=create_needs,
        is_audited=True,
    ),
    Call(
        request=protocol.CreateQueue,
        handler=create_queue,
        needs=create_queue_needs,
        is_audited=True,
    ),
    Call(
        request=protocol.AlterSubscription,
        handler=alter,
        needs=alter_needs,
        is_audited=True,
    ),
    Call(
        request=protocol.DeleteSubscription,
        handler=delete,
        needs=delete_needs,
        is_audited=True,
    ),
    Call(
        request=protocol.DescribeSubscription,
        handler=describe,
        needs=on_subscription(SEE, "name"),
        runs=AtLeaders(attrgetter("name"), with_dead_letters=True),
        merge=merge.described,
    ),
    Call(
        request=protocol.ListSubscriptions,
        handler=list_all,
        needs=nothing,
        hide=hide_subscriptions,
    ),
)
