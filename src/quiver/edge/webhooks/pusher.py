"""Pushes one subscription's messages to its endpoint. A 2xx answer is the ack, 422 rejects.

An answer of 207 says of each message what became of it. Any other answer nacks the messages with the
reason. They are retried after the subscription's back-off and dead-lettered in the end, as with any
consumer. The messages come from a consumer's session, which has credit for the requests that may be
begun, and keeps the leases while an endpoint works. A message that failed before is sent alone, so that
it takes no other to the dead letters.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import groupby

import aiohttp
import msgspec
import structlog

from quiver.aio import TaskSet
from quiver.client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage, leases_of
from quiver.client.consumer.relay.relay import Relay, open_relay
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.edge.http.edge import encode
from quiver.edge.http.routes.receive import delivered
from quiver.edge.http.schemas.deliveries import Delivered
from quiver.edge.webhooks.answer import (
    ANSWER_BYTES_MAX,
    PARTIAL,
    UnreadableAnswer,
    settlements_in,
)
from quiver.edge.webhooks.pace import Pace
from quiver.edge.webhooks.signature import HEADER, sign
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import Push
from quiver.version import __version__

_VISIBILITY_MS = 30_000
"""How long other nodes trust the session without a sign of life."""
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
    answer: bytes | None = None
    """Of an answer that tells the messages apart."""

    @property
    def is_failure(self) -> bool:
        """Whether the endpoint is not well. One that rejects messages is."""
        return self.problem is not None and not self.is_rejected


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
        while True:
            try:
                await self._push_from(await open_relay(self._client, self._terms))
            except QuiverError as error:
                logger.warning("webhook waits", subscription=self._subscription, code=error.code)
            await self._clock.sleep(_ERROR_PAUSE_S)

    @property
    def _terms(self) -> SessionTerms:
        return SessionTerms(
            subscription=self._subscription,
            consumer="webhook",
            bytes_max=_BYTES_MAX,
            visibility_ms=_VISIBILITY_MS,
        )

    async def _push_from(self, relay: Relay) -> None:
        """Push until the session ends. What was not answered by then is returned uncounted."""
        try:
            while True:
                relay.credit.set(self._push.batch * await self._room(relay))
                messages = await relay.next_messages(self._push.batch)
                self._posts.start(self._post_in_turn(relay, messages))
        finally:
            await self._posts.cancel()
            with contextlib.suppress(QuiverError):  # the log has it; they come again
                await relay.close()

    async def _room(self, relay: Relay) -> int:
        """Wait until requests may be begun; how many. Meanwhile nothing is kept from others."""
        while not (room := self._pace.room(now := self._clock.monotonic(), len(self._posts))):
            relay.credit.set(0)
            pause_s = self._pace.wait_s(now)
            if pause_s is not None:
                await self._clock.sleep(pause_s)
            else:
                await self._posts.wait_for_one()
        return room

    async def _post_in_turn(self, relay: Relay, messages: list[ReceivedMessage]) -> None:
        """Post new messages together and the others alone, in order, until one request fails."""
        requests = deque(_requests(messages))
        while requests:
            outcome = await self._post(relay, requests.popleft())
            if outcome.is_failure:
                break
        for unsent in requests:
            relay.settlements.give_back(leases_of(unsent))

    async def _post(self, relay: Relay, messages: list[ReceivedMessage]) -> _Outcome:
        began = self._clock.monotonic()
        deadline_us = self._clock.time_us() + relay.visibility_us
        body = encode(Delivered(messages=delivered(messages, deadline_us)))
        outcome = await self._send(body)
        settlements = [(self._kind(outcome), messages)]
        if outcome.answer is not None:
            try:
                settlements = settlements_in(outcome.answer, messages)
            except UnreadableAnswer as error:
                outcome = _Outcome(f"the endpoint's answer of {PARTIAL} is not valid: {error}")
                settlements = [(self._kind(outcome), messages)]
        self._learn(began, outcome)
        for kind, some in settlements:
            relay.settlements.settle_all(kind, leases_of(some))
        return outcome

    def _learn(self, began: float, outcome: _Outcome) -> None:
        """Go faster or slower."""
        now = self._clock.monotonic()
        if outcome.is_failure:
            self._pace.failed(now, outcome.retry_after_s)
        else:
            self._pace.succeeded(now - began)

    def _kind(self, outcome: _Outcome) -> Kind:
        """What is done with the messages of a request."""
        problem = outcome.problem
        if problem is None:
            return ACK
        logger.info("webhook failed", subscription=self._subscription, reason=problem)
        return Kind("reject" if outcome.is_rejected else "nack", error=problem)

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
                if reply.status == PARTIAL:
                    return _Outcome(answer=await _body_of(reply))
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


def _requests(messages: list[ReceivedMessage]) -> Iterator[list[ReceivedMessage]]:
    """Messages in order, as they are sent: those that were delivered before are alone."""
    for is_new, some in groupby(messages, key=lambda one: one.deliveries == 1):
        if is_new:
            yield list(some)
        else:
            yield from ([one] for one in some)


async def _body_of(reply: aiohttp.ClientResponse) -> bytes:
    """The body, or a little more than is allowed of it."""
    body = b""
    async for part in reply.content.iter_chunked(1 << 16):
        body += part
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
    return body


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0
