"""What tests of mirrors begin with."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from quiver.broker.topics.catalog import TopicRecord
from quiver.model.mirror.origin import Origin
from quiver.model.topic import TopicSettings

ORIGIN = Origin(mirror="eu", cluster="c1", topic="orders", number=7)
_TOPIC = TopicRecord(
    name="orders", number=1, layout=1, settings=TopicSettings(), created_us=0, first_hashes=[0]
)


def topic_record(**given: Any) -> TopicRecord:
    """A topic with one partition; a copy if it is given an ``origin``."""
    return replace(_TOPIC, **given)
