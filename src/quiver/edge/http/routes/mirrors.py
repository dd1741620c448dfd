"""Mirrors over HTTP: topics that this cluster copies from another."""

from __future__ import annotations

import msgspec

from quiver.client.api.settings import mirror_settings
from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.routes.topics import BODY_ERRORS, given, settings_in
from quiver.edge.http.schemas.mirrors import (
    CopiedPartitionView,
    CopiedTopicView,
    Gap,
    MirrorChanges,
    MirrorFields,
    MirrorList,
    MirrorView,
    PromotedList,
    PromotedView,
    Promotion,
)
from quiver.errors import (
    InvalidRequest,
    InvalidSetting,
    MalformedBody,
    MirrorExists,
    MirrorLoop,
    MirrorNotFound,
    PermissionDenied,
    TopicNotFound,
)
from quiver.model.message import datetime_of
from quiver.model.mirror.settings import MirrorSettings
from quiver.protocol import CopiedPartition, MirrorInfo

_promotions = msgspec.json.Decoder(Promotion)


async def list_mirrors(call: Call) -> Reply:
    found = await call.client.list_mirrors()
    return Reply(200, encode(MirrorList(mirrors=[_view(one) for one in found])))


async def create_mirror(call: Call) -> Reply:
    settings = given(await settings_in(call, MirrorFields, MirrorSettings))
    for field in ("source", "topics"):
        if field not in settings:
            raise InvalidRequest(f"{field}: a mirror needs it", field=field)
    name = call.path["mirror"]
    try:
        made = await call.client.create_mirror(name, **settings)
    except MirrorExists:
        if "token" in settings:  # whether it is the same cannot be seen
            raise
        known = await call.client.describe_mirror(name)
        if known.settings != mirror_settings(settings):
            raise
        return Reply(200, encode(_view(known)))
    return Reply(201, encode(_view(made)), headers=((b"location", f"/mirrors/{name}".encode()),))


async def describe_mirror(call: Call) -> Reply:
    return Reply(200, encode(_view(await call.client.describe_mirror(call.path["mirror"]))))


async def alter_mirror(call: Call) -> Reply:
    changes = given(await settings_in(call, MirrorChanges, MirrorSettings))
    return Reply(200, encode(_view(await call.client.alter_mirror(call.path["mirror"], **changes))))


async def delete_mirror(call: Call) -> Reply:
    call.require_no_body()
    await call.client.delete_mirror(call.path["mirror"])
    return Reply(204)


async def promote_topics(call: Call) -> Reply:
    """Promote to the end, whether the caller waits for it or not."""
    wanted = await call.json(_promotions)
    done = await call.client.promote_topics(
        wanted.topics, fence=wanted.fence, timeout=wanted.timeout
    )
    topics = [
        PromotedView(
            name=one.name,
            source=one.source,
            fenced=one.is_fenced,
            complete=one.is_complete,
            error=one.error,
        )
        for one in done
    ]
    return Reply(200, encode(PromotedList(topics=topics)))


def _view(info: MirrorInfo) -> MirrorView:
    return MirrorView(
        name=info.name,
        created=datetime_of(info.created_us),
        settings=info.settings,
        has_token=info.has_token,
        cluster=info.cluster,
        state=info.state,
        error=info.error,
        lag_messages=info.lag_messages,
        lag_bytes=info.lag_bytes,
        lag_s=info.lag_s,
        copied_bytes=info.copied_bytes,
        fetched_bytes=info.fetched_bytes,
        topics=[
            CopiedTopicView(
                name=one.name,
                source=one.source,
                error=one.error,
                partitions=[_partition(part) for part in one.partitions],
            )
            for one in info.topics
        ],
    )


def _partition(one: CopiedPartition) -> CopiedPartitionView:
    return CopiedPartitionView(
        index=one.index,
        next_offset=one.next_offset,
        source_offset=one.source_offset,
        lag_messages=one.lag_messages,
        lag_bytes=one.lag_bytes,
        lag_s=one.lag_s,
        state_lag_s=one.state_lag_s,
        gaps=[Gap(start_offset=start, next_offset=end) for start, end in one.gaps],
        error=one.error,
        is_broken=one.is_broken,
    )


_MIRROR = {200: ("The mirror.", {JSON: MirrorView})}
_PATH = "/mirrors/{mirror}"
OPERATIONS = (
    Operation(
        method="GET",
        path="/mirrors",
        id="list_mirrors",
        handler=list_mirrors,
        summary="List mirrors, with how far behind their copies are.",
        tag="mirrors",
        replies={200: ("All mirrors.", {JSON: MirrorList})},
        errors=(PermissionDenied,),
    ),
    Operation(
        method="PUT",
        path=_PATH,
        id="create_mirror",
        handler=create_mirror,
        summary="Copy topics of another cluster. If it exists with the same settings, nothing changes.",
        tag="mirrors",
        body={JSON: MirrorFields},
        replies={201: ("The new mirror.", {JSON: MirrorView}), **_MIRROR},
        errors=(
            *BODY_ERRORS,
            InvalidRequest,
            InvalidSetting,
            MirrorExists,
            MirrorLoop,
            PermissionDenied,
        ),
    ),
    Operation(
        method="GET",
        path=_PATH,
        id="describe_mirror",
        handler=describe_mirror,
        summary="Show a mirror's settings, and for each partition how far its copy is.",
        tag="mirrors",
        replies=_MIRROR,
        errors=(MirrorNotFound, PermissionDenied),
    ),
    Operation(
        method="PATCH",
        path=_PATH,
        id="alter_mirror",
        handler=alter_mirror,
        summary="Change settings of a mirror. `paused` pauses and resumes it.",
        tag="mirrors",
        body={JSON: MirrorChanges},
        replies=_MIRROR,
        errors=(*BODY_ERRORS, InvalidRequest, InvalidSetting, MirrorNotFound, PermissionDenied),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        id="delete_mirror",
        handler=delete_mirror,
        summary="Copy no more. The copies stay, and take no publishes until they are promoted.",
        tag="mirrors",
        replies={204: ("The mirror is removed.", {})},
        errors=(MalformedBody, MirrorNotFound, PermissionDenied),
    ),
    Operation(
        method="POST",
        path="/promote",
        id="promote_topics",
        handler=promote_topics,
        summary="Make copies writable, and let their subscriptions deliver.",
        tag="mirrors",
        body={JSON: Promotion},
        replies={200: ("What was promoted.", {JSON: PromotedList})},
        errors=(*BODY_ERRORS, InvalidRequest, InvalidSetting, TopicNotFound, PermissionDenied),
    ),
)
