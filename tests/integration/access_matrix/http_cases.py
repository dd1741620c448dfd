"""A request for each HTTP operation and each WebSocket, with what it needs, written by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from quiver import protocol
from quiver.edge.http.operation import JSON, Operation
from quiver.edge.http.schemas.examples import EXAMPLES
from tests.integration.access_matrix.world import (
    QUEUE,
    QUEUE_AGAIN,
    SPARE,
    SPARE_SUB,
    SUB,
    SUB_AGAIN,
    TARGET,
    TOPIC,
    TOPIC_AGAIN,
)

_SEEN = "publish|consume|admin"
_CONSUMES_QUEUE, _CONSUMES_SUB = f"consume:subscription:{QUEUE}", f"consume:subscription:{SUB}"

_MIRROR = {"source": "quiver://127.0.0.1:1", "topics": ["none"], "paused": True}


class HttpCase(msgspec.Struct):
    name: str
    """Of the queue, topic or subscription in the path."""
    needs: tuple[str, ...] = ()
    body: Any = None
    """Instead of the example in the description."""
    prepare: protocol.AnyRequest | None = None

    def path(self, operation: Operation, message_id: str) -> str:
        path = operation.path.replace("{receipt_handle}", EXAMPLES["Ack"]["receipts"][0])
        path = path.replace("{id}", message_id)
        path = path.replace("{transaction}", "1")  # whose token decides is another test's matter
        for name in ("{queue}", "{topic}", "{name}", "{mirror}"):
            path = path.replace(name, self.name)
        return path

    def content(self, operation: Operation) -> bytes:
        kind = operation.body.get(JSON)
        if kind is None:
            return b""
        first = kind[0] if isinstance(kind, tuple) else kind
        return json.dumps(EXAMPLES[first.__name__] if self.body is None else self.body).encode()


def _of(name: str, *needs: str, body: Any = None, prepare: Any = None) -> HttpCase:
    return HttpCase(name, needs, body, prepare)


OPERATIONS: dict[str, HttpCase] = {
    "publish_to_queue": _of(QUEUE, f"publish:topic:{QUEUE}"),
    "receive_from_queue": _of(QUEUE, _CONSUMES_QUEUE),
    "queue_receive": _of(QUEUE, _CONSUMES_QUEUE),
    "delete_message": _of(QUEUE, _CONSUMES_QUEUE),
    "list_queues": _of(""),
    "create_queue": _of(QUEUE, f"admin:topic:{QUEUE}", f"admin:subscription:{QUEUE}"),
    "describe_queue": _of(QUEUE, f"{_SEEN}:subscription:{QUEUE}"),
    "alter_queue": _of(QUEUE, f"admin:subscription:{QUEUE}"),
    "delete_queue": _of(
        SPARE, f"admin:subscription:{SPARE}", f"admin:topic:{SPARE}", prepare=QUEUE_AGAIN
    ),
    "queue_acknowledge": _of(QUEUE, _CONSUMES_QUEUE),
    "queue_nack": _of(QUEUE, _CONSUMES_QUEUE),
    "queue_reject": _of(QUEUE, _CONSUMES_QUEUE),
    "queue_extend": _of(QUEUE, _CONSUMES_QUEUE),
    "queue_seek": _of(SPARE, f"admin:subscription:{SPARE}", prepare=QUEUE_AGAIN),
    "queue_peek": _of(QUEUE, _CONSUMES_QUEUE),
    "queue_purge": _of(SPARE, f"admin:subscription:{SPARE}", prepare=QUEUE_AGAIN),
    "queue_redrive": _of(
        QUEUE,
        f"admin:subscription:{QUEUE}",
        _CONSUMES_QUEUE,
        f"publish:topic:{TARGET}",
        body={"to": TARGET, "dry_run": True},
    ),
    "publish_to_topic": _of(TARGET, f"publish:topic:{TARGET}"),
    "list_topics": _of(""),
    "create_topic": _of(TOPIC, f"admin:topic:{TOPIC}"),
    "describe_topic": _of(TOPIC, f"{_SEEN}:topic:{TOPIC}"),
    "alter_topic": _of(TOPIC, f"admin:topic:{TOPIC}", body={"message_bytes_max": 1 << 20}),
    "delete_topic": _of("gone-t10x", "admin:topic:gone-t10x", prepare=TOPIC_AGAIN),
    "browse_messages": _of(TOPIC, f"consume:topic:{TOPIC}"),
    "receive_messages": _of(SUB, _CONSUMES_SUB),
    "receive": _of(SUB, _CONSUMES_SUB),
    "acknowledge": _of(SUB, _CONSUMES_SUB),
    "nack": _of(SUB, _CONSUMES_SUB),
    "reject": _of(SUB, _CONSUMES_SUB),
    "extend": _of(SUB, _CONSUMES_SUB),
    "list_subscriptions": _of(""),
    "create_subscription": _of(
        SUB,
        f"admin:subscription:{SUB}",
        _CONSUMES_SUB,
        f"consume:topic:{TOPIC}",
        body={"topics": [TOPIC], "push": {"url": "https://hooks.example.com/quiver"}},
    ),
    "describe_subscription": _of(SUB, f"{_SEEN}:subscription:{SUB}"),
    "alter_subscription": _of(SUB, f"admin:subscription:{SUB}", body={"max_deliveries": 5}),
    "delete_subscription": _of("gone-s11x", "admin:subscription:gone-s11x", prepare=SUB_AGAIN),
    "seek": _of(SPARE_SUB, f"admin:subscription:{SPARE_SUB}"),
    "peek": _of(SUB, _CONSUMES_SUB),
    "purge": _of(SPARE_SUB, f"admin:subscription:{SPARE_SUB}"),
    "redrive": _of(QUEUE, f"admin:subscription:{QUEUE}", body={"dry_run": True}),
    "find_message": _of(TOPIC, f"consume:topic:{TOPIC}"),
    "cancel_message": _of(TOPIC, f"publish|admin:topic:{TOPIC}"),
    "describe_cluster": _of(""),
    "read_metrics": _of("", "consume|admin:cluster:*"),
    "list_alerts": _of(""),
    "console_history": _of(""),
    "create_token": _of("", "admin:cluster:*"),
    "begin_transaction": _of(""),
    "commit_transaction": _of(""),
    "abort_transaction": _of("", "admin:cluster:*"),  # by its number: without a token
    "describe_transaction": _of(""),
    "list_mirrors": _of("", "consume|admin:cluster:*"),
    "create_mirror": _of("new", "admin:cluster:*", body=_MIRROR),
    "describe_mirror": _of("none", "consume|admin:cluster:*"),
    "alter_mirror": _of("none", "admin:cluster:*"),
    "delete_mirror": _of("none", "admin:cluster:*"),
    "promote_topics": _of("", f"admin:topic:{SPARE}", body={"topics": [SPARE]}),
    "list_tokens": _of("", "admin:cluster:*"),
    "revoke_token": _of("", "admin:cluster:*"),
}
OPEN = {"is_alive", "is_ready"}
"""Operations that ask nobody who they are."""
TELLS_ALL = {"read_metrics", "list_tokens", "list_mirrors", "describe_mirror"}
"""Who may ask for these sees the names of everything."""
SOCKETS: dict[str, HttpCase] = {
    "/subscriptions/{name}/stream": _of(SUB, _CONSUMES_SUB),
    "/queues/{name}/stream": _of(QUEUE, _CONSUMES_QUEUE),
    "/console/live": _of(""),
}
