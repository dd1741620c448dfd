"""Traces from producer to consumer, with the real OpenTelemetry SDK in a process of its own.

The program sets a provider for the whole process, so that it cannot be this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node

PROGRAM = """
import json, sys
SET_UP = sys.argv[2] == "traced"
if SET_UP:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

import quiver
import quiver.errors
from quiver import tracing
with quiver.open(sys.argv[1]) as q:
    q.create_queue("emails")
    if SET_UP:
        with trace.get_tracer("test").start_as_current_span("request"):
            q.publish("emails", {"n": 1}, headers={"mine": "kept"})
    else:
        q.publish("emails", {"n": 1})
    (message,) = q.receive("emails", wait="20s")
    with tracing.processing(message):
        message.ack()
    if SET_UP:
        try:
            q.publish("emails", "x" * (2 << 20))
        except quiver.errors.QuiverError:
            pass
spans = [
    {
        "name": span.name,
        "kind": span.kind.name,
        "status": span.status.status_code.name,
        "trace": span.context.trace_id,
        "id": span.context.span_id,
        "parent": span.parent.span_id if span.parent else None,
        "attributes": dict(span.attributes),
    }
    for span in (exporter.get_finished_spans() if SET_UP else ())
]
loaded = "opentelemetry.trace" in sys.modules
print(json.dumps({"spans": spans, "headers": message.headers, "loaded": loaded}))
"""


def run(folder: Path, how: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "data"), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.process
def test_the_context_travels_from_producer_to_consumer(tmp_path: Path) -> None:
    told = run(tmp_path, "traced")
    spans = {(span["name"], span["status"]): span for span in told["spans"]}  # type: ignore[attr-defined]
    request = spans["request", "UNSET"]
    sent, processed = spans["send emails", "UNSET"], spans["process emails", "UNSET"]
    assert (sent["kind"], processed["kind"]) == ("PRODUCER", "CONSUMER")
    assert [sent["parent"], processed["parent"]] == [request["id"], sent["id"]]
    assert request["trace"] == sent["trace"] == processed["trace"]
    assert processed["attributes"]["messaging.destination.subscription.name"] == "emails"
    headers = told["headers"]
    assert isinstance(headers, dict)
    assert headers["mine"] == "kept"
    assert headers["traceparent"].startswith(f"00-{sent['trace']:032x}-{sent['id']:016x}-")


@pytest.mark.process
def test_a_message_that_is_not_stored_ends_its_span_with_the_error(tmp_path: Path) -> None:
    told = run(tmp_path, "traced")
    failed = [span for span in told["spans"] if span["status"] == "ERROR"]  # type: ignore[attr-defined]
    assert [span["name"] for span in failed] == ["send emails"]


@pytest.mark.process
def test_without_a_set_up_nothing_is_loaded_and_nothing_added(tmp_path: Path) -> None:
    assert run(tmp_path, "plain") == {"spans": [], "headers": {}, "loaded": False}


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("asked", "own", "carried"),
    [
        (TRACE, {}, {"traceparent": TRACE}),
        (TRACE, {"a": "b"}, {"traceparent": TRACE, "a": "b"}),
        (TRACE, {"traceparent": "mine"}, {"traceparent": "mine"}),
        ("nonsense", {}, {}),
    ],
)
@edge_test
async def test_over_http_a_message_carries_the_trace_of_its_request(
    asked: str, own: dict[str, str], carried: dict[str, str], tmp_path: Path
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue("emails")
        message = {"message": 1, "headers": own}
        for body in (message, [message]):
            sent = await node.http.post(
                "/queues/emails/messages", json=body, headers={"traceparent": asked}
            )
            assert sent.status_code == 201, sent.text
        received = await node.received("emails", batch_size=10, wait=20)
        assert [one.get("headers", {}) for one in received] == [carried] * 2
