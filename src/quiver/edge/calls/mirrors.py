"""The calls about mirrors: what a source gives, and what administers the cluster that copies."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from operator import attrgetter

from msgspec.structs import replace

from quiver import protocol
from quiver.aio import for_each
from quiver.broker.topics.catalog import TopicRecord
from quiver.client.transport.addresses import addresses_in
from quiver.edge.auth.call_permissions import (
    ADMIN,
    CONSUME,
    Definitions,
    Needs,
    cluster_admin,
    cluster_watch,
    nothing,
    on_topic,
    topic,
)
from quiver.edge.calls.call import Call, Turn, wait_timeout_s
from quiver.edge.calls.context import Answer, Context, may_ask_others
from quiver.edge.calls.fan_out.route import AT_LEADER, AtAllNodes
from quiver.edge.mirror.loops import require_no_loop
from quiver.edge.mirror.promotion import Promotion
from quiver.errors import InvalidRequest, InvalidSetting, MirrorDiverged
from quiver.formats import ENTRIES, METADATA_VALUES
from quiver.model.topic import checked_name

_MIRROR_VALUES = 2
"""The first version of the metadata's values in which topics may be mirrored."""
_TOKEN_BYTES_MAX = 1000
_PATTERNS_MAX = 100
_PROMOTE_S_MAX = 600.0
_PROMOTED_AT_ONCE = 8
"""Topics of one request: each may wait for its source, and whoever asked waits for all."""

# ---------------------------------------------------------------------- asked of the source


async def describe_source(
    context: Context, request: protocol.DescribeSource, _: memoryview
) -> Answer:
    """Topics and subscriptions, as far as the caller may read them."""
    if len(request.topics) > _PATTERNS_MAX:
        raise InvalidRequest(f"give at most {_PATTERNS_MAX} names and patterns")
    broker, caller = context.services.broker, context.caller
    cluster, version = context.services.mirrors.environment.cluster, broker.mirror_source.version
    if request.known == version:
        return protocol.SourceDescribed(cluster=cluster, version=version, is_unchanged=True), ()
    topics = [
        one
        for one in broker.topics.infos()
        if any(fnmatchcase(one.name, pattern) for pattern in request.topics)
        and not one.name.startswith("__")
        and caller.reads_topic(one.name)
    ]
    subscriptions, hidden = [], Counter[str]()
    for one in broker.subscriptions.infos() if request.with_subscriptions else ():
        reads = [
            topic.name
            for topic in topics
            if any(fnmatchcase(topic.name, wanted) for wanted in one.settings.topics)
        ]
        if reads and caller.consumes(one.name):
            subscriptions.append(one)
        elif reads:
            hidden.update(reads)
    reply = protocol.SourceDescribed(
        cluster=cluster,
        version=version,
        topics=topics,
        subscriptions=subscriptions,
        hidden_subscriptions=dict(hidden),
    )
    return reply, ()


async def fetch_log(context: Context, request: protocol.FetchLog, _: memoryview) -> Answer:
    """Wait for data without blocking other requests, then read in turn with other fetches."""
    _require_cluster(context, request.cluster)
    source = context.services.broker.mirror_source
    await source.wait_for_data(request)
    async with context.reply_turn:
        reply, buffers = await source.fetch(request)
        context.services.metrics.fetched_bytes.inc(sum(map(len, buffers)))
        return reply, buffers


async def fetch_delivery_state(
    context: Context, request: protocol.FetchDeliveryState, _: memoryview
) -> Answer:
    """The state of those subscriptions that the caller may consume from."""
    _require_cluster(context, request.cluster)
    async with context.reply_turn:
        source = context.services.broker.mirror_source
        return await source.delivery_state(request, context.caller.consumes)


def _require_cluster(context: Context, cluster: str) -> None:
    """``MirrorDiverged`` if the caller copies from another cluster than this one."""
    own = context.services.mirrors.environment.cluster
    if cluster and cluster != own:
        raise MirrorDiverged(
            f"this is cluster {own}, and the copy is of {cluster[:40]}: another cluster has its place",
            cluster=own,
        )


