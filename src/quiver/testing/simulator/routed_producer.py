"""A producer that sends each value to the partition of its key, whatever is split meanwhile."""

from __future__ import annotations

import asyncio

from quiver.cluster.records import PartitionId
from quiver.errors import ProducerError, QuiverError, StaleLayout
from quiver.model.key_hash import KeyRouter
from quiver.protocol import TopicInfo
from quiver.testing.simulator.broker_clients import BrokerClient, key_of, place_of
from quiver.testing.simulator.clients import REFUSALS_MAX, REFUSED_SECONDS, Producer
from quiver.testing.simulator.history import Send


class RoutedProducer(Producer):
    """The partition it is given names the topic."""

    _client: BrokerClient

    async def run(self) -> None:
        topic, _ = place_of(self._partition)
        self._topic = topic
        self._layout: TopicInfo | None = None
        producer, number, self._sequences = next(self._ids), 0, dict[int, int]()
        while not self.stopping:
            sends = self._begin(producer, number)
            if await self._deliver_routed(producer, sends):
                number += len(sends)
            else:
                producer, number, self._sequences = next(self._ids), 0, {}
            await asyncio.sleep(self._client.rng.uniform(*self._pause_s))

    async def _deliver_routed(self, producer: int, sends: list[Send]) -> bool:
        """Partition by partition; what may be stored in one is never sent to another."""
        left, refused = list(sends), 0
        deadline = self._client.loop.time() + self._patience_s
        while left and self._client.loop.time() < deadline and not self.is_gone:
            try:
                layout = self._layout or await self._client.topic(self._topic)
                self._layout = layout
                index, group = self._next_group(layout, left)
                partition = PartitionId(f"{self._topic}/{index}")
                for send in group:
                    send.partition = partition
                sequence = self._sequences.get(index, 0)
                values = tuple(send.value for send in group)
                stored = await self._client.publish(
                    partition, producer, sequence, values, layout.layout
                )
            except StaleLayout as error:
                if "layout" in error.details:
                    self._layout = None  # and nothing of it is stored, or ever will be
                await self._client.rest()
            except ProducerError as error:
                refused += 1
                if refused > REFUSALS_MAX:
                    self._history.trouble.append(f"{error.code} of {left[0].value} ({error})")
                    return False
                await asyncio.sleep(REFUSED_SECONDS)
            except QuiverError:
                await self._client.rest()
            else:
                self._confirmed(group, stored)
                self._sequences[index] = sequence + len(group)
                left = [send for send in left if send not in group]
        for send in left:
            send.ended = self._client.loop.time()
        return not left

    def _next_group(self, layout: TopicInfo, left: list[Send]) -> tuple[int, list[Send]]:
        """The partition of the first of these, and all that belong there."""
        router = KeyRouter.of([one.first_hash for one in layout.partitions])
        places = [router.partition(key_of(send.value).encode()) for send in left]
        return places[0], [
            send for send, place in zip(left, places, strict=True) if place == places[0]
        ]
