"""The calls that restore a backup. All of them are for administrators of the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace
from pyroaring import BitMap64

from quiver import protocol
from quiver.broker.publish.restore import require_restoring
from quiver.edge.auth.call_permissions import cluster_admin
from quiver.edge.auth.tokens import TokenRecord
from quiver.edge.calls.call import Call, Turn
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import AT_LEADER
from quiver.errors import InvalidRequest
from quiver.formats import METADATA_VALUES

_TIMEOUT_S = 120.0
_RESTORED_VALUES = 1
"""The first version of the metadata's values in which a topic may be restored."""


async def restore_topic(context: Context, request: protocol.RestoreTopic, _: memoryview) -> Answer:
    member = context.services.member
    if member is not None:
        # An older node would take publishes before the topic is complete, and could not lead it.
        member.view.state.require_read_by_all(METADATA_VALUES, _RESTORED_VALUES)
    described = replace(request.info, name=request.name)
    info = await context.services.broker.topics.restore(described, request.backup)
    return protocol.Topic(topic=info), ()


async def restore_entries(
    context: Context, request: protocol.RestoreEntries, body: memoryview
) -> Answer:
    restorer = context.services.broker.restorer
    next_offset = await restorer.restore(request.topic, request.partition, body)
    return protocol.EntriesRestored(next_offset=next_offset), ()


async def restore_subscription(
    context: Context, request: protocol.RestoreSubscription, _: memoryview
) -> Answer:
    described = replace(request.info, name=request.name)
    info = await context.services.broker.subscriptions.restore(described)
    return protocol.Subscription(subscription=info), ()


async def restore_state(
    context: Context, request: protocol.RestoreState, body: memoryview
) -> Answer:
    broker = context.services.broker
    record = broker.publisher.topic(request.topic)
    require_restoring(record)
    sizes = [*request.states.values(), *request.deliveries.values()]
    bitmaps = _bitmaps(body, sizes)
    states, counts = bitmaps[: len(request.states)], bitmaps[len(request.states) :]
    await broker.directory.restore(
        request.subscription,
        record,
        request.partition,
        pending=BitMap64.union(BitMap64(), *states),
        end=max(0, request.next_offset),
        deliveries=dict(zip(request.deliveries, counts, strict=True)),
    )
    return protocol.Done(), ()


def _bitmaps(body: memoryview, sizes: Iterable[int]) -> list[BitMap64]:
    found, at = [], 0
    try:
        for size in sizes:
            found.append(BitMap64.deserialize(bytes(body[at : at + size])))
            at += size
    except (ValueError, RuntimeError) as error:
        raise InvalidRequest("the body is not the bitmaps that the request names") from error
    if at != len(body):
        raise InvalidRequest("the body is not the bitmaps that the request names")
    return found


async def finish_restore(
    context: Context, request: protocol.FinishRestore, _: memoryview
) -> Answer:
    await context.services.broker.topics.finish_restore(request.topic)
    return protocol.Done(), ()


async def export_tokens(context: Context, _request: protocol.ExportTokens, _: memoryview) -> Answer:
    return protocol.TokensExported(tokens=[*context.services.authority.tokens.export()]), ()


async def restore_token(
    context: Context, request: protocol.RestoreToken, body: memoryview
) -> Answer:
    record = TokenRecord(
        id=request.token_id,
        name=request.name,
        grants=request.grants,
        created_us=request.created_us,
        expires_us=request.expires_us,
        hash=bytes(body) or None,
    )
    is_new = await context.services.authority.tokens.restore(record)
    return protocol.Counted(count=int(is_new)), ()


CALLS = (
    Call(
        request=protocol.RestoreTopic,
        handler=restore_topic,
        needs=cluster_admin,
        is_audited=True,
    ),
    Call(
        request=protocol.RestoreEntries,
        handler=restore_entries,
        needs=cluster_admin,
        timeout_s=lambda _: _TIMEOUT_S,
        turn=Turn.OWN,
        runs=AT_LEADER,
    ),
    Call(
        request=protocol.RestoreSubscription,
        handler=restore_subscription,
        needs=cluster_admin,
        is_audited=True,
    ),
    Call(
        request=protocol.RestoreState,
        handler=restore_state,
        needs=cluster_admin,
        is_audited=True,
        timeout_s=lambda _: _TIMEOUT_S,
        runs=AT_LEADER,
    ),
    Call(
        request=protocol.FinishRestore,
        handler=finish_restore,
        needs=cluster_admin,
        is_audited=True,
    ),
    Call(
        request=protocol.ExportTokens,
        handler=export_tokens,
        needs=cluster_admin,
        is_for_peers=False,
    ),
    Call(
        request=protocol.RestoreToken,
        handler=restore_token,
        needs=cluster_admin,
        is_for_peers=False,
        is_audited=True,
    ),
)
