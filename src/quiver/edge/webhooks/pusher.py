"""Pushes one subscription's messages to its endpoint. A 2xx answer is the ack, 422 rejects.

Any other answer nacks the messages with the reason. They are retried after the subscription's back-off
and dead-lettered in the end, as with any consumer.
"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import msgspec
import structlog

from quiver.aio import TaskSet
from quiver.client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage
from quiver.edge.http.edge import encode
from quiver.edge.http.routes.receive import delivered
from quiver.edge.http.schemas.deliveries import Delivered
from quiver.edge.webhooks.pace import Pace
from quiver.edge.webhooks.signature import HEADER, sign
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import Push
from quiver.version import __version__

_WAIT_S = 20.0
_LEASE_EXTRA_S = 30.0
_ERROR_PAUSE_S = 1.0
_BYTES_MAX = 1 << 20
_REJECTED = 422
"""The status of an answer that says: these messages can never succeed."""
logger = structlog.get_logger()


class _Outcome(msgspec.Struct, frozen=True):
    """What came of one request. ``problem`` is what went wrong, if anything."""

    problem: str | None = None
    is_rejected: bool = False
    retry_after_s: float = 0.0
    """How long the endpoint asks to be left alone."""


class Pusher:
    """Runs until it is cancelled."""

    def __init__(
        self,
        client: AsyncClient,
        subscription: str,
        push: Push,
        secret: bytes | None,
        web: aiohttp.ClientSession,
        clock: Clock,
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._push = push
        self._secret = secret
        self._web = web
        self._clock = clock
        self._pace = Pace(push.concurrency, push.timeout_s / 2)
        self._posts = TaskSet()

    async def run(self) -> None:
        try:
            while True:
                await self._room()
                try:
                    messages = await self._client.receive(
                        self._subscription,
                        self._push.batch,
                        wait=_WAIT_S,
                        visibility=self._push.timeout_s + _LEASE_EXTRA_S,
                        consumer="webhook",
                        max_bytes=_BYTES_MAX,
                    )
                except QuiverError as error:
                    logger.warning(
                        "webhook waits", subscription=self._subscription, code=error.code
                    )
                    await self._clock.sleep(_ERROR_PAUSE_S)
                    continue
                if messages:
                    self._posts.start(self._post(messages))
        finally:
            await self._posts.cancel()

    async def _room(self) -> None:
        """Wait until one more request may be begun."""
        while not self._pace.allowed(now := self._clock.monotonic(), len(self._posts)):
            pause_s = self._pace.wait_s(now)
            if pause_s is not None:
                await self._clock.sleep(pause_s)
            else:
                await self._posts.wait_for_one()

    async def _post(self, messages: list[ReceivedMessage]) -> None:
        began = self._clock.monotonic()
        try:
            outcome = await self._send(encode(Delivered(messages=delivered(messages))))
        except asyncio.CancelledError:
            with contextlib.suppress(QuiverError):
                await self._client.nack(self._subscription, messages, delay=0)
            raise
        self._learn(began, outcome)
        try:
            await self._settle(messages, outcome)
        except QuiverError as error:
            logger.warning(
                "webhook could not settle", subscription=self._subscription, code=error.code
            )

    def _learn(self, began: float, outcome: _Outcome) -> None:
        """Go faster or slower. An endpoint that rejects messages is well."""
        now = self._clock.monotonic()
        if outcome.problem is None or outcome.is_rejected:
            self._pace.succeeded(now - began)
        else:
            self._pace.failed(now, outcome.retry_after_s)

    async def _settle(self, messages: list[ReceivedMessage], outcome: _Outcome) -> None:
        name, problem = self._subscription, outcome.problem
        if problem is None:
            await self._client.ack(name, messages)
            return
        logger.info("webhook failed", subscription=name, reason=problem)
        if outcome.is_rejected:
            await self._client.reject(name, messages, error=problem)
        else:
            await self._client.nack(name, messages, error=problem)

    async def _send(self, body: bytes) -> _Outcome:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"quiver/{__version__}",
            "Quiver-Subscription": self._subscription,
        }
        if self._secret is not None:
            headers[HEADER] = sign(self._secret, self._clock.time_us() // 1_000_000, body)
        try:
            async with self._web.post(
                self._push.url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._push.timeout_s),
            ) as reply:
                if 200 <= reply.status < 300:
                    return _Outcome()
                return _Outcome(
                    f"the endpoint answered {reply.status}",
                    is_rejected=reply.status == _REJECTED,
                    retry_after_s=_seconds(reply.headers.get("Retry-After", "")),
                )
        except TimeoutError:
            return _Outcome(f"the endpoint did not answer within {self._push.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _Outcome(f"the endpoint could not be reached: {type(error).__name__}")


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0