async def fence_topic(context: Context, request: protocol.FenceTopic, _: memoryview) -> Answer:
    if len(request.moved_to) > _TOKEN_BYTES_MAX:
        raise InvalidRequest("moved_to is too long")
    await _require_readers(context)
    info = await context.services.broker.topics.fence(request.name, request.moved_to)
    return protocol.Topic(topic=info), ()


# ---------------------------------------------------------------------- asked of the cluster that copies


async def create(context: Context, request: protocol.CreateMirror, body: memoryview) -> Answer:
    await _require_readers(context)
    checked_name(request.name, "mirror")
    _check_source(request.settings.source)
    mirrors, environment = context.services.broker.mirrors, context.services.mirrors.environment
    token = _token(body)
    await require_no_loop(request.settings, token, environment)
    info = await mirrors.create(request.name, request.settings, token)
    return protocol.Mirror(mirror=info), ()


async def alter(context: Context, request: protocol.AlterMirror, body: memoryview) -> Answer:
    if "source" in request.changes:
        _check_source(request.changes["source"])
    mirrors = context.services.broker.mirrors
    info = await mirrors.alter(request.name, request.changes, _token(body))
    return protocol.Mirror(mirror=info), ()


async def delete(context: Context, request: protocol.DeleteMirror, _: memoryview) -> Answer:
    await context.services.broker.mirrors.delete(request.name)
    return protocol.Done(), ()


async def describe(context: Context, request: protocol.DescribeMirror, _: memoryview) -> Answer:
    return protocol.Mirror(mirror=context.services.mirrors.describe(request.name)), ()


async def list_all(context: Context, _request: protocol.ListMirrors, _: memoryview) -> Answer:
    return protocol.Mirrors(mirrors=context.services.mirrors.describe_all()), ()


async def promote(context: Context, request: protocol.PromoteTopics, _: memoryview) -> Answer:
    services = context.services
    records = services.broker.mirrors.promotable(request.topics)

    async def everywhere(name: str) -> protocol.MirrorInfo:
        question = protocol.DescribeMirror(name=name)

        async def here(_: object) -> Answer:
            return await describe(context, question, memoryview(b""))

        asks = may_ask_others(context)
        answers = await _ALL.answers(context, question, here) if asks else [await here(None)]
        return _merged([answer[0].mirror for answer in answers])  # type: ignore[union-attr]

    nodes = ", ".join(services.node_addresses)
    moved_to = f"cluster {services.mirrors.environment.cluster}" + (f" ({nodes})" if nodes else "")
    wait_s = min(max(0, request.wait_ms) / 1000, _PROMOTE_S_MAX)
    silent: set[str] = set()
    done: dict[str, protocol.PromotedTopic] = {}

    async def promote_one(record: TopicRecord) -> None:
        promotion = Promotion(
            services.mirrors, services.broker.topics, everywhere, moved_to, silent
        )
        done[record.name] = await promotion.promote(record, fence=request.fence, wait_s=wait_s)

    await for_each(records, promote_one, _PROMOTED_AT_ONCE)
    return protocol.TopicsPromoted(topics=[done[one.name] for one in records]), ()


async def _require_readers(context: Context) -> None:
    """Keep out an older Quiver: it would take publishes for a topic that is mirrored, or was moved.

    ``InvalidRequest`` while such a node is in the cluster. From now on none opens the data folder.
    """
    member = context.services.member
    if member is not None:
        member.view.state.require_read_by_all(METADATA_VALUES, _MIRROR_VALUES)
    await context.services.note_formats([METADATA_VALUES, ENTRIES])


def _check_source(url: str) -> None:
    try:
        addresses_in(url)
    except InvalidSetting as error:
        raise InvalidSetting(error.message, setting="source") from None


