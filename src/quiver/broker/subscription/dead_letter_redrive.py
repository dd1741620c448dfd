"""Redrive by subscription: finds the queue of its dead letters, and sends them back or counts them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import structlog

from quiver.aio import TaskSet
from quiver.broker.remote.partition_router import PartitionRouter
from quiver.broker.subscription.catalog import SubscriptionRecord, covers, dead_letter_topic
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.broker.subscription.leaders import SubscriptionLeaders
from quiver.broker.subscription.redrive import Redrive, Redriven
from quiver.broker.topics.internal_topics import require_users_own
from quiver.model.filter import Filter

logger = structlog.get_logger()


class DeadLetterRedrive:
    def __init__(
        self,
        leaders: SubscriptionLeaders,
        directory: SubscriptionDirectory,
        router: PartitionRouter,
    ) -> None:
        self._leaders = leaders
        self._catalog = leaders.catalog
        self._topics = leaders.topics
        self._directory = directory
        self._router = router
        self._moves = TaskSet()

    async def close(self) -> None:
        """End what is under way. Letters that were not acknowledged stay where they are."""
        await self._moves.cancel()

    async def redrive(
        self,
        name: str,
        *,
        to: str | None,
        condition: Filter | None,
        dry_run: bool,
        messages_max: int,
    ) -> Redriven:
        """Send dead letters back, or count those that a redrive would send."""
        letters = dead_letter_topic(name, self._catalog.get(name).settings)
        self._leaders.require_delivering(name)
        await (await self._directory.get(name)).wait_for_dead_letters()
        if to is not None:
            require_users_own(to)
            self._topics.get(to)
        if not self._catalog.has(letters):
            if not self._holds_letters(name):
                return Redriven(0, {})
            letters = name
        self._leaders.require_delivering(letters)
        subscription = await self._directory.get(letters)
        redrive = Redrive(
            self._topics, self._router, partial(self._may_return, letters), self._moves
        )
        if dry_run:
            return await redrive.count(subscription, condition, to)
        redriven = await redrive.step(subscription, condition, to, messages_max)
        if redriven.count:
            logger.info(
                "dead letters redriven",
                subscription=name,
                messages=redriven.count,
                topics=sorted(redriven.by_topic),
            )
        return redriven

    def queue_of(self, name: str) -> str | None:
        """The queue that a redrive of this subscription takes from, if there is one."""
        letters = dead_letter_topic(name, self._catalog.get(name).settings)
        return letters if self._catalog.has(letters) else None

    def shared_queue_of(self, name: str) -> str | None:
        """That queue, if it was named in the settings or other subscriptions use it too."""
        if not self._catalog.has(name):
            return None
        letters = dead_letter_topic(name, self._catalog.get(name).settings)
        users = {record.name for record in self._with_letters(letters)}
        return None if letters == f"{name}.dlq" and users == {name} else letters

    def _holds_letters(self, name: str) -> bool:
        """Whether this is the queue for the dead letters of others."""
        return any(self._with_letters(name))

    def _may_return(self, letters: str, topic: str) -> bool:
        """Whether a subscription whose dead letters are in this queue reads the topic."""
        return any(
            covers(record.name, record.settings, topic) for record in self._with_letters(letters)
        )

    def _with_letters(self, queue: str) -> Iterator[SubscriptionRecord]:
        """The subscriptions whose dead letters are in this queue."""
        return (
            record
            for record in self._catalog.all()
            if dead_letter_topic(record.name, record.settings) == queue
        )
