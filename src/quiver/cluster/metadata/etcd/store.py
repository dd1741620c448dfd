"""The metadata store of a cluster on etcd 3.4 or later.

It implements the whole contract of ``MetadataStore``. Reads are linearizable, a commit is one etcd
transaction, and a watch continues over lost connections and failed endpoints without losing or repeating
a change. If etcd has compacted the history it needs, it raises ``WatchCompacted``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any, TypeVar

import msgspec
import structlog

from quiver.aio import cancel_and_wait, retrieve_exception
from quiver.cluster.metadata.etcd.gateway import (
    EtcdSettings,
    Gateway,
    NotAsked,
    Unanswered,
    check_passing,
    explained,
)
from quiver.cluster.metadata.etcd.messages import (
    KeyValue,
    LeaseReply,
    Nothing,
    RangeReply,
    Request,
    Streamed,
    TxnReply,
    WatchReply,
)
from quiver.cluster.metadata.etcd.transaction import Keys, conflict_in, transaction
from quiver.cluster.metadata.etcd.versions import check_versions
from quiver.cluster.metadata.store import (
    Delete,
    Entry,
    Expect,
    Lease,
    LeaseId,
    Listing,
    MetadataStore,
    Put,
    WatchBatch,
    check_commit,
    check_from_revision,
    check_key,
    check_prefix,
    check_ttl,
)
from quiver.errors import LeaseLost, MetadataError, MetadataUnavailable, WatchCompacted
from quiver.model.clock import Clock

_PAGE_KEYS = 2_000
_LISTINGS_MAX = 5
_QUIET_SECONDS = 5.0
"""After this long without a word an endpoint is asked whether it is still there."""
_AGAIN_SECONDS = 0.2

logger = structlog.get_logger()

Result = TypeVar("Result")


class EtcdStore(MetadataStore):
    """Use ``open``. All calls come from the event loop in which it was opened."""

    def __init__(self, gateway: Gateway, keys: Keys, clock: Clock) -> None:
        self._gateway = gateway
        self._keys = keys
        self._clock = clock
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, settings: EtcdSettings, clock: Clock) -> EtcdStore:
        """Reach etcd; ``MetadataUnavailable`` if no endpoint answers.

        An endpoint whose version is known to lose or hide data is named in a warning.
        """
        store = cls(Gateway(settings), Keys(settings.prefix), clock)
        try:
            check_versions(await store._gateway.versions())
            await store.list("")
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        self._check_open()
        request = {"key": self._keys.outside(key)}
        reply = await self._gateway.call("/v3/kv/range", request, RangeReply, repeatable=True)
        return self._entry(reply.kvs[0]) if reply.kvs else None

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        for _ in range(_LISTINGS_MAX):
            listing = await self._list(prefix)
            if listing is not None:
                return listing
        raise MetadataUnavailable(
            "etcd compacts its history faster than it can be listed: raise its compaction retention"
        )

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        expects, changes = tuple(expects), tuple(changes)
        check_commit(expects, changes)
        self._check_open()
        request = transaction(expects, changes, self._keys)
        reply = await self._gateway.call("/v3/kv/txn", request, TxnReply, repeatable=False)
        if not reply.succeeded:
            raise conflict_in(expects, reply)
        return reply.header.revision

    async def grant(self, ttl_seconds: int) -> Lease:
        check_ttl(ttl_seconds)
        self._check_open()
        reply = await self._gateway.call(
            "/v3/lease/grant", {"TTL": ttl_seconds}, LeaseReply, repeatable=True
        )
        return Lease(LeaseId(reply.ID), reply.TTL)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        self._check_open()
        line = await self._gateway.call(
            "/v3/lease/keepalive", {"ID": lease_id}, Streamed, repeatable=True
        )
        if line.error is not None:
            raise explained(line.error)
        reply = msgspec.json.decode(line.result, type=LeaseReply, strict=False)
        if reply.TTL <= 0:
            raise LeaseLost(lease_id=lease_id)
        return reply.TTL

    async def revoke(self, lease_id: LeaseId) -> None:
        self._check_open()
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": lease_id}, Nothing, repeatable=True)
        except LeaseLost:
            return

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        check_prefix(prefix)
        check_from_revision(from_revision)
        self._check_open()
        return self._watch(prefix, from_revision)

    async def close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
            await self._gateway.close()

    async def _list(self, prefix: str) -> Listing | None:
        """All pages as they were with the first; ``None`` if that was forgotten on the way."""
        self._check_open()
        start, end = self._keys.span(prefix)
        entries: list[Entry] = []
        revision = 0
        while True:
            request: Request = {"key": start, "range_end": end, "limit": _PAGE_KEYS}
            if revision:
                request["revision"] = revision
            try:
                page = await self._gateway.call(
                    "/v3/kv/range", request, RangeReply, repeatable=True
                )
            except MetadataError as error:
                if revision and "compacted" in error.message:
                    return None
                raise
            revision = revision or page.header.revision
            entries += map(self._entry, page.kvs)
            if not page.more:
                return Listing(tuple(entries), revision)
            start = page.kvs[-1].key + b"\0"

    async def _watch(self, prefix: str, position: int) -> AsyncGenerator[WatchBatch, None]:
        while not self._closed.done():
            try:
                async with aclosing(self._replies(prefix, position)) as replies:
                    async for reply in replies:
                        for batch in self._batches(reply):
                            position = batch.revision
                            yield batch
                        if not reply.events and not reply.created:
                            position = max(position, reply.header.revision)  # all up to it is told
            except (NotAsked, Unanswered) as failure:
                logger.debug("watch is taken up again", prefix=prefix, reason=str(failure))
                await self._unless_closed(self._clock.sleep(_AGAIN_SECONDS))

    async def _replies(self, prefix: str, position: int) -> AsyncGenerator[WatchReply, None]:
        """What etcd tells from ``position`` on, until the store is closed or the stream fails."""
        start, end = self._keys.span(prefix)
        wanted = {"start_revision": position + 1, "progress_notify": True}
        request = {"create_request": {"key": start, "range_end": end, **wanted}}
        async with self._gateway.stream("/v3/watch", request) as (endpoint, lines):
            while True:
                line = await self._next_line(endpoint, lines)
                if line is None:
                    return
                if line.error is not None:
                    check_passing(line.error)
                    raise explained(line.error)
                reply = msgspec.json.decode(line.result, type=WatchReply, strict=False)
                if reply.canceled:
                    raise _canceled(reply, position)
                yield reply

    async def _next_line(
        self, endpoint: str, lines: AsyncGenerator[Streamed, None]
    ) -> Streamed | None:
        """The next line; ``None`` once the store is closed. A silent endpoint is asked if it lives."""
        reading: asyncio.Future[Streamed] = asyncio.ensure_future(anext(lines))
        either: Sequence[asyncio.Future[Any]] = (reading, self._closed)
        try:
            while not reading.done():
                await asyncio.wait(
                    either,
                    timeout=_QUIET_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._closed.done():
                    return None
                if not reading.done():
                    probe = {"key": self._keys.span("")[0], "keys_only": True}
                    if not await self._gateway.answers(endpoint, probe):
                        raise Unanswered("it is silent")
            return reading.result()
        finally:
            if not reading.done():
                await cancel_and_wait(reading)
            retrieve_exception(reading)  # whatever it was

    async def _unless_closed(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, self._closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()

    def _batches(self, reply: WatchReply) -> Sequence[WatchBatch]:
        """Events of one commit come together, in its order."""
        return [
            WatchBatch(
                revision,
                tuple(
                    Delete(self._keys.inside(event.kv.key))
                    if event.type == "DELETE"
                    else self._entry(event.kv)
                    for event in events
                ),
            )
            for revision, events in groupby(reply.events, key=lambda event: event.kv.mod_revision)
        ]

    def _entry(self, found: KeyValue) -> Entry:
        return Entry(self._keys.inside(found.key), found.value, found.mod_revision)

    def _check_open(self) -> None:
        if self._closed.done():
            raise MetadataError("the metadata store is closed")


def _canceled(reply: WatchReply, position: int) -> Exception:
    if reply.compact_revision:
        return WatchCompacted(
            f"changes before revision {reply.compact_revision:,} are compacted and a watch from "
            f"{position:,} needs them: list again and watch from there",
            compacted_revision=reply.compact_revision,
        )
    if "permission" in reply.cancel_reason.lower():
        return MetadataError(f"etcd refuses the watch: {reply.cancel_reason}")
    return Unanswered(reply.cancel_reason or "etcd ended the watch")
