"""The driver of the controller: takes the office when it is free, and carries out what is due.

The office is a key under the node's lease. Every change expects that key at the revision at which
this node took it: whoever held it before, and has not noticed, changes nothing.
"""

from __future__ import annotations

import structlog

from quiver.cluster.controller import Change, ClusterState, Controller, ControllerSettings
from quiver.cluster.metadata import Expect, LeaseId, MetadataStore, Put
from quiver.cluster.records import (
    CONTROLLER,
    NOBODY,
    ControllerRecord,
    NodeId,
    SessionId,
    encode,
    partition_key,
)
from quiver.cluster.signal import Signal
from quiver.errors import MetadataConflict, MetadataError
from quiver.model.clock import Clock

_INTERVAL_SECONDS = 1.0
_AGAIN_SECONDS = 0.5

logger = structlog.get_logger()


class Controlling:
    """Let ``run`` run; tell it of each state and each session."""

    def __init__(
        self, node: NodeId, store: MetadataStore, clock: Clock, settings: ControllerSettings
    ) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._settings = settings
        self._state = ClusterState()
        self._session = NOBODY
        self._controller: Controller | None = None
        self._changed = Signal(clock)
        self._free_office = 0

    def on_state(self, state: ClusterState, session: SessionId) -> None:
        self._state, self._session = state, session
        self._changed.wake()

    def on_suspect(self, node: NodeId) -> None:
        """That node seems to be gone: if it controls, its office is free for whoever is quicker."""
        office = self._state.controller
        if office is not None and office.node == node != self._node:
            self._free_office = self._state.controller_revision
            self._changed.wake()

    async def run(self) -> None:
        while True:
            seen = self._state
            try:
                await self._round()
            except MetadataConflict:
                pass  # the state has moved on, and will be seen here too
            except MetadataError as error:
                logger.warning("the controller cannot act", error=error.message)
                await self._clock.sleep(_AGAIN_SECONDS)
            if seen is self._state:
                await self._changed.wait(_INTERVAL_SECONDS)

    async def _round(self) -> None:
        if self._session == NOBODY:
            self._controller = None
        elif self._state.controller is None:
            await self._take_office(0)
        elif self._state.controller_revision == self._free_office:
            await self._take_office(self._free_office)
        elif self._state.controller != ControllerRecord(self._node, self._session):
            self._controller = None
        else:
            await self._act(self._state)

    async def _take_office(self, revision: int) -> None:
        """Take it if it is as it was at ``revision``: whoever had it changes nothing from then on."""
        record = ControllerRecord(self._node, self._session)
        put = Put(CONTROLLER, encode(record), LeaseId(self._session))
        self._free_office = 0
        await self._store.commit([Expect(CONTROLLER, revision)], [put])
        logger.info("this node is the controller", node=self._node)

    async def _act(self, state: ClusterState) -> None:
        now = self._clock.monotonic()
        if self._controller is None:
            self._controller = Controller(self._settings, now)
        for change in self._controller.step(state, now):
            try:
                await self._make(change, state.controller_revision)
            except MetadataConflict:
                continue

    async def _make(self, change: Change, office: int) -> None:
        key = partition_key(change.partition)
        await self._store.commit(
            [Expect(CONTROLLER, office), Expect(key, change.revision)],
            [Put(key, encode(change.record))],
        )
        log = logger.error if change.reason == "data loss" else logger.info
        log(
            "partition changed",
            partition=change.partition,
            reason=change.reason,
            leader=change.record.leader,
            epoch=change.record.epoch,
            in_sync=change.record.in_sync,
        )
