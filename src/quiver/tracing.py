"""Traces with OpenTelemetry: their context travels in a message's headers, from producer to consumer.

Where the program has set up OpenTelemetry before it makes its producers, each message that is sent gets
a span and carries its context (``traceparent``, as the W3C has it). ``processing`` makes the span of
whoever handles it. Where it has not, nothing is even loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quiver.model.message import Message

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_NAME = "quiver"


def tracer() -> Tracer | None:
    """What makes spans, if the program has set up somewhere for them to go."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - loaded only where it is used

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(_NAME)


class SendSpans:
    """The spans of what is sent to one topic."""

    def __init__(self, maker: Tracer, topic: str) -> None:
        from opentelemetry import propagate, trace  # noqa: PLC0415

        self._maker = maker
        self._inject = propagate.inject
        self._in_span = trace.set_span_in_context
        self._kind = trace.SpanKind.PRODUCER
        self._topic = topic

    def begin(self, headers: dict[str, str]) -> Span:
        """A span for one message, whose context goes into its headers; ``end`` it."""
        span = self._maker.start_span(
            f"send {self._topic}", kind=self._kind, attributes=_attributes("send", self._topic)
        )
        self._inject(headers, context=self._in_span(span))
        return span


def end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


@contextmanager
def processing(message: Message) -> Iterator[None]:
    """Handle a message in a span of its own, which follows that of whoever sent it.

    Without OpenTelemetry the block simply runs.
    """
    maker = tracer()
    if maker is None:
        yield
        return
    from opentelemetry import propagate, trace  # noqa: PLC0415

    attributes = _attributes("process", message.topic) | {
        "messaging.message.id": message.id,
        "messaging.destination.partition.id": str(message.partition),
    }
    if name := getattr(message, "subscription", ""):
        attributes["messaging.destination.subscription.name"] = name
    with maker.start_as_current_span(
        f"process {message.topic}",
        context=propagate.extract(message.headers),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ):
        yield


def _attributes(operation: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": _NAME,
        "messaging.destination.name": topic,
        "messaging.operation.type": operation,
    }
