"""A forwarder announces itself to every node, every few seconds, for as long as it runs.

It uses the forwarder's own token, from ``QUIVER_TOKEN``. The answers name the live nodes, and the
forwarders that are to call webhooks. Without a token that the nodes accept, a forwarder serves its
clients all the same, but is not listed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import msgspec
import structlog

from quiver.aio import cancel_and_wait
from quiver.client.transport.access import Access
from quiver.client.transport.cluster import expect
from quiver.client.transport.dialer import SocketDialer
from quiver.client.transport.pool import Pool
from quiver.edge.relay.upstream_nodes import UpstreamNodes
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.protocol import Announce, Announced

ANNOUNCE_S = 2.0
_ANSWER_S = 3.0
_REFUSED_S = 30.0
"""A node that refused the forwarder is asked again after this long."""

logger = structlog.get_logger()


class Announcer:
    """``start`` it, and ``stop`` it in the end: the nodes then forget the forwarder at once."""

    def __init__(
        self, announce: Callable[[], Announce], nodes: UpstreamNodes, access: Access, clock: Clock
    ) -> None:
        self._announce = announce
        self._instance = announce().instance
        self._nodes = nodes
        self._clock = clock
        self._pool = Pool(SocketDialer(access), nodes.addresses, clock=clock)
        self._callers: dict[str, list[str]] = {}
        """Who is to call webhooks, by the node that said so in the last round."""
        self._not_before: dict[str, float] = {}
        self._refusal = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        await self._pool.close()

    def calls_webhooks_of(self, subscription: str) -> bool:
        """Whether this forwarder, of all that could, calls the webhook of a subscription."""
        callers = {one for some in self._callers.values() for one in some}
        return self._instance in callers and chosen(subscription, callers) == self._instance

    async def _run(self) -> None:
        while True:
            await self._announce_to(self._nodes.addresses)
            if not self._callers:  # none of these answered: the nodes may be others by now
                await self._announce_to(self._nodes.in_turn())
            await self._clock.sleep(ANNOUNCE_S)

    async def _announce_to(self, addresses: list[str]) -> None:
        now = self._clock.monotonic()
        due = [one for one in addresses if self._not_before.get(one, 0.0) <= now]
        answers = await asyncio.gather(*map(self._ask, due))
        self._not_before = {one: at for one, at in self._not_before.items() if at > now}
        self._callers = {
            address: answer.webhook_callers
            for address, answer in zip(due, answers, strict=True)
            if answer is not None
        }
        for answer in answers:
            if answer is not None:
                self._nodes.learn(answer.nodes)

    async def _ask(self, address: str) -> Announced | None:
        """The answer of a node; ``None`` if there is none in time, or it refused."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                channel = await self._pool.channel(address)
                reply, _ = await channel.call(msgspec.structs.replace(self._announce()))
            return expect(Announced, reply)
        except TimeoutError:
            return None
        except QuiverError as error:
            if not error.retryable:
                self._refused(address, error)
            return None

    def _refused(self, address: str, error: QuiverError) -> None:
        """Say so once, and leave the node alone for a while: wrong tokens are counted."""
        self._not_before[address] = self._clock.monotonic() + _REFUSED_S
        if error.code != self._refusal:
            self._refusal = error.code
            logger.warning("the nodes do not list this forwarder", reason=error.message)


def chosen(subscription: str, instances: set[str]) -> str:
    """The one of several instances that is responsible: all who know the same agree on it."""
    return max(
        instances, key=lambda one: hashlib.blake2b(f"{subscription} {one}".encode()).digest()
    )
