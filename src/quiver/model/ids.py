"""Names for the numbers that travel through Quiver, so that an offset is never taken for an epoch."""

from __future__ import annotations

from typing import NewType

TopicName = NewType("TopicName", str)
PartitionIndex = NewType("PartitionIndex", int)
Offset = NewType("Offset", int)
"""A message's place in its partition: 0, 1, 2, … without gaps."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Grows with each change of a partition's leader."""

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
"""A producer's running number of messages within one partition."""

Microseconds = NewType("Microseconds", int)
"""A point in time: microseconds since 1970-01-01 UTC."""
EVER = Microseconds(1 << 62)
"""After every point in time."""

NO_SEQUENCE = Sequence(-1)
"""Of a batch of a transaction that is never taken for a repeat."""

NO_PRODUCER = ProducerId(0)
"""The id of a batch whose producer keeps no session: such batches are never deduplicated by sequence."""
