"""What an altered topic changes in the records of its partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quiver.broker.partition.replicated_placement import partition_id
from quiver.broker.partition.replicated_topics import ReplicatedTopics
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.metadata.store import Put
from quiver.cluster.records import NodeId, PartitionRecord, decode, encode, partition_key
from quiver.model.clock import SystemClock
from quiver.model.topic import Durability, TopicSettings
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test

A, B, C = (NodeId(name) for name in "abc")
SETTINGS = TopicSettings(replicas=3, min_in_sync=2)
BEFORE = PartitionRecord(
    replicas=(A, B, C), leader=A, in_sync=(A,), eligible=(B,), min_in_sync=2, wanted=3
)


async def altered(**settings: object) -> list[PartitionRecord]:
    """The records that are written when a topic of one partition gets other settings."""
    old = TopicRecord(
        name="t", number=1, layout=0, settings=SETTINGS, first_hashes=[0], created_us=0
    )
    new = msgspec.structs.replace(old, settings=msgspec.structs.replace(SETTINGS, **settings))
    store = MemoryStore(SystemClock())
    await store.commit([], [Put(partition_key(partition_id(old, 0)), encode(BEFORE))])
    cluster: Any = SimpleNamespace(store=store)
    placement: Any = None
    changes = await ReplicatedTopics(cluster, placement).on_alter(old, new)
    await store.close()
    return [decode(put.value, PartitionRecord) for _, put in changes if put is not None]


@pytest.mark.parametrize(
    ("settings", "eligible"),
    [
        ({"allow_data_loss": True}, (B,)),
        ({"min_in_sync": 3}, (B,)),
        ({"min_in_sync": 1}, ()),
        ({"durability": Durability.OS}, ()),
    ],
)
@async_test
async def test_only_settings_that_cast_no_doubt_on_it_keep_a_replica_eligible(
    settings: dict[str, object], eligible: tuple[NodeId, ...]
) -> None:
    (record,) = await altered(**settings)
    assert record.eligible == eligible


@async_test
async def test_settings_that_do_not_concern_replicas_change_no_record() -> None:
    assert await altered(message_bytes_max=1000) == []
