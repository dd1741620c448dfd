"""Topics of a source, followed by one node of the cluster that copies them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quiver.broker.mirror.catalog import MirrorRecord
from quiver.broker.mirror.definition_copy import DefinitionCopy
from quiver.broker.topics.catalog import TopicRecord
from quiver.model.ids import Offset
from quiver.model.key_hash import HASHES
from quiver.model.layout import Split
from quiver.model.mirror.settings import MirrorSettings
from quiver.model.topic import TopicSettings
from quiver.protocol import PartitionInfo, SourceDescribed, TopicInfo
from tests.aio import async_test
from tests.unit.broker.mirror.mirror_doubles import ORIGIN, topic_record

COPY = topic_record(origin=ORIGIN)
SPLIT = TopicInfo(
    name="orders",
    number=7,
    layout=2,
    settings=TopicSettings(),
    created_us=0,
    partitions=[
        PartitionInfo(index=0, first_hash=0),
        PartitionInfo(index=1, first_hash=HASHES // 2, parent=0, parent_offset=5),
    ],
)


class Catalog:
    """It has one copy."""

    def named(self, names: list[str]) -> list[TopicRecord]:
        return [COPY]

    def get(self, name: str) -> TopicRecord:
        return COPY

    def topics(self) -> list[TopicRecord]:
        return [COPY]


class Topics:
    def __init__(self) -> None:
        self.splits: list[Split] = []

    async def follow_split(self, record: TopicRecord, split: Split) -> None:
        self.splits.append(split)


@pytest.mark.parametrize("leads", [True, False])
@async_test
async def test_a_split_of_a_partition_that_is_not_led_here_is_left_to_be_done(leads: bool) -> None:
    topics = Topics()
    settings = MirrorSettings(source="quiver://127.0.0.1:1", topics=["orders"])
    copy = DefinitionCopy(
        MirrorRecord(name="eu", number=1, settings=settings, created_us=0),
        "c2",
        cast(Any, Catalog()),
        cast(Any, None),
        cast(Any, topics),
        cast(Any, None),
        leads=lambda record, index: leads,
        now_us=lambda: 0,
    )
    source = SourceDescribed(cluster="c1", version="1", topics=[SPLIT])
    await copy.follow(source, cast(Any, None), decides=True)
    expected = [Split(parent=0, child=1, offset=Offset(5), layout=2)]
    assert topics.splits == (expected if leads else [])
    assert copy.is_settled is leads
    assert not copy.errors, "it is no fault: the node that leads it does it"


@pytest.mark.parametrize("cluster", ["c1", "c9"])
@async_test
async def test_what_another_cluster_in_the_place_of_the_source_lacks_is_not_gone(
    cluster: str,
) -> None:
    settings = MirrorSettings(source="quiver://127.0.0.1:1", topics=["orders"])
    copy = DefinitionCopy(
        MirrorRecord(name="eu", number=1, settings=settings, created_us=0),
        "c2",
        *(cast(Any, one) for one in (Catalog(), None, None, None)),
        leads=lambda record, index: True,
        now_us=lambda: 0,
    )
    gone = copy.gone(SourceDescribed(cluster=cluster, version="1", topics=[]))
    assert gone == ([COPY] if cluster == ORIGIN.cluster else [])
