"""A node: one process, one event loop, one data folder.

``Node.start`` opens the folder, the metadata store, the broker and the listeners; ``Node.stop``
drains: nothing new is accepted, what is under way is finished and synced, within a bound.
``run_node`` does both around the wait for SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from quiver.broker.alerts.service import Tell
from quiver.broker.broker import Broker, BrokerLimits
from quiver.broker.partition.replicated_storage import ReplicatedStorage
from quiver.client import AsyncClient
from quiver.cluster.control.admin import ClusterAdministration
from quiver.cluster.metadata.open import open_store
from quiver.cluster.metadata.store import Delete, Entry, MetadataStore
from quiver.cluster.node import ClusterNode, ClusterSettings
from quiver.cluster.records import NodeId, NodeRecord, PartitionId
from quiver.config import Address, NodeConfig
from quiver.config.exposure import exposed, require_safe
from quiver.edge.auth.authority import Authority
from quiver.edge.auth.bootstrap_token import make_bootstrap_token
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.auth.tls import ServerTls
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.forwarder import Forwarder
from quiver.edge.http.app import edge_of
from quiver.edge.http.server import HttpServer
from quiver.edge.in_process import InProcessDialer
from quiver.edge.native.server import NativeServer
from quiver.edge.observability import Observability
from quiver.edge.peers.peer_broker import PeerBroker
from quiver.edge.peers.peers import Peers, peer_secret
from quiver.edge.principal_clients import NodeClients
from quiver.edge.services import NodeServices
from quiver.edge.webhooks.targets import Targets
from quiver.errors import LeaseLost, MetadataConflict, MetadataUnavailable
from quiver.log.disk import Disk, FolderLock
from quiver.log.disk_threads import DiskThreads
from quiver.log.folder_lock import lock_folder
from quiver.log.real_disk import RealDisk
from quiver.log.settings import LogSettings
from quiver.metrics import NodeMetrics
from quiver.model.clock import Clock, SystemClock
from quiver.version import __version__

if TYPE_CHECKING:
    from quiver.edge.webhooks.pushers import Pushers

_DISK_THREADS = 8
_CLOSE_TIMEOUT_S = 30.0
_JOIN_TIMEOUT_S = 10.0
_STORE_WAIT_S = 30.0
"""How long a node that starts waits for a metadata store that does not answer."""
_STORE_AGAIN_S = 0.5

logger = structlog.get_logger()


class Node:
    """Not yet running; ``start`` it, and ``stop`` it whatever happens."""

    def __init__(
        self, config: NodeConfig, *, disk: Disk | None = None, clock: Clock | None = None
    ) -> None:
        self.config = config
        self._disk = disk or RealDisk()
        self._clock = clock or SystemClock()
        self._threads = DiskThreads(_DISK_THREADS)
        # One thread of its own: whoever keeps it busy keeps no disk waiting, and one core at most.
        self._checks = DiskThreads(1)
        self._lock: FolderLock | None = None
        self._store: MetadataStore | None = None
        self._member: ClusterNode | None = None
        self._peers: Peers | None = None
        self._broker: Broker | None = None
        self._tokens: TokenStore | None = None
        self._tls_watch: asyncio.Task[None] | None = None
        self._native: NativeServer | None = None
        self.tls: ServerTls | None = None
        """What every listener of this node encrypts with, if it does."""
        self._http: HttpServer | None = None
        self._pushers: Pushers | None = None
        self._observability: Observability | None = None
        self._targets = Targets(config.web.webhook_targets)
        self.http_address: Address | None = None
        """Where HTTP is spoken, if it is."""
        self.services: NodeServices | None = None

    async def start(self, *, listen: bool = True) -> Address | None:
        """Open everything; where the native protocol is spoken, if it is."""
        if listen:
            require_safe(self.config)
        try:
            services = await self._open()
            if not listen:
                return None
            await self._secure()
            self._native = NativeServer(services)
            native = self.config.native
            context = None if self.tls is None else self.tls.context
            address = Address(*await self._native.start(native.host, native.port, context))
            if self.config.http is not None:
                self.http_address = await self._start_http(services, self.config.http)
            if self._member is not None:
                await self._join(self._member, address)
            if self.config.web.webhook_targets:
                self._start_pushers(services)
            return address
        except BaseException:
            await self.stop()
            raise

    async def _start_http(self, services: NodeServices, address: Address) -> Address:
        self._http = HttpServer(edge_of(self.config, NodeClients(services)))
        return await self._http.start(address, None if self.tls is None else self.tls.context)

    def _start_pushers(self, services: NodeServices) -> None:
        # An HTTP client is loaded only where it is used: that takes a fifth of a node's start.
        from quiver.edge.webhooks.pushers import Pushers  # noqa: PLC0415

        client = AsyncClient(dialer=InProcessDialer(services, INTERNAL), clock=self._clock)
        is_mine = services.broker.subscriptions.coordinates
        self._pushers = Pushers(client, self.config.web, self._clock, is_mine)
        self._pushers.start()

    async def _open(self) -> NodeServices:
        started, folder = self._clock.monotonic(), self.config.data
        self._lock = lock_folder(self._disk, folder)
        metadata = self.config.metadata
        self._store = await open_store(metadata, folder, self._clock)
        limits, metrics = self.config.limits, NodeMetrics(self.config.metrics.names_max)
        storage, remote, secret = None, None, None
        if metadata.store == "etcd":
            secret = await peer_secret(self._store)
            storage, remote = self._as_member(self._store, secret)
        self._broker = Broker(
            folder,
            self._store,
            disk=self._disk,
            clock=self._clock,
            run_blocking=self._threads,
            run_checks=self._checks,
            on_unread_lost=metrics.unread_lost.inc,
            traffic=metrics.traffic,
            storage=storage,
            remote=remote,
            limits=BrokerLimits(
                retention_interval_s=limits.retention_interval_s,
                free_bytes_min=limits.free_bytes_min,
                tail_bytes_total=limits.tail_bytes_total,
            ),
        )
        await self._broker.open()
        if storage is not None and self._member is not None:
            self._follow(self._member, storage, self._broker)
        self._observability = Observability(
            self.config, self._broker, metrics, self._clock, self._alert_webhooks()
        )
        self._observability.start()
        self._tokens = TokenStore(self._store, self._clock)
        await self._tokens.load()
        self._tokens.start()
        self.services = NodeServices(
            broker=self._broker,
            metrics=metrics,
            limits=limits,
            clock=self._clock,
            node=self.config.name,
            started=started,
            authority=Authority(
                self._clock,
                tokens=self._tokens,
                security=self.config.security,
                quotas=self.config.quotas,
                principal_quotas=self.config.principal_quotas,
                is_queue=self._broker.is_queue,
            ),
            observability=self._observability,
            require_target=self._require_target,
            member=self._member,
            peers=self._peers,
        )
        self.services.authority.peer_secret = secret
        if self._member is not None:
            self.services.cluster = ClusterAdministration(self._store, self._member.view)
        return self.services

    # ------------------------------------------------------------------ in a cluster

    def _as_member(self, store: MetadataStore, secret: str) -> tuple[ReplicatedStorage, PeerBroker]:
        """What makes this node one of a cluster. It joins once it listens."""
        config, clock = self.config, self._clock
        node = NodeId(config.name)
        self._peers = Peers(node, secret, config.security, clock, self._nodes)
        self._member = ClusterNode(
            NodeRecord(id=node, zone=config.zone, version=__version__),
            config.data,
            ClusterSettings(lease_seconds=config.metadata.lease_s),
            self._logs_of,
            store=store,
            network=self._peers,
            disk=self._disk,
            clock=clock,
            run_blocking=self._threads,
            new_disk_name=lambda: secrets.token_hex(16),
        )
        storage = ReplicatedStorage(self._member, clock, self._threads)
        return storage, PeerBroker(self._peers, clock, self._leader_of)

    def _nodes(self) -> Mapping[NodeId, NodeRecord]:
        return {} if self._member is None else self._member.view.state.nodes

    def _logs_of(self, partition: PartitionId) -> tuple[tuple[str, LogSettings], ...]:
        assert self._broker is not None
        return self._broker.listener.logs_of(partition)

    def _leader_of(self, topic: str, index: int) -> str | None:
        assert self._broker is not None
        return self._broker.known_leader(topic, index)

    def _follow(self, member: ClusterNode, storage: ReplicatedStorage, broker: Broker) -> None:
        """Let the broker know of whatever changes in the cluster."""

        def load(entries: tuple[Entry, ...], revision: int) -> None:
            storage.learn(entries)
            broker.listener.reload(entries, revision)

        def commit(changes: tuple[Entry | Delete, ...], revision: int) -> None:
            storage.learn(changes)
            broker.listener.apply(changes, revision)

        member.view.on_load, member.view.on_commit = load, commit
        storage.on_lead = broker.listener.leads_now

    async def _join(self, member: ClusterNode, native: Address) -> None:
        record = member.membership.record
        member.membership.record = msgspec.structs.replace(
            record,
            address=advertised(self.config.advertise, native),
            http="" if self.http_address is None else str(self.http_address),
        )
        await member.start()
        # Whoever connects from now on finds a node that knows of itself.
        await member.view.wait_for(member.membership.revision, _JOIN_TIMEOUT_S)

    def _alert_webhooks(self) -> list[Tell]:
        url = self.config.alerts.webhook
        if not url:
            return []
        from quiver.edge.webhooks.alert_webhook import AlertWebhook  # noqa: PLC0415 - as above

        return [AlertWebhook(url, self._targets, self.config.name, self._clock).tell]

    def _require_target(self, url: str | None) -> None:
        if url is not None:
            self._targets.require(url)

    async def _secure(self) -> None:
        """Read the certificates, and see to it that somebody can be let in."""
        security = self.config.security
        if exposed(self.config) and not security.authentication:
            logger.warning("other machines can connect, and everybody may do everything")
        elif exposed(self.config) and not security.tls_certificate:
            logger.warning("there is no TLS: tokens and messages can be read on their way")
        if security.tls_certificate:
            self.tls = ServerTls(security)
            self._tls_watch = asyncio.create_task(self.tls.watch(self._clock))
        if security.authentication and not security.admin_names:
            assert self._tokens is not None
            path = await make_bootstrap_token(self._tokens, self.config.data)
            if path is not None:
                logger.info("the first token was made; it may do everything", file=path)

    async def stop(self) -> None:
        """Drain, then close from the outside in. May be called twice."""
        if self._member is not None:
            await self._member.hand_over()  # others go on with it while this node drains
        if self._observability is not None:
            await self._observability.stop()
            self._observability = None
        if self._pushers is not None:
            await self._pushers.stop()
            self._pushers = None
        if self._http is not None:
            await self._http.drain(self.config.limits.drain_timeout_s)
            self._http = None
        if self._native is not None:
            await self._native.drain(self.config.limits.drain_timeout_s)
            self._native = None
        if self._broker is not None and not await self._close(self._broker):
            self._lock = None  # stays taken while the process lives: a late write may still come
        self._broker = None
        if self._member is not None:
            await self._member.stop()
            self._member = None
        if self._peers is not None:
            await self._peers.close()
            self._peers = None
        if self._tls_watch is not None:
            self._tls_watch.cancel()
            await asyncio.wait([self._tls_watch])
            self._tls_watch = None
        if self._tokens is not None:
            await self._tokens.close()
            self._tokens = None
        if self._store is not None:
            await self._store.close()
            self._store = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._threads.close()
        self._checks.close()

    async def _close(self, broker: Broker) -> bool:
        """Whether it closed. A disk that does not answer must not keep the node from ending."""
        closing = asyncio.create_task(broker.close())
        timer = asyncio.create_task(self._clock.sleep(_CLOSE_TIMEOUT_S))
        await asyncio.wait([closing, timer], return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        if closing.done():
            closing.result()
            return True
        logger.error("the logs were not closed in time", seconds=_CLOSE_TIMEOUT_S)
        closing.cancel()
        await asyncio.wait([closing])
        return False


def advertised(given: str, native: Address) -> str:
    """Where other nodes and clients reach this one."""
    host, _, port = given.rpartition(":")
    if not given:
        router = native.host in ("0.0.0.0", "::", "")  # noqa: S104 - it is asked about, not bound
        return str(Address(socket.gethostname() if router else native.host, native.port))
    return given if host and port.isdigit() else str(Address(given, native.port))


def _allow_many_files() -> None:
    """Let the process have as many files and sockets open as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _collect_rarely() -> None:
    """Look for garbage less often, and not among what lives as long as the node."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


async def run_node(
    config: NodeConfig, on_ready: Callable[[Address | None, Address | None], None]
) -> None:
    """Run a node until SIGTERM or SIGINT. ``on_ready`` is told where it listens: native, HTTP."""
    _allow_many_files()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node, native, http = await _started(config, stopping)
    try:
        logger.info(
            "node is ready",
            node=config.name,
            version=__version__,
            data=config.data,
            role=config.role,
            native=str(native or "off"),
            http=str(http or "off"),
        )
        _collect_rarely()
        on_ready(native, http)
        await stopping.wait()
        logger.info("node is stopping", node=config.name)
    finally:
        await node.stop()
    logger.info("node has stopped", node=config.name)


async def _started(
    config: NodeConfig, stopping: asyncio.Event
) -> tuple[Node | Forwarder, Address | None, Address | None]:
    """A node that runs. While its metadata store elects, or is not there yet, it is waited for."""
    if config.role == "forwarder":
        forwarder = Forwarder(config)
        try:
            return forwarder, None, await forwarder.start()
        except BaseException:
            await forwarder.stop()
            raise
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STORE_WAIT_S
    while True:
        node = Node(config)
        try:
            native = await node.start()
            return node, native, node.http_address
        except (MetadataUnavailable, MetadataConflict, LeaseLost) as error:
            if stopping.is_set() or loop.time() > deadline:
                raise
            logger.warning("the metadata store is waited for", error=error.message)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _STORE_AGAIN_S)
