"""The driver of a follower: asks, and does what the machine makes of the answer.

``stop`` ends following. What has begun to change the log is finished before, so that whoever comes next
finds the log at rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from quiver.cluster.records import NodeId
from quiver.cluster.replica.follower import (
    Append,
    Ask,
    BeginAnew,
    Cut,
    Drop,
    FollowedLog,
    Follower,
    Step,
)
from quiver.cluster.replica.messages import Fetch
from quiver.cluster.replica.network import Network
from quiver.cluster.replica.replica_log import ReplicaLog
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.errors import CorruptLog, NodeGone, QuiverError
from quiver.log.retention import RetentionLimits
from quiver.model.clock import Clock
from quiver.model.ids import Offset

logger = structlog.get_logger()


class MustBeginAnew(Exception):
    """The leader no longer has what this log would need: drop it, and begin at ``offset``."""

    def __init__(self, log: int, offset: Offset) -> None:
        super().__init__(f"log {log} must begin anew at {offset:,}")
        self.log = log
        self.offset = offset


def followed(held: ReplicaLog) -> FollowedLog:
    log = held.log
    return FollowedLog(
        held.history, log.start_offset, log.next_offset, held.watermark, log.stored_from
    )


class FollowerDriver:
    """Follows one log of one partition in one epoch, until it is stopped or fails."""

    def __init__(
        self,
        index: int,
        held: ReplicaLog,
        follower: Follower,
        network: Network,
        clock: Clock,
        settings: ReplicaSettings,
        on_gone: Callable[[NodeId], None],
    ) -> None:
        """``on_gone`` is called whenever the leader's process seems to have ended."""
        self._index = index
        self._held = held
        self._follower = follower
        self._network = network
        self._clock = clock
        self._settings = settings
        self._on_gone = on_gone
        self._wait_s = settings.fetch_wait_s
        self._wait_s_max = settings.idle_wait_s * follower.wait_share(index)
        self._pause_s = settings.pause_s
        self._stopping = False
        self._changing = False

    def start(self) -> asyncio.Task[None]:
        """``run`` in a task, which ``stop`` ends."""
        self._task = asyncio.create_task(self.run())
        return self._task

    def stop(self) -> None:
        """Ask nothing more. A change of the log that has begun goes on to its end."""
        self._stopping = True
        if not self._changing:
            self._task.cancel()

    async def run(self) -> None:
        """``LogFailed`` when this node's disk fails, ``MustBeginAnew`` when the log is of no use."""
        while not self._stopping:
            step = await self._ask()
            if isinstance(step, Append | Cut | Drop):
                self._changing = True
                await self._change(step)
                self._changing = False
            elif isinstance(step, BeginAnew):
                raise MustBeginAnew(self._index, step.offset)
            elif not isinstance(step, Ask):
                await self._pause()
                continue
            self._pause_s = self._settings.pause_s

    async def _pause(self) -> None:
        await self._clock.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._settings.pause_s_max)

    async def _ask(self) -> Step | None:
        wait_s, self._wait_s = self._wait_s, self._settings.fetch_wait_s
        fetch = self._follower.fetch(self._index, self._held.safe_offset, wait_s)
        timeout_s = wait_s + self._settings.fetch_timeout_s
        try:
            reply = await self._network.call(self._follower.leader, fetch, timeout_s)
            step = self._follower.on_reply(self._index, fetch, reply)
            if isinstance(step, Ask) and self._has_all(fetch):
                self._wait_s = min(2 * wait_s, self._wait_s_max)
            return step
        except CorruptLog as error:
            logger.warning("the leader's bytes were not intact", error=error.message)
            return None
        except NodeGone:
            self._on_gone(self._follower.leader)
            return None
        except (QuiverError, OSError):
            return None
        finally:
            self._held.watermark = self._follower.logs[self._index].watermark

    def _has_all(self, asked: Fetch) -> bool:
        """Whether the answer brought nothing, and the next fetch will tell nothing new either."""
        own = self._follower.logs[self._index]
        return own.watermark == asked.watermark and self._held.safe_offset == asked.synced

    async def _change(self, step: Append | Cut | Drop) -> None:
        own, held = self._follower.logs[self._index], self._held
        if isinstance(step, Append):
            await held.append(step.entries)
            own.watermark = held.watermark = step.watermark
            if step.then is not None:
                await self._change(step.then)
        elif isinstance(step, Drop):
            await held.retain(RetentionLimits(before=step.offset))
        else:
            if step.offset < held.watermark and not held.is_to_be_cut(step.offset):
                logger.error(
                    "committed data is dropped: the new leader does not have it",
                    offset=step.offset,
                    watermark=held.watermark,
                )
            await held.truncate(step.offset)
            own.watermark = held.watermark
        log = held.log
        own.start, own.end, own.stored_from = log.start_offset, log.next_offset, log.stored_from
