"""Posts alerts that fire or clear to one endpoint, one POST each.

The endpoint must be one that webhooks may go to. A failed POST is retried a few times; later alerts
wait.
"""

from __future__ import annotations

import aiohttp
import structlog

from quiver.broker.alerts.alert import Alert
from quiver.edge.observability import alert_json
from quiver.edge.webhooks.guarded import guarded_session
from quiver.edge.webhooks.targets import Targets
from quiver.errors import Unavailable
from quiver.model.clock import Clock
from quiver.version import __version__

_TIMEOUT_S = 10.0
_PAUSES_S = (1.0, 5.0, 15.0)
"""Between one attempt and the next."""

logger = structlog.get_logger()


class AlertWebhook:
    def __init__(self, url: str, targets: Targets, node: str, clock: Clock) -> None:
        """``InvalidSetting`` if webhooks may not go there."""
        targets.require(url)
        self._url = url
        self._targets = targets
        self._node = node
        self._clock = clock

    async def send(self, alert: Alert) -> None:
        body = alert_json(alert, self._node)
        for pause_s in (*_PAUSES_S, None):
            problem = await self._post(body)
            if problem is None:
                return
            logger.info("alert webhook failed", rule=alert.rule, reason=problem)
            if pause_s is not None:
                await self._clock.sleep(pause_s)
        raise Unavailable(f"the alert webhook refused it: {problem}")

    async def _post(self, body: bytes) -> str | None:
        """What went wrong, if anything. Alerts are rare: each has a connection of its own."""
        headers = {"Content-Type": "application/json", "User-Agent": f"quiver/{__version__}"}
        try:
            async with (
                guarded_session(self._targets) as web,
                web.post(
                    self._url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
                ) as reply,
            ):
                return None if 200 <= reply.status < 300 else f"it answered {reply.status}"
        except TimeoutError:
            return f"it did not answer within {_TIMEOUT_S:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"it could not be reached: {type(error).__name__}"
