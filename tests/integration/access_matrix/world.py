"""What is on the node that the matrix asks. Each name and each message can be recognised anywhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from quiver import protocol
from quiver.client import AsyncClient
from quiver.config import AlertRule, Alerts, Limits, NodeConfig, Security, Web
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.in_process import InProcessChannel, InProcessDialer
from quiver.edge.node import Node
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from tests.integration.access_matrix.grants import covers, suffice
from tests.integration.edge_node import until
from tests.integration.http.http_node import LOOPBACK

TOPIC, QUEUE, SUB, GROUP = "orders-t1x", "emails-q2x", "billing-s3x", "group-s4x"
TARGET, HIDDEN, SPARE, SPARE_SUB = "target-t5x", "hidden-q6x", "spare-q7x", "spare-s8x"
PRINCIPAL = "principal-p9x"
READS = {SUB: TOPIC, GROUP: TOPIC, SPARE_SUB: TOPIC, QUEUE: QUEUE, HIDDEN: HIDDEN, SPARE: SPARE}
"""What each subscription reads."""
TOPICS = {TOPIC, QUEUE, TARGET, HIDDEN, SPARE}
MESSAGES = 300
_SEEN_BY_ALL = "publish|consume|admin"

SINGLES = [
    f"{permission}:{what}"
    for permission in ("publish", "consume", "admin")
    for what in (
        *(f"topic:{name}" for name in (TOPIC, QUEUE, TARGET)),
        *(f"subscription:{name}" for name in (SUB, QUEUE, GROUP)),
        f"queue:{QUEUE}",
        "cluster:*",
        "*",
    )
]
"""Every kind of grant, each on its own."""


def payload_of(topic: str) -> bytes:
    return f"payload of {topic}".encode()


class World(msgspec.Struct, kw_only=True):
    node: Node
    inside: InProcessChannel
    message_id: str

    async def token(self, *grants: str, name: str = "somebody", is_over: str = "") -> str:
        tokens = self.node.services.authority.tokens
        draft = tokens.draft(name, list(grants))
        if is_over == "expired":
            draft = draft._replace(record=msgspec.structs.replace(draft.record, expires_us=1))
        await tokens.keep(draft)
        if is_over == "revoked":
            await tokens.revoke(draft.record.id)
        return draft.text

    async def prepare(self, request: protocol.AnyRequest | None) -> None:
        """Make what a case deletes."""
        if request is not None:
            await self.inside.call(msgspec.structs.replace(request))


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    config = NodeConfig(
        data=str(folder / "data"),
        http=LOOPBACK,
        native=LOOPBACK,
        limits=Limits(free_bytes_min=0),
        web=Web(webhook_targets="hooks.example.com"),
        security=Security(authentication=True),
        alerts=Alerts(defaults=False, interval_s=0.1),
        alert_rules=(AlertRule(name="deep", watch="depth", limit=0),),
    )
    node = await Node.start(config)
    inside = InProcessChannel(node.services, INTERNAL)
    owner = AsyncClient(dialer=InProcessDialer(node.services, INTERNAL))
    try:
        made = World(node=node, inside=inside, message_id=await _fill(owner))
        await made.token("admin:*", name=PRINCIPAL)
        observability = node.services.observability
        await until(lambda: HIDDEN in {one.subject for one in observability.firing})
        yield made
    finally:
        await owner.close()
        await inside.close()
        await node.stop()


async def _fill(owner: AsyncClient) -> str:
    for name in (TOPIC, TARGET):
        await owner.create_topic(name, compression="none")
    for name in (QUEUE, HIDDEN, SPARE):
        await owner.create_queue(name, compression="none")
    for name in (SUB, SPARE_SUB):
        await owner.create_subscription(name, [TOPIC])
    await owner.create_subscription(GROUP, [TOPIC], ordering="partition")
    for name in (QUEUE, HIDDEN, TOPIC):
        stored = await owner.publish_many(name, [payload_of(name)] * MESSAGES)
    (letter,) = await owner.receive(QUEUE, 1)
    await letter.reject(error="no such customer")
    await owner.redrive(QUEUE, dry_run=True)
    return str(stored[0].id)


QUEUE_AGAIN = protocol.CreateQueue(
    name=SPARE, topic=TopicSettings(compression="none"), exist_ok=True
)  # type: ignore[arg-type]
TOPIC_AGAIN = protocol.CreateTopic(name="gone-t10x", settings=TopicSettings(), exist_ok=True)
SUB_AGAIN = protocol.CreateSubscription(
    name="gone-s11x", settings=SubscriptionSettings(topics=[TOPIC]), exist_ok=True
)


def leaks(answer: bytes, grants: Collection[str], asked: bytes) -> list[str]:
    """Names and messages in the answer that are none of the caller's business.

    What the request names is no secret to who sent it.
    """
    found = [
        name
        for name in (*TOPICS, *READS, PRINCIPAL)
        if name.encode() in answer and name.encode() not in asked and not _sees(name, grants)
    ]
    return found + [
        f"a message of {topic}"
        for topic in TOPICS
        if not _reads(topic, grants)
        and (payload_of(topic) in answer or b64encode(payload_of(topic)) in answer)
    ]


def _sees(name: str, grants: Collection[str]) -> bool:
    """Who may do something with a thing sees it, and of a subscription also what it reads."""
    if name == PRINCIPAL:
        return suffice(grants, ["admin:cluster:*"])
    things = [f"{_SEEN_BY_ALL}:topic:{name}", f"{_SEEN_BY_ALL}:subscription:{name}"]
    things += [
        f"{_SEEN_BY_ALL}:subscription:{sub}" for sub, topic in READS.items() if topic == name
    ]
    return any(covers(grant, need) for grant in grants for need in things)


def _reads(topic: str, grants: Collection[str]) -> bool:
    things = [f"consume:topic:{topic}"]
    things += [f"consume:subscription:{sub}" for sub, read in READS.items() if read == topic]
    return any(covers(grant, need) for grant in grants for need in things)
