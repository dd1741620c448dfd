"""How the answers of several nodes become one."""

from __future__ import annotations

from collections import Counter

import msgspec

from quiver import protocol
from quiver.client.transport.cluster import expect
from quiver.edge.calls.context import Answer
from quiver.metrics.processes import merged
from quiver.model.batch import Bytes

_RECENT_MAX = 100


def done(_: list[Answer]) -> Answer:
    """Every node has done its part."""
    return protocol.Done(), ()


def counted(answers: list[Answer]) -> Answer:
    return protocol.Counted(
        count=sum(expect(protocol.Counted, reply).count for reply, _ in answers)
    ), ()


def described(answers: list[Answer]) -> Answer:
    """One description, with what each node knows added up."""
    infos = [expect(protocol.Subscription, reply).subscription for reply, _ in answers]
    members = next((info.members for info in infos if info.members), infos[0].members)
    sums = {
        name: sum(getattr(info, name) or 0 for info in infos)
        for name in ("ready", "delayed", "leased", "dead", "unseen")
    }
    consumers = sorted({one for info in infos for one in info.consumers or ()})
    info = msgspec.structs.replace(
        infos[0],
        members=members,
        consumers=consumers,
        partitions=_partitions(infos),
        **sums,
    )
    return protocol.Subscription(subscription=info), ()


def _partitions(infos: list[protocol.SubscriptionInfo]) -> list[protocol.PartitionProgress]:
    """Each partition once. If two nodes say that they lead it, the one that has more is the newer."""
    found: dict[tuple[str, int], protocol.PartitionProgress] = {}
    for one in (one for info in infos for one in info.partitions or ()):
        place = one.topic, one.partition
        if place not in found or found[place].end < one.end:
            found[place] = one
    return [found[place] for place in sorted(found)]


def peeked(answers: list[Answer]) -> Answer:
    """What each node saw, one after the other."""
    batches = [one for reply, _ in answers for one in expect(protocol.Peeked, reply).batches]
    return protocol.Peeked(batches=batches), _bodies(answers)


def state_read(answers: list[Answer]) -> Answer:
    """What each node read, one after the other."""
    parts = [one for reply, _ in answers for one in expect(protocol.StateRead, reply).partitions]
    return protocol.StateRead(partitions=parts), _bodies(answers)


def redriven(answers: list[Answer]) -> Answer:
    replies = [expect(protocol.Redriven, reply) for reply, _ in answers]
    by_topic = Counter[str]()
    for reply in replies:
        by_topic.update(reply.by_topic)
    count = sum(reply.count for reply in replies)
    return protocol.Redriven(count=count, by_topic=dict(by_topic)), ()


def settled(answers: list[Answer]) -> Answer:
    replies = [expect(protocol.Settled, reply) for reply, _ in answers]
    return protocol.Settled(stale=[one for reply in replies for one in reply.stale]), ()


def first_received(answers: list[Answer]) -> Answer:
    """The answer of the first node that has messages; an empty one if none has any."""
    for answer in answers:
        if expect(protocol.Received, answer[0]).portions:
            return answer
    return protocol.Received(portions=[]), ()


def alerts(answers: list[Answer]) -> Answer:
    """The worst first, then the newest; of those that cleared the newest, no more than of one node."""
    replies = [expect(protocol.Alerts, reply) for reply, _ in answers]
    firing = [one for each in replies for one in each.firing]
    recent = [one for each in replies for one in each.recent]
    firing.sort(key=lambda one: (one.severity != "critical", -one.since_us))
    recent.sort(key=lambda one: -(one.until_us or 0))
    return protocol.Alerts(firing=firing, recent=recent[:_RECENT_MAX]), ()


def metrics(answers: list[Answer]) -> Answer:
    """The text of one node, or that of all processes of a machine."""
    reply, body = answers[0]
    if len(answers) == 1:
        return reply, body
    return reply, [merged(b"".join(map(bytes, text)) for _, text in answers)]


def _bodies(answers: list[Answer]) -> list[Bytes]:
    return [buffer for _, body in answers for buffer in body]
