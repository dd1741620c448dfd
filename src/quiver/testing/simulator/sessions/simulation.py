"""One seed with real brokers whose consumers have sessions, and whose processes end in every way."""

from __future__ import annotations

from random import Random

import msgspec

from quiver.model.subscription import SubscriptionSettings
from quiver.testing.simulator.broker_simulation import BrokerSimulation
from quiver.testing.simulator.sessions.audit import SessionAudit
from quiver.testing.simulator.sessions.consumers import SessionConsumer, World

_CONSUMERS = 3
_VISIBILITIES_S = (1.0, 2.0, 8.0)


class SessionSimulation(BrokerSimulation):
    def _choose_queues(self) -> dict[str, SubscriptionSettings]:
        return {
            name: msgspec.structs.replace(queue, visibility=self._rng.choice(_VISIBILITIES_S))
            for name, queue in super()._choose_queues().items()
        }

    def _start_consumers(self) -> None:
        nodes = [node.name for node in self._nodes]
        world = World(nodes, self._loop, self._network, self.history)
        for queue, settings in self._queues.items():
            for number in range(_CONSUMERS):
                rng = Random(self._rng.random())
                consumer = SessionConsumer(f"{queue}-{number}", queue, settings, world, rng)
                self._consumers.append(consumer)
                self._loop.create_task(consumer.run())
        audit = SessionAudit(self._nodes, self._queues, self.history, self._loop)
        self._loop.create_task(audit.run())