def _token(body: memoryview) -> str:
    """The token for the source that a request has as its body."""
    if len(body) > _TOKEN_BYTES_MAX:
        raise InvalidSetting("the token is too long: a token begins with 'qv_'", setting="token")
    try:
        return bytes(body).decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise InvalidSetting(
            "the token is not valid: a token begins with 'qv_'", setting="token"
        ) from error


# ---------------------------------------------------------------------- merging


_ALL = AtAllNodes()
_STATES = ("paused", "copying", "connecting", "broken")
"""The worst one last."""


def _merged(found: list[protocol.MirrorInfo]) -> protocol.MirrorInfo:
    """A mirror as all nodes see it together."""
    topics: dict[tuple[str, str], protocol.CopiedTopic] = {}
    for info in found:
        for one in info.topics:
            known = topics.setdefault((one.name, one.source), replace(one, partitions=[]))
            known.error = known.error or one.error
            known.partitions = sorted([*known.partitions, *one.partitions], key=attrgetter("index"))
    return replace(
        found[0],
        cluster=next((one.cluster for one in found if one.cluster), ""),
        state=max((one.state for one in found), key=_STATES.index),
        error=next((one.error for one in found if one.error), ""),
        topics=sorted(topics.values(), key=attrgetter("source", "name")),
        copied_bytes=sum(one.copied_bytes for one in found),
        fetched_bytes=sum(one.fetched_bytes for one in found),
    )


def merge_one(answers: list[Answer]) -> Answer:
    found = [reply.mirror for reply, _ in answers if isinstance(reply, protocol.Mirror)]
    return protocol.Mirror(mirror=_merged(found)), ()


def merge_all(answers: list[Answer]) -> Answer:
    by_name: dict[str, list[protocol.MirrorInfo]] = {}
    for reply, _ in answers:
        for info in reply.mirrors if isinstance(reply, protocol.Mirrors) else ():
            by_name.setdefault(info.name, []).append(info)
    return protocol.Mirrors(mirrors=[_merged(found) for found in by_name.values()]), ()


def on_topics(request: protocol.PromoteTopics, _: Definitions) -> Needs:
    return tuple(topic(ADMIN, pattern) for pattern in request.topics)


def promote_timeout_s(request: protocol.PromoteTopics) -> float:
    return 60.0 + _PROMOTE_S_MAX


CALLS = (
    Call(request=protocol.DescribeSource, handler=describe_source, needs=nothing),
    Call(
        request=protocol.FetchLog,
        handler=fetch_log,
        needs=on_topic(CONSUME),
        subject=attrgetter("topic"),
        timeout_s=wait_timeout_s,
        turn=Turn.OWN,
        only_waits=True,
        runs=AT_LEADER,
    ),
    Call(
        request=protocol.FetchDeliveryState,
        handler=fetch_delivery_state,
        needs=on_topic(CONSUME),
        subject=attrgetter("topic"),
        turn=Turn.OWN,
        runs=AT_LEADER,
    ),
    Call(
        request=protocol.FenceTopic,
        handler=fence_topic,
        needs=on_topic(ADMIN, "name"),
        is_audited=True,
    ),
    Call(
        request=protocol.CreateMirror,
        handler=create,
        needs=cluster_admin,
        is_for_peers=False,
        is_audited=True,
    ),
    Call(
        request=protocol.AlterMirror,
        handler=alter,
        needs=cluster_admin,
        is_for_peers=False,
        is_audited=True,
    ),
    Call(
        request=protocol.DeleteMirror,
        handler=delete,
        needs=cluster_admin,
        is_audited=True,
    ),
    Call(
        request=protocol.DescribeMirror,
        handler=describe,
        needs=cluster_watch,
        runs=_ALL,
        merge=merge_one,
    ),
    Call(
        request=protocol.ListMirrors,
        handler=list_all,
        needs=cluster_watch,
        runs=_ALL,
        merge=merge_all,
    ),
    Call(
        request=protocol.PromoteTopics,
        handler=promote,
        needs=on_topics,
        is_audited=True,
        timeout_s=promote_timeout_s,
    ),
)
