"""The broker of one node: topics, publishing and reading, without any network.

Everything an edge offers goes through here. Requests are checked, topics are looked up in the
catalog, and the partition does the rest. Maintenance (retention, reopening what failed, watching the
disk) runs in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import structlog

from quiver.broker.delivery.lease_token import TokenSigner, lease_ids, receipt_secret
from quiver.broker.maintenance import Maintenance, MaintenanceLimits
from quiver.broker.metadata_listener import MetadataListener
from quiver.broker.observe.sampler import Sampler
from quiver.broker.partition.follower_log import FollowerLog
from quiver.broker.partition.partition import Partition, Placed
from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.producer_ids import ProducerIdentity, ProducerIds
from quiver.broker.partition.split import PartitionSplitter
from quiver.broker.partition.storage import LocalStorage, Storage
from quiver.broker.remote.partition_router import PartitionRouter, RemoteBroker
from quiver.broker.subscription.catalog import (
    SubscriptionCatalog,
    dead_letter_topic,
)
from quiver.broker.subscription.dead_letters import DeadLetters
from quiver.broker.subscription.directory import SubscriptionDirectory, subscription_info
from quiver.broker.subscription.lookup import Lookup
from quiver.broker.subscription.redrive import Redrive, Redriven
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.broker.topics.internal_topics import SETTINGS as INTERNAL_TOPICS
from quiver.broker.topics.registry import changed_settings
from quiver.cluster.metadata.store import MetadataStore
from quiver.errors import (
    DiskFull,
    InvalidRequest,
    LogClosed,
    NotLeader,
    PartitionUnavailable,
    QuiverError,
    ShuttingDown,
    SubscriptionExists,
    TopicExists,
    TopicNotFound,
)
from quiver.log.disk import Disk
from quiver.log.log import Log
from quiver.log.partition_log import RunBlocking
from quiver.metrics.sample import NodeSample
from quiver.metrics.traffic import Traffic
from quiver.model.batch import Bytes, StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.envelope import BATCH_BYTES_MAX, open_batch
from quiver.model.filter import Filter
from quiver.model.guard import OpenedBatch, check_batch, check_message, open_message
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import Acks, TopicSettings, is_internal
from quiver.protocol import PartitionInfo, SubscriptionInfo, TopicInfo

FETCH_BYTES_MAX = 32 << 20
FETCH_WAIT_S_MAX = 30.0
LIGHT_BYTES = 256 << 10
"""A batch of no more work than this is checked where it stands: that takes well under 1 ms."""
_OPENED_AT_ONCE = 4

logger = structlog.get_logger()

T = TypeVar("T")


class BrokerLimits(MaintenanceLimits, frozen=True, kw_only=True):
    tail_bytes_total: int = 256 << 20


class Read(msgspec.Struct, frozen=True):
    """What a fetch found, and where the partition begins and ends now."""

    entries: list[StoredBatch]
    start_offset: Offset
    next_offset: Offset
    topic_number: int
    layout: int


class Offer(msgspec.Struct):
    """A batch that somebody wants stored; ``rows`` are there once its values are checked."""

    topic: str
    layout: int
    partition: int
    opened: OpenedBatch
    rows: pa.RecordBatch | None = None

    @property
    def is_light(self) -> bool:
        """Whether ``store`` may check it without anybody noticing; else ``check`` it first."""
        return self.rows is not None or self.opened.work <= LIGHT_BYTES


class Broker:
    """Open between ``open`` and ``close``. ``run_checks`` is for work that only takes a while."""

    def __init__(
        self,
        folder: str,
        store: MetadataStore,
        *,
        disk: Disk,
        clock: Clock,
        run_blocking: RunBlocking,
        limits: BrokerLimits,
        run_checks: RunBlocking | None = None,
        on_unread_lost: Callable[[int], object] = lambda _: None,
        traffic: Traffic | None = None,
        storage: Storage | None = None,
        remote: RemoteBroker | None = None,
    ) -> None:
        """``storage`` and ``remote`` are for a node of a cluster; without, it is alone."""
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._run_blocking = run_blocking
        self._run_checks = run_checks or run_blocking
        self._limits = limits
        self._on_unread_lost = on_unread_lost
        self.traffic = traffic or Traffic()
        self._producer_ids = ProducerIds(store)
        self._catalog = TopicCatalog(store, clock)
        self._remote = remote
        self.storage = storage or LocalStorage(f"{folder}/topics", disk, clock, run_blocking)
        self._catalog.begin, self._catalog.end = self.storage.begin, self.storage.end
        self._catalog.change = self.storage.change
        self._partitions = Partitions(
            self.storage,
            clock=clock,
            exists=self._catalog.holds,
            tail_bytes_total=limits.tail_bytes_total,
            traffic=self.traffic,
        )
        self._router = PartitionRouter(self._partitions, remote)
        self._splitter = PartitionSplitter(self._catalog, self._partitions, clock)
        self._store = store
        self._subscription_catalog = SubscriptionCatalog(store, clock)
        self._subscriptions: SubscriptionDirectory | None = None
        self._maintenance: Maintenance | None = None
        self._lookup: Lookup | None = None
        self._listener: MetadataListener | None = None
        self._sampler = Sampler(self._catalog, self._subscription_catalog, self._partitions, clock)
        self._changes: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Load the topics, finish deletions that a stop interrupted, and start maintenance."""
        await self._catalog.load()
        await self._producer_ids.load()
        await self._subscription_catalog.load()
        self._subscriptions = SubscriptionDirectory(
            self._subscription_catalog,
            self._catalog,
            self._partitions,
            clock=self._clock,
            signer=TokenSigner(await receipt_secret(self._store)),
            lease_ids=lease_ids(),
            dead_letters=DeadLetters(self._router, self._dead_letter_queue),
            router=self._router,
            traffic=self.traffic,
        )
        self._listener = MetadataListener(
            self._catalog,
            self._subscription_catalog,
            self._producer_ids,
            self._partitions,
            self._subscriptions,
            self.traffic,
        )
        self._partitions.prepare = self._prepare
        for record in await self._catalog.deleted():
            await self._remove_data(record)
        self._lookup = Lookup(self._catalog, self._partitions, self._subscriptions)
        self._maintenance = Maintenance(
            self._catalog,
            self._partitions,
            self._subscriptions,
            self._limits,
            clock=self._clock,
            free_bytes_of=lambda: self._run_blocking(lambda: self._disk.free_bytes(self._folder)),
            on_unread_lost=self._on_unread_lost,
        )
        await self._maintenance.start()

    async def close(self) -> None:
        """Finish what is under way and leave every log ready for a quick start."""
        if self._maintenance is not None:
            await self._maintenance.stop()
        self._splitter.close()
        if self._changes:
            await asyncio.wait(self._changes)
        if self._listener is not None:
            await self._listener.close()
        if self._subscriptions is not None:
            await self._subscriptions.close()
        await self._partitions.close()

    async def _to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change in the metadata store, all of it, even if whoever asked for it is gone.

        Returns when the other nodes know of it too, those that answer.
        """
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        changed = await asyncio.shield(task)
        if self._remote is not None:
            await self._remote.spread(self._revision)
        return changed

    @property
    def _revision(self) -> int:
        return max(
            self._catalog.registry.revision,
            self._subscription_catalog.registry.revision,
            self._producer_ids.revision,
        )

    # ------------------------------------------------------------------ topics

    async def create_topic(
        self, name: str, settings: TopicSettings, *, exist_ok: bool = False
    ) -> TopicInfo:
        try:
            record = await self._to_the_end(self._catalog.create(name, settings))
        except TopicExists:
            record = self._catalog.get(name)
            if not exist_ok or record.settings != settings:
                raise
            return await self._describe(record)
        logger.info("topic created", topic=name, partitions=settings.partitions)
        infos = self._partition_infos(record)
        return _topic_info(record, [_with_extent(info, 0, 0, 0) for info in infos])

    async def alter_topic(self, name: str, changes: dict[str, Any]) -> TopicInfo:
        record = await self._to_the_end(self._alter_topic(name, changes))
        return await self._describe(record)

    async def _alter_topic(self, name: str, changes: dict[str, Any]) -> TopicRecord:
        record = await self._catalog.alter(name, changes)
        self._partitions.reconfigure(record)
        logger.info("topic altered", topic=name, changes=sorted(changes))
        return record

    async def split_partition(self, name: str, index: int, layout: int) -> TopicInfo:
        """Let a partition give half of its range to a new one, unless it has since ``layout``."""
        _require_users_own(name)
        record = await self._to_the_end(self._split_partition(name, index, layout))
        return _topic_info(record, self._partition_infos(record))

    async def _split_partition(self, name: str, index: int, layout: int) -> TopicRecord:
        record, split, is_new = await self._splitter.split(name, index, layout)
        if is_new:
            self._partitions.reconfigure(record)
            self.subscriptions.look_again()
            logger.info(
                "partition split",
                topic=name,
                partition=index,
                child=split.child,
                offset=split.offset,
                layout=split.layout,
            )
        return record

    async def _prepare(self, record: TopicRecord, index: int, partition: Partition) -> None:
        """Before anybody gets a partition it knows what it inherits, and how subscriptions stand."""
        split = record.origin_of(index)
        if split is not None and not partition.has_imported:
            await partition.import_handover(await self._router.handover(record, split))
        await self.subscriptions.prepare(record, index, partition)

    async def handover(self, topic: str, index: int, offset: int) -> bytes:
        """What a partition hands down to the one that was split off at an offset."""
        partition = await self._partitions.get(self._catalog.get(topic), index)
        return await partition.handover(Offset(offset))

    async def store_internal(self, name: str, payload: bytes) -> None:
        """Store a message in one of the broker's own topics."""
        rows = pa.RecordBatch.from_pydict({"payload": pa.array([payload], pa.binary())})
        await self._router.store(await self._internal_topic(name), 0, rows)

    async def store_batch(self, topic: str, index: int, data: Bytes) -> None:
        """Store a batch that another node's broker has made."""
        batch = open_batch(data)
        partition = await self.partition(topic, index)
        await partition.publish(batch, check_batch(batch, BATCH_BYTES_MAX).rows)

    async def _internal_topic(self, name: str) -> TopicRecord:
        """One of the broker's own topics, made if need be."""
        with contextlib.suppress(TopicExists):
            return await self._to_the_end(self._catalog.create_internal(name))
        return self._catalog.get(name)

    async def delete_topic(self, name: str) -> None:
        self._catalog.get(name)
        _require_users_own(name)
        await self._to_the_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        record = await self._catalog.delete(name)
        self.traffic.topics.forget(name)
        await self._remove_data(record)
        logger.info("topic deleted", topic=name)

    async def describe_topic(self, name: str, *, extents: bool = True) -> TopicInfo:
        """A topic; with ``extents`` also where each of its partitions begins and ends."""
        record = self._catalog.get(name)
        if not extents:
            return _topic_info(record, self._partition_infos(record))
        info = await self._describe(record)
        if self._remote is not None and any(one.bytes is None for one in info.partitions):
            known = {one.index: one for one in await self._remote.extents(name)}
            info.partitions = [
                one if one.bytes is not None else known.get(one.index, one)
                for one in info.partitions
            ]
        return info

    async def describe_here(self, name: str) -> TopicInfo:
        """A topic with the extents of those partitions that this node leads."""
        return await self._describe(self._catalog.get(name))

    async def list_topics(self) -> list[TopicInfo]:
        """Every topic, without the extent of its partitions."""
        records = sorted(self._catalog.topics(), key=lambda record: record.name)
        return [_topic_info(record, self._partition_infos(record)) for record in records]

    def _partition_infos(self, record: TopicRecord) -> list[PartitionInfo]:
        origins = {split.child: (split.parent, split.offset) for split in record.splits}
        infos = []
        for index, first_hash in enumerate(record.first_hashes):
            parent, offset = origins.get(index, (None, None))
            infos.append(
                PartitionInfo(
                    index=index,
                    first_hash=first_hash,
                    leader=self.storage.leader(record, index),
                    in_sync=self.storage.in_sync(record, index),
                    parent=parent,
                    parent_offset=offset,
                )
            )
        return infos

    @property
    def topic_names(self) -> set[str]:
        return {record.name for record in self._catalog.topics()}

    def is_queue(self, name: str) -> bool:
        """Whether there is a queue of this name."""
        return any(one.is_queue for one in self._subscription_catalog.all() if one.name == name)

    @property
    def topic_count(self) -> int:
        return len(list(self._catalog.topics()))

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    async def _describe(self, record: TopicRecord) -> TopicInfo:
        """A topic with the extent of each partition; without it where that is not to be had now."""
        turns = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def described(info: PartitionInfo) -> PartitionInfo:
            async with turns:
                try:
                    log = (await self._partitions.get(record, info.index)).log
                except (ShuttingDown, TopicNotFound):
                    raise
                except NotLeader:
                    return info
                except QuiverError as error:
                    logger.error("partition cannot be opened", topic=record.name, error=str(error))
                    return info
                return _with_extent(info, log.start_offset, log.next_offset, log.size)

        return _topic_info(
            record, list(await asyncio.gather(*map(described, self._partition_infos(record))))
        )

    async def _remove_data(self, record: TopicRecord) -> None:
        """What cannot be removed now is removed at the next start: its tombstone stays till then."""
        try:
            await self._partitions.remove(record)
        except OSError as error:
            logger.error("data of a deleted topic remains", topic=record.name, error=str(error))
            return
        await self._catalog.forget(record)

    # ------------------------------------------------------------------ subscriptions

    @property
    def subscriptions(self) -> SubscriptionDirectory:
        assert self._subscriptions is not None, "the broker is open"
        return self._subscriptions

    async def create_subscription(
        self,
        name: str,
        settings: SubscriptionSettings,
        *,
        start: str = "latest",
        start_time: int | None = None,
        start_offset: int | None = None,
        exist_ok: bool = False,
        is_queue: bool = False,
    ) -> SubscriptionInfo:
        for topic in INTERNAL_TOPICS.keys() & set(settings.topics):
            await self._internal_topic(topic)
        try:
            record = await self._to_the_end(
                self.subscriptions.create(
                    name,
                    settings,
                    start=start,
                    start_time=start_time,
                    start_offset=start_offset,
                    is_queue=is_queue,
                )
            )
        except SubscriptionExists:
            record = self.subscriptions.find(name)
            if not exist_ok or record.settings != settings:
                raise
        return subscription_info(record)

    async def create_queue(
        self, name: str, topic: TopicSettings, changes: dict[str, Any], *, exist_ok: bool
    ) -> SubscriptionInfo:
        """A topic and its built-in subscription, which begins with the first message."""
        settings = changed_settings(SubscriptionSettings(topics=[name]), changes)
        await self.create_topic(name, topic, exist_ok=exist_ok)
        return await self.create_subscription(
            name, settings, start="earliest", exist_ok=exist_ok, is_queue=True
        )

    async def _dead_letter_queue(self, name: str) -> TopicRecord:
        """The topic for dead letters, with a subscription of its own name to take them back from."""
        with contextlib.suppress(TopicExists):
            await self.create_topic(name, TopicSettings())
        with contextlib.suppress(SubscriptionExists):
            settings = SubscriptionSettings(topics=[name], max_deliveries=0)
            await self.create_subscription(name, settings, start="earliest", is_queue=True)
        return self._catalog.get(name)

    async def alter_subscription(self, name: str, changes: dict[str, Any]) -> SubscriptionInfo:
        record = await self._to_the_end(self.subscriptions.alter(name, changes))
        return await self.subscriptions.describe(record)

    async def delete_subscription(self, name: str) -> None:
        """Of a queue, the topic goes too."""
        record = self.subscriptions.find(name)
        if record.is_queue:
            # First, so that whoever was interrupted between the two can do it again.
            with contextlib.suppress(TopicNotFound):
                await self.delete_topic(name)
        await self._to_the_end(self.subscriptions.delete(name))

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        return await self.subscriptions.describe(self.subscriptions.find(name))

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
        record = self.subscriptions.find(name)
        letters = dead_letter_topic(name, record.settings)
        await (await self.subscriptions.get(name)).wait_for_dead_letters()
        if to is not None:
            _require_users_own(to)
            self._catalog.get(to)
        if not self.subscriptions.holds(letters):
            if not self.subscriptions.has_dead_letters(name):
                return Redriven(0, {})
            letters = name
        subscription = await self.subscriptions.get(letters)
        redrive = Redrive(self._catalog, self._router)
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

    def letters_of(self, name: str) -> str | None:
        """The queue that a redrive of this subscription takes from, if there is one."""
        letters = dead_letter_topic(name, self.subscriptions.find(name).settings)
        return letters if self.subscriptions.holds(letters) else None

    def known_leader(self, topic: str, index: int) -> str | None:
        """Where a partition is led, as far as is known."""
        return self.storage.leader(self._catalog.get(topic), index)

    def leader_of(self, topic: str, index: int) -> str | None:
        """The node that leads a partition; ``None``: this one. ``NotLeader`` if nobody does."""
        record = self._catalog.get(topic)
        if index >= len(record.first_hashes) or self.storage.leads(record, index):
            return None
        address = self.storage.leader(record, index)
        if address is None:
            raise NotLeader(f"partition {index} of {topic!r} has no leader now")
        return address

    def list_subscriptions(self) -> list[SubscriptionInfo]:
        return [subscription_info(record) for record in self.subscriptions.all()]

    # ------------------------------------------------------------------ publishing

    def ready_partition(self, topic: str, index: int) -> Partition | None:
        """The partition if a publish to it need not wait for anything first."""
        partition = self._partitions.ready(self._catalog.get(topic), index)
        return partition if partition is not None and partition.log.has_room else None

    async def partition(self, topic: str, index: int) -> Partition:
        """The partition, once it is open and has room for a publish."""
        partition = await self._partitions.get(self._catalog.get(topic), index)
        await partition.log.wait_for_room()
        return partition

    def offer(self, topic: str, data: Bytes, layout: int = 0, partition: int = 0) -> Offer:
        """Look at a producer's batch, as far as that costs nothing.

        ``layout`` is the one by which it was routed to the partition; 0: that does not matter.
        """
        return self.offer_batch(topic, open_batch(data), layout, partition)

    def offer_batch(
        self, topic: str, batch: UnstoredBatch, layout: int = 0, partition: int = 0
    ) -> Offer:
        offer = Offer(topic, layout, partition, open_message(batch))
        self._admit(offer)
        return offer

    async def check(self, offer: Offer) -> None:
        """Check every value of a batch, off the event loop if there are many."""
        if not offer.is_light:
            limit = self._admit(offer).settings.message_bytes_max
            facts = await self._run_checks(lambda: check_message(offer.opened, limit))
            offer.rows = facts.rows

    def store(
        self, partition: Partition, offer: Offer, acks: Acks | None = None
    ) -> tuple[asyncio.Future[Placed], int]:
        """Store a batch; also the topic's number.

        The offset is taken when this returns; the future is done when the batch is acknowledged.
        """
        record = self._admit(offer)
        if offer.rows is None:
            limit = record.settings.message_bytes_max
            offer.rows = check_message(offer.opened, limit).rows
        refusal = self._splitter.refusal(record, offer.partition, offer.layout)
        placed = partition.publish(
            offer.opened.batch,
            offer.rows,
            acks or record.settings.acks,
            refusal=refusal,
        )
        return placed, record.number

    def _admit(self, offer: Offer) -> TopicRecord:
        """The topic, if it takes this batch now as far as can be said without its values."""
        record = self._catalog.get(offer.topic)
        _require_users_own(offer.topic)
        if self.maintenance.disk_is_full:
            raise DiskFull()
        self._producer_ids.require_current(offer.opened.batch)
        return record

    async def open_producer(
        self, name: str | None, topic: str | None
    ) -> tuple[ProducerIdentity, dict[int, int]]:
        """A producer's identity and, for a named one, the last own sequence in each partition."""
        identity = await self._to_the_end(self._producer_ids.open(name))
        sequences: dict[int, int] = {}
        if name is not None and topic is not None:
            record = self._catalog.get(topic)
            for index in range(len(record.first_hashes)):
                last = await self._router.last_sequence(record, index, identity)
                if last is not None:
                    sequences[index] = last
        return identity, sequences

    async def last_sequence(self, topic: str, index: int, identity: ProducerIdentity) -> int | None:
        """The last own sequence of a producer that was opened on another node."""
        self._producer_ids.note(identity)
        partition = await self._partitions.get(self._catalog.get(topic), index)
        return await partition.last_user_sequence(identity.producer_id)

    # ------------------------------------------------------------------ reading

    async def _readable(
        self, record: TopicRecord, index: int, *, any_replica: bool
    ) -> Log | FollowerLog:
        """A partition's log, or as much as a follower has of it where that will do."""
        follower = self.storage.follower(record, index) if any_replica else None
        return follower or (await self._partitions.get(record, index)).log

    async def wait_for_data(
        self, topic: str, index: int, offset: int, wait_s: float, *, any_replica: bool = False
    ) -> bool:
        """Wait until the partition can be read from ``offset`` on; whether it can."""
        if offset < 0 or wait_s < 0:
            raise InvalidRequest("offset and wait must not be negative")
        log = await self._readable(self._catalog.get(topic), index, any_replica=any_replica)
        if offset > log.next_offset and not isinstance(log, FollowerLog):
            return False  # an error, which ``fetch`` explains; no use to wait for it
        return await log.wait_beyond(Offset(offset), min(wait_s, FETCH_WAIT_S_MAX))

    async def fetch(
        self, topic: str, index: int, offset: int, *, bytes_max: int, any_replica: bool = False
    ) -> Read:
        """Entries from ``offset`` on; none if there are none yet."""
        if offset < 0 or bytes_max < 0:
            raise InvalidRequest("offset and bytes_max must not be negative")
        record = self._catalog.get(topic)
        log = await self._readable(record, index, any_replica=any_replica)
        try:
            entries = await log.read(Offset(offset), min(bytes_max, FETCH_BYTES_MAX))
        except LogClosed as closed:
            self._catalog.get(topic)  # it may have been deleted meanwhile
            raise PartitionUnavailable() from closed
        layout = self._catalog.get(topic).layout
        return Read(entries, log.start_offset, log.next_offset, record.number, layout)

    async def find_offset(
        self, topic: str, index: int, at: str | None, time_us: int | None
    ) -> Offset:
        log = (await self._partitions.get(self._catalog.get(topic), index)).log
        if time_us is not None:
            return await log.offset_at(Microseconds(time_us))
        if at == "earliest":
            return log.start_offset
        if at == "latest":
            return log.next_offset
        raise InvalidRequest(
            f"at must be 'earliest', 'latest' or a time, not {at[:80] if at else at!r}"
        )

    # ------------------------------------------------------------------ maintenance

    async def sample(self) -> NodeSample:
        """The broker as it is now, or was a moment ago."""
        sample = await self._sampler.take()
        return msgspec.structs.replace(sample, free_bytes=self.maintenance.free_bytes)

    @property
    def maintenance(self) -> Maintenance:
        assert self._maintenance is not None, "the broker is open"
        return self._maintenance

    @property
    def listener(self) -> MetadataListener:
        """What other nodes of the cluster change, and what this node is to hold and lead."""
        assert self._listener is not None, "the broker is open"
        return self._listener

    @property
    def lookup(self) -> Lookup:
        """Messages by their ids."""
        assert self._lookup is not None, "the broker is open"
        return self._lookup

    async def retain(self) -> None:
        """Drop what the topics' retention no longer keeps."""
        await self.maintenance.retain()


def _require_users_own(topic: str) -> None:
    if is_internal(topic):
        raise InvalidRequest(
            f"{topic!r} is an internal topic of Quiver: it can be read but not written"
        )


def _with_extent(
    info: PartitionInfo, start_offset: int, next_offset: int, size: int
) -> PartitionInfo:
    return msgspec.structs.replace(
        info, start_offset=start_offset, next_offset=next_offset, bytes=size
    )


def _topic_info(record: TopicRecord, partitions: list[PartitionInfo]) -> TopicInfo:
    return TopicInfo(
        name=record.name,
        number=record.number,
        layout=record.layout,
        settings=record.settings,
        created_us=record.created_us,
        partitions=partitions,
    )
