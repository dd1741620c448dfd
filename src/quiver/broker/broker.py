"""The broker of one node: its services put together, without any network.

An edge talks to the services: ``topics`` and ``subscriptions`` define things, ``publisher`` stores,
``reader`` reads, ``directory`` has the subscriptions that are at work. Maintenance (retention,
reopening what failed, watching the disk) runs in the background between ``open`` and ``close``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from quiver.broker.definitions.changes import MetadataChanges
from quiver.broker.definitions.subscriptions import Subscriptions
from quiver.broker.definitions.topics import Topics
from quiver.broker.delivery.lease_token import LeaseIssuer, TokenSigner, lease_ids, receipt_secret
from quiver.broker.maintenance import Maintenance, MaintenanceLimits
from quiver.broker.metadata_listener import MetadataListener
from quiver.broker.mirror.catalog import MirrorCatalog
from quiver.broker.mirror.failback import FailbackPartitions
from quiver.broker.mirror.mirrors import Mirrors
from quiver.broker.mirror.source import MirrorSource
from quiver.broker.observe.partition_opener import PartitionOpener
from quiver.broker.observe.sampler import Sampler
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions, Place
from quiver.broker.partition.producer_ids import ProducerIds
from quiver.broker.partition.reader import PartitionReader
from quiver.broker.partition.split import PartitionSplitter
from quiver.broker.partition.storage import Storage, local_storage
from quiver.broker.publish.internal import InternalPublisher
from quiver.broker.publish.publisher import Publisher
from quiver.broker.publish.restore import EntryRestorer
from quiver.broker.publish.space import PublishSpace
from quiver.broker.remote.partition_router import PartitionRouter, RemoteBroker
from quiver.broker.retention import Retainer
from quiver.broker.subscription.catalog import SubscriptionCatalog, SubscriptionRecord
from quiver.broker.subscription.dead_letter_redrive import DeadLetterRedrive
from quiver.broker.subscription.dead_letters import DeadLetters
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.broker.subscription.leaders import SubscriptionLeaders
from quiver.broker.subscription.lookup import Lookup
from quiver.broker.subscription.unfinished import Unfinished
from quiver.broker.topic_limits import TopicLimits
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.broker.transactions.coordinators import Coordinators
from quiver.broker.transactions.participants import Participants
from quiver.broker.transactions.service import TransactionService
from quiver.broker.transactions.token import TransactionTokens
from quiver.cluster.metadata.secret_key import SecretKey
from quiver.cluster.metadata.store import MetadataStore
from quiver.log.cache.cache_budget import CacheBudget
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.log_context import LogContext
from quiver.metrics.sample import NodeSample
from quiver.metrics.traffic import Traffic
from quiver.model.clock import Clock
from quiver.model.ids import Offset


class BrokerEnvironment(msgspec.Struct, kw_only=True):
    """What a broker is given from outside."""

    folder: str
    store: MetadataStore
    disk: Disk
    clock: Clock
    run_blocking: RunBlocking
    """Runs disk work off the event loop."""
    run_checks: RunBlocking | None = None
    """Runs work that only takes a while; ``run_blocking`` if not given."""
    limits: MaintenanceLimits
    logs: LogContext = msgspec.field(default_factory=LogContext)
    """What all logs of the node share."""
    traffic: Traffic = msgspec.field(default_factory=Traffic)
    on_unread_lost: Callable[[int], object] = lambda _: None
    storage: Storage | None = None
    """That of a cluster; folders of this node alone if not given."""
    remote: RemoteBroker | None = None
    """The other nodes of a cluster."""
    lease_ids: Iterator[int] = msgspec.field(default_factory=lease_ids)
    secret_key: SecretKey = SecretKey()


class Broker:
    """Complete once ``open`` has returned it; ``close`` it whatever happens."""

    def __init__(self, environment: BrokerEnvironment, signer: TokenSigner) -> None:
        self._environment, self._signer = environment, signer
        self._clock = environment.clock
        self._run_checks = environment.run_checks or environment.run_blocking
        self._compose_catalogs()
        self._compose_definitions()
        self._compose_maintenance()
        self._compose_messages()
        self._compose_transactions()
        self._compose_mirrors()
        self._compose_observation()

    def _compose_catalogs(self) -> None:
        """What the metadata store says, and the partitions that are open here."""
        one, clock = self._environment, self._clock
        storage = one.storage or local_storage(
            f"{one.folder}/topics", one.disk, clock, one.run_blocking, one.logs
        )
        self._topic_catalog = TopicCatalog(one.store, clock, storage.hooks, self._topic_changed)
        self._subscription_catalog = SubscriptionCatalog(
            one.store, clock, self._subscription_changed
        )
        self._producer_ids = ProducerIds(one.store, clock)
        self.mirror_catalog = MirrorCatalog(one.store, clock)
        self._changes = MetadataChanges(self._known_revision, one.remote)
        self._partitions = Partitions(
            storage,
            clock=clock,
            exists=self._topic_catalog.holds,
            logs=one.logs,
            traffic=one.traffic,
            prepare=self._prepare,
        )
        self._router = PartitionRouter(self._partitions, one.remote)
        self._splitter = PartitionSplitter(self._topic_catalog, self._partitions, clock)
        self.leaders = SubscriptionLeaders(
            self._subscription_catalog, self._topic_catalog, storage.placement, self._signer
        )

    def _compose_definitions(self) -> None:
        """Topics and subscriptions: as they are defined, and at work."""
        one = self._environment
        self.directory = SubscriptionDirectory(
            self.leaders,
            self._partitions,
            self._router,
            LeaseIssuer(self._signer, one.lease_ids),
            DeadLetters(self._router, self._dead_letter_queue),
            clock=self._clock,
            traffic=one.traffic,
        )
        self.topics = Topics(
            self._topic_catalog,
            self._partitions,
            self._splitter,
            self._changes,
            remote=one.remote,
            traffic=one.traffic,
            on_split=self.directory.look_again,
        )
        self.subscriptions = Subscriptions(
            self.leaders, self.directory, self.topics, self._router, self._changes
        )
        self.listener = MetadataListener(
            self._topic_catalog,
            self._subscription_catalog,
            self._producer_ids,
            self._partitions,
            self.directory,
            one.traffic,
            self.mirror_catalog,
        )

    def _compose_maintenance(self) -> None:
        """Retention, and the rest of maintenance."""
        one = self._environment
        self._unfinished = Unfinished(self._subscription_catalog, self.directory, self._partitions)
        self._space = PublishSpace(
            self._topic_catalog,
            self._unfinished,
            self._clock,
            require_disk=lambda: self.maintenance.require_space(),  # noqa: PLW0108 - made later
        )
        self.retainer = Retainer(
            self._topic_catalog,
            self._partitions,
            self._unfinished,
            TopicLimits(self.topics.describe),
            clock=self._clock,
            on_unread_lost=one.on_unread_lost,
            source_start=self._source_start,
        )
        self.maintenance = Maintenance(
            self._topic_catalog,
            self._partitions,
            self._tick,
            self.retainer,
            self._space,
            one.limits,
            clock=self._clock,
            free_bytes_of=lambda: one.run_blocking(lambda: one.disk.free_bytes(one.folder)),
        )

    def _compose_messages(self) -> None:
        """Messages are stored, read, looked up and redriven."""
        self.publisher = Publisher(
            self._topic_catalog,
            self._partitions,
            self._splitter,
            self._producer_ids,
            self._router,
            self._changes,
            self._space,
            run_checks=self._run_checks,
        )
        self.restorer = EntryRestorer(
            self._topic_catalog, self._partitions, run_checks=self._run_checks
        )
        self.internal = InternalPublisher(self.topics, self._router)
        self.reader = PartitionReader(self._topic_catalog, self._partitions)
        self.lookup = Lookup(self._topic_catalog, self._partitions, self.directory)
        self.dead_letters = DeadLetterRedrive(self.leaders, self.directory, self._router)

    def _compose_transactions(self) -> None:
        remote = self._environment.remote
        participants = Participants(self._topic_catalog, self._partitions, remote)
        self.transactions = TransactionService(
            Coordinators(
                self.topics,
                self._topic_catalog,
                self._partitions,
                participants.close,
                self._clock,
                is_cluster=remote is not None,
            ),
            participants,
            self._partitions,
            self._producer_ids,
            TransactionTokens(self._signer),
            self._clock,
            remote,
            self._topic_catalog,
        )

    def _compose_mirrors(self) -> None:
        """What this cluster gives to others, and what it copies from them."""
        self.mirror_source = MirrorSource(
            self._topic_catalog,
            self._subscription_catalog,
            self._partitions,
            self.directory,
            self._clock,
            run_checks=self._run_checks,
        )
        self.mirrors = Mirrors(
            self.mirror_catalog,
            self._topic_catalog,
            self.leaders,
            self.topics,
            self.subscriptions,
            self._partitions,
            self._changes,
            FailbackPartitions(
                self._topic_catalog,
                self.topics,
                self._partitions,
                self.restorer.restore,
                self._environment.remote,
            ),
        )

    def _compose_observation(self) -> None:
        self._opener = PartitionOpener(
            self._topic_catalog,
            self._subscription_catalog,
            self._partitions,
            self.directory.prepare,
        )
        self._sampler = Sampler(
            self._topic_catalog,
            self._subscription_catalog,
            self._partitions,
            self._opener,
            self._environment.traffic.subscriptions,
            self._unfinished.lost,
            self._clock,
        )

    @classmethod
    async def open(cls, environment: BrokerEnvironment) -> Broker:
        """Load the topics, finish deletions that a stop interrupted, and start maintenance.

        Mirrors are loaded by whoever runs them.
        """
        secret = await receipt_secret(environment.store, environment.secret_key)
        broker = cls(environment, TokenSigner(secret))
        await broker._topic_catalog.load()
        await broker._partitions.load()
        await broker._producer_ids.load()
        await broker._subscription_catalog.load()
        await broker.topics.finish_deletions()
        await broker.maintenance.start()
        return broker

    async def close(self) -> None:
        """Finish what is under way and leave every log ready for a quick start."""
        await self.maintenance.stop()
        await self.transactions.close()
        await self._opener.close()
        await self._producer_ids.close()
        self._splitter.close()
        await self._changes.close()
        await self.dead_letters.close()
        await self.listener.close()
        await self.directory.close()
        await self._partitions.close()

    @property
    def caches(self) -> CacheBudget | None:
        """The memory of all caches of logs."""
        return self._partitions.caches

    @property
    def partition_count(self) -> int:
        """How many partitions are open here."""
        return len(self._partitions)

    async def sample(self) -> NodeSample:
        """The broker as it is now, or was a moment ago."""
        sample = await self._sampler.take()
        counts = self.transactions.counts
        return msgspec.structs.replace(
            sample,
            free_bytes=self.maintenance.free_bytes,
            transactions_committed=counts.committed,
            transactions_aborted=counts.aborted,
            transactions_unfinished=self.transactions.unfinished_count,
            mirrors=self.mirrors.samples(sample.time_us),
            sources=self.mirrors.source_samples(),
            mirrored=self.mirrors.mirrored(),
        )

    # ------------------------------------------------------------------ between the services

    def _source_start(self, place: Place) -> Offset | None:
        """Where a partition of a mirrored topic begins at its source, if that is known."""
        progress = self.mirrors.progress.get(place)
        return None if progress is None else progress.source_start

    def _tick(self) -> None:
        """Each second."""
        self.directory.tick()
        self.transactions.tick()

    def _known_revision(self) -> int:
        return max(
            self._topic_catalog.registry.revision,
            self._subscription_catalog.registry.revision,
            self.mirror_catalog.registry.revision,
            self._producer_ids.revision,
        )

    def _topic_changed(self, old: TopicRecord | None, new: TopicRecord | None) -> None:
        self.listener.topic_changed(old, new)

    def _subscription_changed(
        self, old: SubscriptionRecord | None, new: SubscriptionRecord | None
    ) -> None:
        self.listener.subscription_changed(old, new)

    async def _dead_letter_queue(self, name: str) -> TopicRecord:
        return await self.subscriptions.dead_letter_queue(name)

    async def _prepare(self, record: TopicRecord, index: int, partition: Partition) -> None:
        """Before anybody gets a partition it has its split handover, what is decided of its transactions,
        and its delivery state."""
        split = record.origin_of(index)
        if split is not None and not partition.has_imported:
            await partition.import_handover(await self._router.handover(record, split))
        await self.transactions.prepare(partition)
        await self.directory.prepare(record, index, partition)
