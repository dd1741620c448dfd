"""A node's metrics as text, and its alerts.

The text is generated once and kept for a moment, for all who ask. It is generated in pieces, so that
other work runs in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from quiver.aio import SingleFlight
from quiver.broker.alerts.alert import Alert
from quiver.broker.alerts.machine import AlertMachine
from quiver.broker.alerts.service import AlertListener, AlertService
from quiver.broker.broker import Broker
from quiver.broker.topics.internal_topics import ALERTS
from quiver.config import NodeConfig
from quiver.config.alert_rule import rules_in_force
from quiver.edge.cluster_metrics import with_cluster
from quiver.metrics import NodeMetrics
from quiver.metrics.exposition import exposition
from quiver.metrics.processes import with_process
from quiver.metrics.sample import NodeSample
from quiver.model.clock import Clock
from quiver.protocol import AlertInfo, ClusterInfo
from quiver.version import __version__

FRESH_S = 1.0

logger = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class Observability:
    def __init__(
        self,
        config: NodeConfig,
        broker: Broker,
        metrics: NodeMetrics,
        clock: Clock,
        *,
        cluster: Callable[[], ClusterInfo] | None = None,
        forwarders: Callable[[], int] = lambda: 0,
        listeners: Sequence[AlertListener] = (),
        process: int | None = None,
    ) -> None:
        """``cluster`` describes it as this node knows it, where there is one. ``forwarders`` says
        how many there are. ``process`` is its number, if the machine has several."""
        self._process = process
        self._cluster = cluster
        self._forwarders = forwarders
        self._node = config.name
        self._broker = broker
        self._metrics = metrics
        self._clock = clock
        rules = rules_in_force(config.alert_rules, defaults=config.alerts.defaults)
        self._alerts = AlertService(
            AlertMachine(rules if config.alerts.enabled else ()),
            self._sample,
            clock,
            interval_s=config.alerts.interval_s,
            listeners=(self._store, *listeners),
        )
        self._is_evaluating = config.alerts.enabled
        self._text = b""
        self._fresh_until = 0.0
        self._writing: SingleFlight[None, bytes] = SingleFlight()

    def start(self) -> None:
        if self._is_evaluating:
            self._alerts.start()

    async def stop(self) -> None:
        await self._alerts.stop()

    # ------------------------------------------------------------------ metrics

    async def text(self) -> bytes:
        """All metrics, as Prometheus reads them; not older than a second or two."""
        if self._text and self._clock.monotonic() < self._fresh_until:
            return self._text
        return await self._writing.run(None, self._write)

    async def _write(self) -> bytes:
        pieces = []
        for piece in exposition(
            self._metrics,
            await self._sample(),
            node=self._node,
            version=__version__,
            firing=self._alerts.firing_by_severity,
        ):
            pieces.append(piece if self._process is None else with_process(piece, self._process))
            await asyncio.sleep(0)  # others have their turn
        self._text = b"".join(pieces)
        self._fresh_until = self._clock.monotonic() + FRESH_S
        return self._text

    async def _sample(self) -> NodeSample:
        metrics = self._metrics
        sample = msgspec.structs.replace(
            await self._broker.sample(),
            requests=metrics.total(metrics.requests),
            errors=metrics.total(metrics.errors),
            forwarders=self._forwarders(),
        )
        cluster = None if self._cluster is None else self._cluster()
        return with_cluster(sample, cluster, self._node)

    # ------------------------------------------------------------------ alerts

    @property
    def firing(self) -> list[AlertInfo]:
        return [alert_info(alert, self._node) for alert in self._alerts.firing]

    @property
    def recent(self) -> list[AlertInfo]:
        """What cleared lately."""
        return [alert_info(alert, self._node) for alert in self._alerts.recent]

    async def _store(self, alert: Alert) -> None:
        """Anything may subscribe to the broker's topic of alerts."""
        await self._broker.internal.store(ALERTS, alert_json(alert, self._node))


def alert_info(alert: Alert, node: str) -> AlertInfo:
    return AlertInfo(summary=alert.summary, node=node, **msgspec.structs.asdict(alert))


def alert_json(alert: Alert, node: str) -> bytes:
    """What a webhook and the topic of alerts get."""
    return _encode(alert_info(alert, node))
