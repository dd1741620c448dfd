"""The mirrors that run on this node: begun, ended and adjusted as definitions and leaders change."""

from __future__ import annotations

import asyncio

import structlog

from quiver.aio import cancel_and_wait, report_unexpected
from quiver.broker.mirror.catalog import MirrorRecord
from quiver.broker.mirror.mirrors import described
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.running_mirror import RunningMirror
from quiver.errors import QuiverError
from quiver.protocol import MirrorInfo

LOOK_S = 0.2
"""How often it is looked whether there is something else to copy."""

logger = structlog.get_logger()


class MirrorRunner:
    """Between ``start`` and ``stop``."""

    def __init__(self, environment: MirrorEnvironment) -> None:
        self.environment = environment
        self._catalog = environment.mirrors.catalog
        self._running: dict[str, RunningMirror] = {}
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        self._task = None
        for name in list(self._running):
            await self._running.pop(name).stop()

    async def _run(self) -> None:
        while True:
            try:
                await self._adjust()
            except (QuiverError, OSError) as error:
                logger.error("mirrors cannot be run", error=str(error))
            except Exception as error:
                report_unexpected("mirrors cannot be run", error)
            await self.environment.clock.sleep(LOOK_S)

    async def _adjust(self) -> None:
        async with self._turn:
            wanted = {one.name: one for one in self._catalog.all()}
            for name, running in list(self._running.items()):
                if wanted.get(name) != running.record:
                    await running.stop()
                    del self._running[name]
            for name, record in wanted.items():
                if name not in self._running:
                    self._running[name] = self._begun(record)
                self._running[name].adjust()

    def _begun(self, record: MirrorRecord) -> RunningMirror:
        running = RunningMirror(record, self.environment)
        running.start()
        return running

    # ------------------------------------------------------------------ what an operator sees

    @property
    def running(self) -> list[RunningMirror]:
        return list(self._running.values())

    async def get(self, name: str) -> RunningMirror | None:
        """A mirror that copies here, with the settings and the token that it has now.

        ``None`` if it is paused, or was removed.
        """
        await self._adjust()
        running = self._running.get(name)
        return None if running is None or running.record.settings.paused else running

    def describe(self, name: str) -> MirrorInfo:
        """A mirror as this node sees it; ``MirrorNotFound`` if there is none of this name.

        It is not ``paused`` as long as something of it is still copied here.
        """
        defined = described(self._catalog.get(name))
        running = self._running.get(name)
        if running is None:
            return defined
        found = running.describe()
        found.settings, found.has_token = defined.settings, defined.has_token
        return found

    def describe_all(self) -> list[MirrorInfo]:
        return [self.describe(one.name) for one in sorted(self._catalog.all(), key=_name)]


def _name(record: MirrorRecord) -> str:
    return record.name
