"""What a sink of an earlier version did: it staged rows, decided, and published what was decided."""

from __future__ import annotations

import msgspec

from quiver.client import Client
from quiver.client.transport.cluster import expect
from quiver.model.builder import encode_record_batch
from quiver.model.topic import Retention
from quiver.protocol import OpenProducer, ProducerOpened
from quiver.spark.write.rows import messages_of
from quiver.spark.write.staged.cleanup import STAGING_PARTITIONS, staging_topic
from quiver.spark.write.staged.decisions import Decision, StagedEntry, Target
from quiver.spark.write.staged.publish import publish_staged


class StagingSink:
    """One query of that version, which writes to the partitions of a topic in turn."""

    def __init__(self, client: Client, name: str, topic: str) -> None:
        self.client = client
        self.name = name
        self.topic = topic
        self.partitions = len(client.describe_topic(topic).partitions)

        async def opened(inner):
            _, (reply, _) = await inner.cluster.call(OpenProducer(), repeatable=True)
            return expect(ProducerOpened, reply).producer_id

        self.producer_id = client.run(opened)

    def stage(self, batch: int, rows) -> tuple[int, list[StagedEntry]]:
        """Stage rows in as many entries as there are batches of them."""
        staging = staging_topic(self.name, batch)
        info = self.client.create_topic(
            staging, partitions=STAGING_PARTITIONS, retention=Retention(age=None), exist_ok=True
        )
        entries = []
        with self.client.producer(staging) as producer:
            for number, some in enumerate(rows):
                encoded = encode_record_batch(messages_of(some))
                offset = producer.send_encoded(encoded, number % STAGING_PARTITIONS).result().offset
                place = self.topic, number % self.partitions
                entry = StagedEntry(number % STAGING_PARTITIONS, offset, len(some), *place)
                entries.append(entry)
        return info.number, entries

    def decide(self, batch: int, number: int, entries: list[StagedEntry]) -> Decision:
        self.client.create_topic(self.name, exist_ok=True)
        decision = Decision(
            batch=batch,
            producer_id=self.producer_id,
            staging_number=number,
            entries=entries,
            targets=[Target(self.topic, partition, 0) for partition in range(self.partitions)],
        )
        self.client.publish(self.name, msgspec.json.encode(decision))
        return decision

    def publish(self, decision: Decision, count: int) -> None:
        """Publish the first entries of a decision, as a driver that dies then."""
        part = msgspec.structs.replace(decision, entries=decision.entries[:count])
        staging = staging_topic(self.name, decision.batch)
        self.client.run(lambda inner: publish_staged(inner, staging, part))
