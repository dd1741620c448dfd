"""A node: one event loop, one data folder.

``Node.start`` opens the folder, the metadata store, the broker and the listeners. ``stop`` drains:
nothing new is accepted, what is under way is finished and synced, within a bound. Each part is closed
in the reverse order of its opening, and one that fails to close does not keep the others open.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import structlog

from quiver.aio import cancel_and_wait
from quiver.broker.alerts.service import AlertListener
from quiver.broker.broker import Broker, BrokerEnvironment
from quiver.broker.maintenance import MaintenanceLimits
from quiver.broker.mirror.catalog import cluster_id
from quiver.client import AsyncClient
from quiver.cluster.control.admin import ClusterAdministration
from quiver.cluster.metadata.open import open_store
from quiver.cluster.metadata.secret_key import SecretKey, read_key
from quiver.cluster.metadata.store import MetadataStore
from quiver.cluster.replica.environment import LocalEnvironment
from quiver.config import Address, NodeConfig
from quiver.config.exposure import exposed, require_safe
from quiver.config.processes import ProcessPlace, require_single
from quiver.console.history import MetricsHistory
from quiver.console.recorder import HistoryRecorder
from quiver.edge.auth.authority import Authority
from quiver.edge.auth.bootstrap_token import make_bootstrap_token
from quiver.edge.auth.call_permissions import Definitions
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.auth.tls import ServerTls
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.data_folder import note_formats, take_folder
from quiver.edge.http.app import edge_of
from quiver.edge.http.edge import Edge
from quiver.edge.http.requests import Requests
from quiver.edge.http.server import HttpServer
from quiver.edge.in_process import InProcessDialer, InsideClient
from quiver.edge.limits.connections import ConnectionBound
from quiver.edge.limits.inflight_budget import InflightBudget
from quiver.edge.limits.sizing import Sizing, log_sizing, sizing_of
from quiver.edge.live_forwarders import LiveForwarders
from quiver.edge.membership import ClusterMembership
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.runner import MirrorRunner
from quiver.edge.native.server import NativeServer
from quiver.edge.observability import Observability
from quiver.edge.peers.secrets import PeerSecrets
from quiver.edge.principal_clients import NodeClients
from quiver.edge.services import NodeServices
from quiver.edge.webhooks.secrets import WebhookSecrets
from quiver.edge.webhooks.targets import Targets
from quiver.formats import Format
from quiver.log.cache.cache_budget import CacheBudget
from quiver.log.clean_ends import CleanEnds
from quiver.log.disk.disk import Disk, FolderLock
from quiver.log.disk.disk_threads import DiskThreads
from quiver.log.disk.inline_policy import InlinePolicy
from quiver.log.disk.real_disk import RealDisk
from quiver.log.log_context import LogContext
from quiver.metrics import NodeMetrics
from quiver.model.clock import Clock, SystemClock

if TYPE_CHECKING:
    from quiver.edge.webhooks.pushers import Pushers

_DISK_THREADS = 8
_CLOSE_TIMEOUT_S = 30.0

logger = structlog.get_logger()


class Node:
    """Running, once ``start`` has returned it; ``stop`` it whatever happens."""

    def __init__(
        self,
        services: NodeServices,
        stack: AsyncExitStack,
        *,
        tls: ServerTls | None = None,
        native: NativeServer | None = None,
        native_address: Address | None = None,
        http_address: Address | None = None,
        pushers: Pushers | None = None,
    ) -> None:
        self.services = services
        self.pushers = pushers
        self.tls = tls
        """What every listener of this node encrypts with, if it does."""
        self.native = native
        self.native_address = native_address
        """Where the native protocol is spoken, if it is."""
        self.http_address = http_address
        """Where HTTP is spoken, if it is."""
        self._stack = stack

    @classmethod
    async def start(
        cls,
        config: NodeConfig,
        *,
        listen: bool = True,
        disk: Disk | None = None,
        clock: Clock | None = None,
        process: ProcessPlace | None = None,
    ) -> Node:
        """Open everything; what was opened is closed again if the rest cannot be. ``process``: it is
        one of several that serve the data folder together."""
        if listen:
            require_safe(config)
        async with AsyncExitStack() as stack:
            # Of a cluster a node must answer the others in time, however slow its disk is, and the
            # event loop of an embedded one belongs to the program.
            may_block = listen and config.metadata.store != "etcd" and disk is None
            clock = clock or SystemClock()
            inline = InlinePolicy(clock) if may_block else None
            sizing = sizing_of(config.limits, 1 if process is None else process.count)
            disk = disk or RealDisk(sizing.log_files_max)
            starting = _Starting(config, disk, clock, stack, inline, sizing, process)
            node = await (starting.listening() if listen else starting.embedded())
            node._stack = stack.pop_all()
            return node

    async def stop(self) -> None:
        """Drain, then close from the outside in. May be called twice."""
        await self._stack.aclose()


class _Starting:
    """The steps of a start. Each pushes onto the stack how it is undone."""

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        clock: Clock,
        stack: AsyncExitStack,
        inline: InlinePolicy | None,
        sizing: Sizing,
        process: ProcessPlace | None,
    ) -> None:
        self._config = config
        self._process = process
        self._sizing = sizing
        self._caches = CacheBudget(sizing.cache_bytes_max, sizing.memory_bytes_max)
        self._logs = LogContext(caches=self._caches)
        self._disk = disk
        self._clock = clock
        self._stack = stack
        self._started = clock.monotonic()
        self._threads = DiskThreads(_DISK_THREADS, inline)
        # One thread of its own: whoever keeps it busy keeps no disk waiting, and one core at most.
        self._checks = DiskThreads(1)
        self._targets = Targets(config.web.webhook_targets)
        stack.callback(self._threads.close)
        stack.callback(self._checks.close)

    async def embedded(self) -> Node:
        """A node that only its own process can reach."""
        services, _ = await self._open()
        self._mirror(services)
        await self._observe(services)
        return Node(services, self._stack)

    async def listening(self) -> Node:
        """A node that listens, in a cluster if its settings say so."""
        config = self._config
        services, membership = await self._open()
        tls = await self._secure(services)
        context = None if tls is None else tls.context
        bound = ConnectionBound(self._sizing.connections_max)
        native = NativeServer(services, bound)
        self._stack.push_async_callback(native.drain, config.limits.drain_timeout_s)
        native_context = self._native_context(tls, membership)
        at = config.native
        address = Address(
            *await native.start(at.host, at.port, native_context, reuse_port=bool(self._process))
        )
        http: Address | None = None
        edge: Edge | None = None
        server: HttpServer | None = None
        if config.http is not None:
            requests, space = Requests(), services.broker.maintenance
            clients, history = NodeClients(services, is_alone=requests.has_one), MetricsHistory()
            recorder = HistoryRecorder(self._internal_client(services), self._clock, history)
            self._stack.push_async_callback(recorder.stop)
            recorder.start()
            edge = edge_of(
                config,
                clients,
                requests,
                space.require_space,
                is_single=services.peers is None,
                history=history,
            )
            edge.is_joining = membership is not None
            server = HttpServer(edge, bound)
            self._stack.push_async_callback(server.drain, config.limits.drain_timeout_s)
            http = config.http if self._process else await server.start(config.http, context)
        pushes = config.web.webhook_targets and config.web.webhooks_by != "forwarders"
        pushers = self._push(services) if pushes else None
        await self._observe(services)
        self._mirror(services)
        if membership is not None:
            # Others go on with what this node leads while it drains.
            self._stack.push_async_callback(membership.node.hand_over)
            await membership.join(address, http)
        if self._process is not None:
            # From now on the kernel gives it its share of the connections to all.
            address = self._process.native
            await native.start(address.host, address.port, native_context, reuse_port=True)
            if config.http is not None and server is not None:
                await server.start(config.http, context, reuse_port=True)
        if edge is not None:
            edge.is_joining = False
        log_sizing(self._sizing, config.limits, config.name)
        return Node(
            services,
            self._stack,
            tls=tls,
            native=native,
            native_address=address,
            http_address=http,
            pushers=pushers,
        )

    async def _open(self) -> tuple[NodeServices, ClusterMembership | None]:
        """The folder, the metadata store, the broker, and who may do what with it."""
        config, clock, stack = self._config, self._clock, self._stack
        lock = take_folder(self._disk, config.data)
        releasing = stack.enter_context(_Releasing(lock))
        require_single(config, self._process)
        ends = await self._threads(lambda: CleanEnds.load(self._disk, config.data))
        self._logs = LogContext(caches=self._caches, ends=ends)
        stack.push_async_callback(self._save_ends, releasing)
        shared = None if self._process is None else self._process.folder
        store = await open_store(
            config.metadata, shared or config.data, clock, shared=shared is not None
        )
        stack.push_async_callback(store.close)
        key = read_key(config.security.key_file)
        await key.require_own(store)
        tokens = TokenStore(store, clock)
        stack.push_async_callback(tokens.close)
        metrics = NodeMetrics(config.metrics.names_max)
        membership: ClusterMembership | None = None
        peer_secrets: PeerSecrets | None = None
        if config.metadata.store == "etcd" or self._process is not None:
            peer_secrets = await PeerSecrets.open(store, clock, key)
            stack.push_async_callback(peer_secrets.close)
            peer_secrets.start()
            membership = ClusterMembership(
                config,
                store,
                peer_secrets,
                lambda: broker,
                LocalEnvironment(
                    disk=self._disk, clock=clock, run_blocking=self._threads, logs=self._logs
                ),
                host="" if self._process is None else self._process.host,
            )
            stack.push_async_callback(membership.peers.close)
            stack.push_async_callback(membership.node.stop)
        broker = await Broker.open(self._environment(store, key, metrics, membership))
        stack.push_async_callback(self._close, broker, releasing)
        await tokens.load()
        tokens.start()
        admin = None if membership is None else ClusterAdministration(store, membership.node.view)
        forwarders = LiveForwarders()
        services = NodeServices(
            broker=broker,
            metrics=metrics,
            limits=config.limits,
            clock=clock,
            node=config.name,
            started=self._started,
            authority=Authority(
                clock,
                tokens=tokens,
                security=config.security,
                quotas=config.quotas,
                principal_quotas=config.principal_quotas,
                definitions=Definitions(
                    is_queue=broker.subscriptions.is_queue,
                    shared_dead_letters=broker.dead_letters.shared_queue_of,
                ),
                accepts_peer=None if peer_secrets is None else peer_secrets.accepts,
                is_node=None
                if membership is None or not config.security.node_ca
                else membership.is_node,
            ),
            observability=Observability(
                config,
                broker,
                metrics,
                clock,
                cluster=None if admin is None else admin.describe,
                forwarders=lambda: forwarders.count(clock.monotonic()),
                listeners=self._alert_webhooks(),
                process=None if self._process is None else self._process.number,
            ),
            inflight=InflightBudget(self._sizing.requests_bytes_max, self._caches),
            require_push=self._require_push,
            note_formats=self._note_formats,
            member=None if membership is None else membership.node,
            peers=None if membership is None else membership.peers,
            peer_secrets=peer_secrets,
            cluster=admin,
            mirrors=await self._mirror_runner(store, broker, membership),
            forwarders=forwarders,
            forwarders_call_webhooks=config.web.webhooks_by != "nodes",
        )
        return services, membership

    async def _note_formats(self, needed: Collection[Format]) -> None:
        """What is kept in etcd is no matter of a data folder."""
        if self._config.metadata.store != "etcd":
            folder = self._config.data if self._process is None else self._process.folder
            await self._threads(lambda: note_formats(self._disk, folder, needed))

    async def _mirror_runner(
        self, store: MetadataStore, broker: Broker, membership: ClusterMembership | None
    ) -> MirrorRunner:
        def decides() -> bool:
            return membership is None or membership.node.is_controller

        await broker.mirrors.catalog.load()
        return MirrorRunner(
            MirrorEnvironment(
                mirrors=broker.mirrors,
                cluster=await cluster_id(store),
                clock=self._clock,
                run_checks=self._checks,
                decides=decides,
            )
        )

    def _mirror(self, services: NodeServices) -> None:
        self._stack.push_async_callback(services.mirrors.stop)
        services.mirrors.start()

    def _environment(
        self,
        store: MetadataStore,
        key: SecretKey,
        metrics: NodeMetrics,
        membership: ClusterMembership | None,
    ) -> BrokerEnvironment:
        limits = self._config.limits
        return BrokerEnvironment(
            folder=self._config.data,
            store=store,
            secret_key=key,
            disk=self._disk,
            clock=self._clock,
            run_blocking=self._threads,
            run_checks=self._checks,
            on_unread_lost=metrics.unread_lost.inc,
            traffic=metrics.traffic,
            storage=None if membership is None else membership.storage,
            remote=None if membership is None else membership.remote,
            logs=self._logs,
            limits=MaintenanceLimits(
                retention_interval_s=limits.retention_interval_s,
                free_bytes_min=limits.free_bytes_min,
            ),
        )

    async def _secure(self, services: NodeServices) -> ServerTls | None:
        """Read the certificates, and see to it that somebody can be let in."""
        security, tls = self._config.security, None
        if exposed(self._config) and not security.authentication:
            logger.warning("other machines can connect, and everybody may do everything")
        elif exposed(self._config) and not security.tls_certificate:
            logger.warning("there is no TLS: tokens and messages can be read on their way")
        if security.tls_certificate:
            tls = self._watched(ServerTls(security))
        # Of several processes the first makes it: the file is one for all.
        is_first = self._process is None or self._process.number == 0
        if security.authentication and not security.admin_names and is_first:
            folder = self._config.data if self._process is None else self._process.folder
            path = await make_bootstrap_token(services.authority.tokens, folder)
            if path is not None:
                logger.info("the first token was made; it may do everything", file=path)
        return tls

    def _native_context(
        self, tls: ServerTls | None, membership: ClusterMembership | None
    ) -> ssl.SSLContext | None:
        """In a cluster the native port asks for certificates too: nodes show theirs.

        Not so the HTTP port: browsers would ask people for one.
        """
        if tls is None or membership is None:
            return None if tls is None else tls.context
        if not self._config.security.node_ca:
            logger.warning("nodes are known by their secret alone: set security.tls_ca")
            return tls.context
        return self._watched(ServerTls(self._config.security, asks_nodes=True)).context

    def _watched(self, tls: ServerTls) -> ServerTls:
        """The same, which follows its files from now on."""
        watching = asyncio.create_task(tls.watch(self._clock))
        self._stack.push_async_callback(cancel_and_wait, watching)
        return tls

    async def _observe(self, services: NodeServices) -> None:
        services.observability.start()
        self._stack.push_async_callback(services.observability.stop)

    def _push(self, services: NodeServices) -> Pushers:
        # An HTTP client is loaded only where it is used: that takes a fifth of a node's start.
        from quiver.edge.webhooks.pushers import Pushers  # noqa: PLC0415

        client = self._internal_client(services)
        leaders, forwarders = services.broker.leaders, services.forwarders

        def is_mine(subscription: str) -> bool:
            if services.forwarders_call_webhooks and forwarders.webhook_callers(
                self._clock.monotonic()
            ):
                return False
            return leaders.coordinates(subscription)

        pushers = Pushers(client, self._config.web, self._clock, is_mine)
        self._stack.push_async_callback(pushers.stop)
        pushers.start()
        return pushers

    def _internal_client(self, services: NodeServices) -> AsyncClient:
        """A client for what the node does by itself."""
        return InsideClient(InProcessDialer(services, INTERNAL), self._clock)

    def _alert_webhooks(self) -> list[AlertListener]:
        url = self._config.alerts.webhook
        if not url:
            return []
        from quiver.edge.webhooks.alert_webhook import AlertWebhook  # noqa: PLC0415 - as above

        return [AlertWebhook(url, self._targets, self._config.name, self._clock).send]

    async def _require_push(self, url: str | None, secret: str | None) -> None:
        if url is not None:
            self._targets.require(url)
        if secret is not None and self._config.web.webhooks_by != "forwarders":
            secrets = WebhookSecrets(self._config.web.webhook_secrets)
            await self._threads(partial(secrets.read, secret))

    async def _close(self, broker: Broker, releasing: _Releasing) -> None:
        """Close the broker. A disk that does not answer must not keep the node from ending."""
        self._logs.ends.begin_stop()
        closing = asyncio.create_task(broker.close())
        timer = asyncio.create_task(self._clock.sleep(_CLOSE_TIMEOUT_S))
        await asyncio.wait([closing, timer], return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        if closing.done():
            closing.result()
            return
        logger.error("the logs were not closed in time", seconds=_CLOSE_TIMEOUT_S)
        releasing.keep()  # a late write may still come
        await cancel_and_wait(closing)

    async def _save_ends(self, releasing: _Releasing) -> None:
        """When all logs are closed, the next start learns where they end."""
        if not releasing.is_kept:
            try:
                await self._threads(lambda: self._logs.ends.save(self._disk))
            except OSError as error:
                logger.warning("the ends of the logs were not saved", error=str(error))


class _Releasing(contextlib.AbstractContextManager["_Releasing"]):
    """Releases the lock of a data folder at the end, unless it is to be kept while the process lives."""

    def __init__(self, lock: FolderLock) -> None:
        self._lock = lock
        self._kept = False

    def keep(self) -> None:
        self._kept = True

    @property
    def is_kept(self) -> bool:
        return self._kept

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._lock.release()
