"""The driver of the controller: takes the controller key when it is free, and carries out what is due.

The controller key is under the node's lease. Every change expects that key at the revision at which
this node took it: whoever held it before, and has not noticed, changes nothing.
"""

from __future__ import annotations

from contextlib import suppress

import structlog

from quiver.aio import Signal, for_each
from quiver.cluster.control.controller import Change, Controller, ControllerSettings
from quiver.cluster.control.operations import is_drained
from quiver.cluster.metadata.store import Expect, LeaseId, MetadataStore, Put
from quiver.cluster.records import (
    CONTROLLER,
    NOBODY,
    ControllerRecord,
    DrainingRecord,
    NodeId,
    SessionId,
    draining_key,
    encode,
    partition_key,
)
from quiver.cluster.state import ClusterState
from quiver.errors import MetadataConflict, MetadataError
from quiver.model.clock import Clock

_INTERVAL_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
_LEAST_SECONDS = 0.02

logger = structlog.get_logger()


class ControllerDriver:
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
        self._free_controller_key = 0

    def on_state(self, state: ClusterState, session: SessionId) -> None:
        self._state, self._session = state, session
        self._changed.wake()

    def on_suspect(self, node: NodeId) -> None:
        """That node seems to be gone: if it controls, its controller key is free for whoever is quicker."""
        controller_key = self._state.controller
        if controller_key is not None and controller_key.node == node != self._node:
            self._free_controller_key = self._state.controller_revision
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
            # Changes come in bursts: a thousand partitions are looked at once for many of them.
            await self._clock.sleep(_LEAST_SECONDS)

    async def _round(self) -> None:
        if self._session == NOBODY:
            self._controller = None
        elif self._state.controller is None:
            await self._take_controller_key(0)
        elif self._state.controller_revision == self._free_controller_key:
            await self._take_controller_key(self._free_controller_key)
        elif self._state.controller != ControllerRecord(self._node, self._session):
            self._controller = None
        else:
            await self._act(self._state)

    async def _take_controller_key(self, revision: int) -> None:
        """Take it if it is as it was at ``revision``: whoever had it changes nothing from then on."""
        record = ControllerRecord(self._node, self._session)
        put = Put(CONTROLLER, encode(record), LeaseId(self._session))
        self._free_controller_key = 0
        await self._store.commit([Expect(CONTROLLER, revision)], [put])
        logger.info("this node is the controller", node=self._node)

    async def _act(self, state: ClusterState) -> None:
        now = self._clock.monotonic()
        if self._controller is None:
            self._controller = Controller(self._settings, now)
        controller_key = Expect(CONTROLLER, state.controller_revision)

        async def make(change: Change) -> None:
            with suppress(MetadataConflict):
                await self._make(change, controller_key)

        await for_each(self._controller.step(state, now), make)
        for node, draining in state.draining.items():
            if not draining.record.done and is_drained(state, node):
                await self._report_drained(node, draining.revision, controller_key)

    async def _report_drained(self, node: NodeId, revision: int, controller_key: Expect) -> None:
        key = draining_key(node)
        put = Put(key, encode(DrainingRecord(done=True)))
        await self._store.commit([controller_key, Expect(key, revision)], [put])
        logger.info("a node is drained: it may be stopped for good", node=node)

    async def _make(self, change: Change, controller_key: Expect) -> None:
        key = partition_key(change.partition)
        await self._store.commit(
            [controller_key, Expect(key, change.revision)], [Put(key, encode(change.record))]
        )
        log = logger.error if change.reason == "data loss" else logger.info
        log(
            "partition changed",
            partition=change.partition,
            reason=change.reason,
            leader=change.record.leader,
            epoch=change.record.epoch,
            in_sync=change.record.in_sync,
            eligible=change.record.eligible,
        )
