"""The calls that read a partition."""

from __future__ import annotations

from operator import attrgetter

from quiver import protocol
from quiver.edge.auth.call_permissions import CONSUME, on_topic
from quiver.edge.calls.call import Call, Turn, wait_timeout_s
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import AT_LEADER
from quiver.model.transaction import UNCOMMITTED, require_isolation


async def fetch(context: Context, request: protocol.Fetch, _: memoryview) -> Answer:
    """Wait for data without blocking other requests, then read in turn with other fetches.

    One reply is built at a time, and only while the client reads. So a client that asks for much
    and reads nothing costs the memory of one reply.
    """
    require_isolation(request.isolation)
    reader, wait_s = context.services.broker.reader, request.wait_ms / 1000
    place = request.topic, request.partition, request.offset
    uncommitted = request.isolation == UNCOMMITTED
    any_replica = request.any_replica and not uncommitted
    await reader.wait_for_data(*place, wait_s, any_replica=any_replica, uncommitted=uncommitted)
    async with context.reply_turn:
        read = await reader.fetch(
            *place,
            bytes_max=request.bytes_max,
            any_replica=any_replica,
            uncommitted=uncommitted,
        )
        buffers = [buffer for entry in read.entries for buffer in entry.buffers()]
        context.services.metrics.fetched_bytes.inc(sum(map(len, buffers)))
        reply = protocol.Fetched(
            start_offset=read.start_offset,
            next_offset=read.next_offset,
            topic_number=read.topic_number,
            layout=read.layout,
            read_to=read.read_to,
        )
        return reply, buffers


async def find_offset(context: Context, request: protocol.FindOffset, _: memoryview) -> Answer:
    require_isolation(request.isolation)
    offset = await context.services.broker.reader.find_offset(
        request.topic,
        request.partition,
        request.at,
        request.time_us,
        uncommitted=request.isolation == UNCOMMITTED,
    )
    return protocol.OffsetFound(offset=offset), ()


CALLS = (
    Call(
        request=protocol.Fetch,
        handler=fetch,
        needs=on_topic(CONSUME),
        subject=attrgetter("topic"),
        timeout_s=wait_timeout_s,
        turn=Turn.OWN,
        only_waits=True,
        runs=AT_LEADER,
    ),
    Call(
        request=protocol.FindOffset,
        handler=find_offset,
        needs=on_topic(CONSUME),
        subject=attrgetter("topic"),
        runs=AT_LEADER,
    ),
)
