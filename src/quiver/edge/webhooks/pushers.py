"""The node's pushers: one for each subscription with a push endpoint, kept in step with its settings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import aiohttp
import structlog

from quiver.aio import cancel_and_wait
from quiver.client import AsyncClient
from quiver.config import Web
from quiver.edge.webhooks.guarded import guarded_session
from quiver.edge.webhooks.pusher import Pusher
from quiver.edge.webhooks.secrets import WebhookSecrets
from quiver.edge.webhooks.targets import Targets
from quiver.errors import InvalidSetting, QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import Push

LOOK_S = 1.0
logger = structlog.get_logger()
_Wanted = tuple[Push, bytes | None]


class Pushers:
    def __init__(
        self,
        client: AsyncClient,
        web: Web,
        clock: Clock,
        is_mine: Callable[[str], bool] = lambda subscription: True,
    ) -> None:
        """``is_mine`` says which subscriptions this node pushes, of several that could."""
        self._client = client
        self._is_mine = is_mine
        self._secrets = WebhookSecrets(web.webhook_secrets)
        self._clock = clock
        self._targets = Targets(web.webhook_targets)
        self._running: dict[str, tuple[_Wanted, asyncio.Task[None]]] = {}
        self._refused: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End every push; what was not acknowledged goes back."""
        await cancel_and_wait(self._task)
        self._task = None
        await self._client.close()

    async def _run(self) -> None:
        async with guarded_session(self._targets) as web:
            try:
                while True:
                    with contextlib.suppress(QuiverError):
                        await self._adjust(web)
                    await self._clock.sleep(LOOK_S)
            finally:
                await self._end(list(self._running))

    async def _adjust(self, web: aiohttp.ClientSession) -> None:
        wanted: dict[str, _Wanted] = {}
        for info in await self._client.list_subscriptions():
            push = info.settings.push
            if push is not None and self._is_mine(info.name):
                with contextlib.suppress(InvalidSetting):
                    wanted[info.name] = push, await self._checked(info.name, push)
        changed = [name for name, (was, _) in self._running.items() if wanted.get(name) != was]
        await self._end(changed)
        for name, (push, secret) in wanted.items():
            if name not in self._running:
                pusher = Pusher(self._client, name, push, secret, web, self._clock)
                self._running[name] = (push, secret), asyncio.create_task(pusher.run())

    async def _checked(self, name: str, push: Push) -> bytes | None:
        """The secret to sign with; ``InvalidSetting``, once in the log, if it cannot be pushed."""
        try:
            self._targets.require(push.url)
            secret = None
            if push.secret is not None:
                secret = await asyncio.to_thread(self._secrets.read, push.secret)
            self._refused.pop(name, None)
            return secret
        except InvalidSetting as error:
            if self._refused.get(name) != error.message:
                logger.warning("webhook is not pushed", subscription=name, reason=error.message)
                self._refused[name] = error.message
            raise

    async def _end(self, names: list[str]) -> None:
        await cancel_and_wait(*[self._running.pop(name)[1] for name in names])
