"""A node: builds the parts that its roles need, and starts and stops them in order.

    every node     log directory, quorum (voter or observer), metadata image, internal listener
    controller     the active controller's shell on the quorum
    broker         session with the controller, replicas, service, Kafka listeners

It runs unchanged in the simulator: disk, clock, randomness and network are arguments of its constructor, and its
listeners are created by the running event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog

from strandline.cluster.broker.handlers.cluster import describe_quorum_handler
from strandline.cluster.broker.log_levels import LogLevels
from strandline.cluster.node.authorization import open_doors
from strandline.cluster.node.blocked_loop import LoopLag
from strandline.cluster.node.bootstrap import read_bootstrap
from strandline.cluster.node.broker_role import BrokerRole
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import HTTP
from strandline.cluster.node.faults.injection import FaultInjection
from strandline.cluster.node.format import random_id, read_directory, take_directories
from strandline.cluster.node.http.pages import commands_of, routes_of
from strandline.cluster.node.http.protocol import HttpServer
from strandline.cluster.node.http.trace import TracePage
from strandline.cluster.node.internal.health import ReportsHealth
from strandline.cluster.node.internal.internal_tls import SpeaksTls
from strandline.cluster.node.main_directory import as_it_starts
from strandline.cluster.node.parts import NodeParts
from strandline.cluster.node.settings import INTERNAL
from strandline.cluster.node.tiered import open_tier_store
from strandline.cluster.node.tls import NodeTls
from strandline.cluster.security.certificates import CertificateWatch
from strandline.controller import methods
from strandline.controller.controller import Controller, ControllerConfig, ping_handler
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import KRAFT_FEATURE, OWN_LEVELS, Supported
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.publisher import ImagePublisher, ImageRehearsal
from strandline.controller.metadata.records import MetadataRecord
from strandline.controller.metadata.settings import settings_without_effect
from strandline.controller.quorum.quorum import Quorum
from strandline.controller.survey import why_no_voter
from strandline.log.disk import Disk, DiskError
from strandline.log.log_dirs import LogDirs
from strandline.log.object_store import ObjectStore
from strandline.log.retention import believed_clock
from strandline.log.watched_disk import LOST_FACTOR, SyncWatch, WatchedDisk
from strandline.proto.errors import ConfigError, FatalError, KafkaError, StorageError
from strandline.proto.ids import NO_BROKER_EPOCH
from strandline.proto.ports import Clock, Rng, Rpc, RpcServer, StreamHandler, UnaryHandler
from strandline.proto.tasks import spawn
from strandline.replica.tier_config import TierConfig

log = structlog.get_logger("strandline.node")


class Node:
    """One node of the cluster.

    Call `start()`, wait for `failed` (it gets an exception only if the node must stop) or for a signal, then call
    `stop()`. The parts are attributes: `log_dirs`, `quorum`, `publisher`, `controller` (None without that role),
    `broker` (None without that role).
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        disk: Disk,
        clock: Clock,
        rng: Rng,
        rpc: Rpc,
        disks: Mapping[str, Disk] | None = None,
        open_store: Callable[[TierConfig], ObjectStore] = open_tier_store,
        supported: Supported = OWN_LEVELS,
        log_levels: LogLevels | None = None,
    ) -> None:
        """Open the log directories and build the parts; nothing runs yet.

        Args:
            config: settings with `log.dirs` in any order; the attribute `config` has the main directory first.
            disk: disk of the first of `log.dirs`.
            disks: disks of the others, by path. Each is watched separately and can fail alone, so each must be a
                separate object, other than `disk`. Directories that are left out are on `disk`, and fail with it.
            open_store: opens the object store.
            supported: levels of features that this node supports; those of an older build make it behave like that.
            log_levels: levels of the process's loggers; None: the process has another owner, which sets up its logging.

        Raises:
            ConfigError: a directory is not formatted, or not for this node; or the main one cannot be determined.
            DirectoryInUse: another process uses a directory.
            CorruptLogError, DiskError: the directory cannot be used.
        """
        lie_on = {path: (disks or {}).get(path, disk) for path in config.log_dirs}
        lie_on[config.data_dir] = disk
        self.config = config = as_it_starts(config, lie_on)
        disk = main = lie_on[config.data_dir]
        self.faults = FaultInjection() if config.fault_injection else None
        if self.faults is not None:
            disk, clock = self.faults.slow(disk), self.faults.shift(clock)
        self.disk = WatchedDisk(disk, clock, self.fatal)
        self.disks = dict.fromkeys(config.log_dirs, self.disk)
        """Disk of each log directory, by path."""
        for path, other in ((path, lie_on[path]) for path in config.log_dirs if lie_on[path] is not main):
            slowed = other if self.faults is None else self.faults.slow(other)
            self.disks[path] = WatchedDisk(slowed, clock, partial(self._disk_poisoned, path))
        self.clock = clock
        self.rng = rng
        self.rpc = rpc
        self._open_store = open_store
        self._supported = supported
        self._log_levels = log_levels or LogLevels({})
        self.incarnation_id = random_id(rng)
        self.hurried = asyncio.Event()
        """Set to hurry a stop: it no longer waits for other nodes, but still syncs and closes all local files."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broker: BrokerRole | None = None
        self._locks = take_directories(lie_on, config)
        try:
            self._build()
        except BaseException:
            self._unlock()
            raise

    def _build(self) -> None:
        config, disk, clock, rng, rpc = self.config, self.disk, self.clock, self.rng, self.rpc
        directory = read_directory(disk, config)
        self.log_dirs = LogDirs.open(self.disks, clock, node_id=config.node)
        first = self.log_dirs.first
        self.believed = believed_clock(clock, first.disk, first.path)
        self.cluster_id = first.meta.cluster_id
        self.tls = NodeTls(config, self.cluster_id, clock)
        if self.tls.internal is not None:
            if not isinstance(rpc, SpeaksTls):
                allowed = "PLAINTEXT: what carries calls between nodes here speaks no TLS"
                raise ConfigError("listener.security.protocol.map", "INTERNAL:SSL", allowed)
            rpc.secure(self.tls.internal)
        self._certificates = CertificateWatch(self.tls.certificates, self.clock)
        self.publisher = ImagePublisher(self.cluster_id, self._supported)
        # rule B32/metadata-are-stamped-by-the-wall-clock
        self.quorum = Quorum(
            node_id=config.node,
            directory_id=first.directory_id,
            cluster_id=self.cluster_id,
            voters=directory.voters,
            is_voter=config.is_controller,
            disk=disk,
            clock=clock,
            rng=rng,
            rpc=rpc,
            data_dir=config.data_dir,
            config=config.quorum,
            on_fatal=self.fatal,
            fresh_boot=first.fresh_boot,
            stamp_ms=self.believed.earliest_ms,
            listens_at=config.advertised(INTERNAL, config.internal),
            bootstrap=config.quorum_bootstrap_servers,
            auto_join=config.quorum_auto_join,
            reach=partial(why_no_voter, rpc),
        )
        # The publisher first: the controller begins with the publisher's image.
        self.quorum.register(self.publisher)
        self.publisher.subscribe(self._hear_the_time)
        self.publisher.subscribe(self._see_levels)
        self.quorum.rehearse_on(ImageRehearsal(self.publisher))
        self.controller: Controller | None = None
        if config.is_controller:
            self.controller = Controller(
                node_id=config.node,
                quorum=self.quorum,
                publisher=self.publisher,
                rpc=rpc,
                clock=clock,
                rng=rng,
                config=_controller_config(config, read_bootstrap(disk, config.data_dir), self._supported),
                on_fatal=self.fatal,
            )
            self.quorum.register(self.controller)
        self.broker = BrokerRole(self._parts()) if config.is_broker else None
        if self.faults is not None and self.broker is not None:
            for listener in self.broker.listeners:
                listener.apis = self.faults.intercept(listener.apis)
        self.loop_lag = LoopLag(clock)
        self._sync_watches = list(self._watch_syncs(config.disk_sync_timeout_ms))
        self.http: HttpServer | None = None
        if config.http is not None:
            trace = TracePage(self)
            commands = commands_of(self, trace)
            self.http = HttpServer(config.http, routes_of(self, trace), clock, commands, self.tls.of(HTTP))
        self._health: asyncio.Task[None] | None = None
        self._server: RpcServer | None = None
        self._serving = True
        self._stopped = False

    def _see_levels(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Tell the quorum its kraft.version. After a change of metadata.version take a snapshot, so that a build that
        does not know the previous level can begin with this snapshot and need not read earlier records."""
        self.quorum.raise_kraft_version(image.finalized.get(KRAFT_FEATURE, 0))
        if delta.base.metadata_version not in (0, image.metadata_version):
            self.quorum.snapshot_soon()  # rule A35/log-of-a-level-that-was-left

    def _hear_the_time(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Pass the timestamps of the metadata to the believed clock, up to the registration of this process."""
        self.believed.tell(image.timestamp_ms)
        broker = image.brokers.get(self.config.node)
        if broker is not None and broker.incarnation_id == self.incarnation_id:
            self.believed.told_all()
            self.publisher.unsubscribe(self._hear_the_time)

    def _watch_syncs(self, timeout_ms: int) -> Iterator[SyncWatch]:
        yield SyncWatch(self.disk, timeout_ms, self._disk_stalled, self._disk_recovered, self._disk_lost)
        for path, disk in self.disks.items():
            if disk is not self.disk:
                fails = partial(self._directory_hangs, path)
                yield SyncWatch(disk, timeout_ms, fails, lambda: None, fails)

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.release()

    def _parts(self) -> NodeParts:
        return NodeParts(
            config=self.config,
            cluster_id=self.cluster_id,
            incarnation_id=self.incarnation_id,
            disk=self.disk,
            log_dirs=self.log_dirs,
            quorum=self.quorum,
            publisher=self.publisher,
            clock=self.clock,
            believed=self.believed,
            rng=self.rng,
            rpc=self.rpc,
            hurried=self.hurried,
            tls=self.tls,
            open_store=self._open_store,
            fatal=self.fatal,
            log_levels=self._log_levels,
        )

    async def start(self) -> None:
        """Bind the listeners and begin to take part in the cluster. `wait_ready` waits until the node is ready.

        Raises:
            OSError: a listener's address cannot be bound.
            CorruptLogError, DiskError: the metadata log cannot be used.
        """
        try:
            await self._start()
        except BaseException:
            await self._abandon()
            raise
        log.info(
            "node started",
            node=self.config.node_id,
            cluster=self.cluster_id,
            data=self.config.data_dir,
            sync_thread=self.disk.sync_thread,
        )
        for setting, reason in settings_without_effect(self.config.dynamic, topic=False).items():
            value = self.config.dynamic[setting]
            log.warning("a setting of this node has no effect", setting=setting, value=value, why=reason)
        for door in open_doors(self.config):
            event = "the authorizer leaves a door open" if door.has_effect else "a setting of this node has no effect"
            log.warning(event, setting=door.setting, why=door.lets, remedy=door.remedy)

    async def _start(self) -> None:
        unary, streams = self._handlers()
        self._server = await self.rpc.serve(self.config.internal, unary, streams)
        if self.http is not None:
            await self.http.start()
            if self.faults is not None:
                log.warning("fault injection is on: whoever reaches the HTTP listener can make requests fail")
        if self.broker is not None:
            await self.broker.bind()
        self.loop_lag.start()
        self._certificates.start()
        for watch in self._sync_watches:
            watch.start()
        await self.quorum.start()
        if self.broker is not None:
            self.broker.start(self.config.advertised(INTERNAL, self._server.endpoint))
        if isinstance(self._server, ReportsHealth):
            self._server.set_serving(False)
            self._health = spawn(self._report_health(self._server), self.fatal)

    async def _report_health(self, server: ReportsHealth) -> None:
        await self.wait_ready()
        server.set_serving(True)

    async def _abandon(self) -> None:
        """Release everything that a failed start has opened; nothing is written."""
        self._stopped = True
        if self.broker is not None:
            for listener in self.broker.listeners:
                await listener.close()
        self.quorum.abandon()
        await self._close_ports()
        self._unlock()

    async def _close_ports(self) -> None:
        if self._health is not None:
            self._health.cancel()
        if self._server is not None:
            await self._server.close()
        await self.rpc.close()
        self._serving = False
        self.loop_lag.stop()
        self._certificates.stop()
        for watch in self._sync_watches:
            watch.stop()
        if self.http is not None:
            await self.http.close()

    async def wait_ready(self) -> None:
        """Return once this node is ready: a broker is unfenced, a controller knows the quorum's leader."""
        if self.broker is not None:
            await self.broker.wait_ready()
            return
        if not self.ready:
            known = asyncio.Event()
            self.publisher.subscribe_leader(lambda leader: known.set() if leader.leader_id is not None else None)
            await known.wait()

    @property
    def ready(self) -> bool:
        """True if the node is ready: the condition that `wait_ready` waits for."""
        if self.broker is not None:
            return self.broker.ready
        return self.quorum.leader_and_epoch.leader_id is not None

    def describe(self) -> dict[str, str | int]:
        """Return node id, cluster id and listeners, for the program that started the node."""
        described: dict[str, str | int] = {"node_id": self.config.node_id, "cluster_id": self.cluster_id}
        if self.broker is not None:
            described |= {listener.name: str(listener.endpoint) for listener in self.broker.listeners}
        if self._server is not None:
            described[INTERNAL] = str(self._server.endpoint)
        if self.http is not None:
            described[HTTP] = str(self.http.endpoint)
        return described

    async def stop(self) -> None:
        """Stop by a controlled shutdown: leaderships are handed over first, and the clean-shutdown marker is written
        last. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        clean = not self.failed.done()
        epoch = NO_BROKER_EPOCH
        if self.broker is not None:
            epoch = self.broker.session.broker_epoch
            clean &= await self._ended(self.broker.stop(clean))
        if self.controller is not None:
            self.controller.close()
        clean &= await self._ended(self.quorum.close(clean))
        await self._close_ports()
        if clean:
            clean = await self._ended(self._close_log_dirs(epoch))
        if not self.disk.stalled:  # otherwise a sync still runs: the kernel releases the locks when the process ends
            self._unlock()
        log.info("node stopped", node=self.config.node_id, clean=clean)

    async def _ended(self, ending: Awaitable[None]) -> bool:
        """Wait for the end of one part, and return whether it ended cleanly. If its disk is full or fails, the other
        parts still end; the clean-shutdown marker is then not written, and the next start recovers."""
        try:
            await ending
        except (KafkaError, StorageError, DiskError) as error:
            log.error("not stopped cleanly: the next start recovers", node=self.config.node_id, error=str(error))
            return False
        return True

    async def _close_log_dirs(self, epoch: int) -> None:
        self.log_dirs.close(epoch)

    def _handlers(self) -> tuple[dict[str, UnaryHandler], dict[str, StreamHandler]]:
        unary, streams = self.quorum.rpc_handlers()
        unary = {
            **unary,
            methods.PING.path: ping_handler(self.config.node, self.incarnation_id, self._supported),
            methods.DESCRIBE_QUORUM.path: describe_quorum_handler(self.config.node, self.quorum),
        }
        if self.controller is not None:
            more_unary, more_streams = self.controller.rpc_handlers()
            unary, streams = {**unary, **more_unary}, {**streams, **more_streams}
        if self.broker is not None:
            unary = {**unary, **self.broker.unary_handlers()}
            streams = {**streams, **self.broker.replicas.stream_handlers()}
        return unary, streams

    @property
    def disk_bound_ms(self) -> float:
        """Milliseconds for which one disk call may block the event loop: `disk.sync.timeout.ms`, or `LOST_FACTOR` times
        that on a broker whose acks wait for no sync, as for a group sync. Infinite after the listeners are closed, as a
        stop may have gigabytes to sync.
        """
        if not self._serving:
            return math.inf
        timeout_ms = float(self.config.disk_sync_timeout_ms)
        patient = self.broker is not None and not self.broker.replicas.config.sync_before_ack
        return timeout_ms * LOST_FACTOR if patient else timeout_ms

    def _disk_stalled(self, age_ms: float) -> None:
        """Give up the leaderships of quorum and partitions: a sync hangs, so nothing can be made durable here."""
        self.quorum.resign()  # rule A5/quorum-leads-on-a-hung-disk
        if self.broker is not None:
            self.broker.replicas.disk_stalls.stalled(age_ms)

    def _disk_recovered(self) -> None:
        if self.broker is not None:
            self.broker.replicas.disk_stalls.recovered()

    def _disk_poisoned(self, path: str, error: BaseException) -> None:
        """Take a directory other than the main one offline, as its disk has failed permanently."""
        if self.broker is not None:
            self.broker.replicas.directory_failed(path, str(error))

    def _directory_hangs(self, path: str, age_ms: float) -> None:
        self._disk_poisoned(path, FatalError(f"a sync of it does not end: {age_ms / 1000:.1f} s by now"))

    def _disk_lost(self, age_ms: float) -> None:
        self.fatal(FatalError(f"a sync of {self.config.data_dir} has been under way for {age_ms / 1000:.0f} s"))

    def fatal(self, error: BaseException) -> None:
        """End `failed` with an error, because going on could lose data; the node must then be stopped."""
        if self.failed.done():
            return
        log.critical("the node must stop", node=self.config.node_id, error=str(error))
        self.failed.set_exception(error if isinstance(error, Exception) else FatalError(str(error)))
        # The owner of the node awaits `failed`; if the node is stopping already, nobody does.
        self.failed.add_done_callback(lambda future: future.exception())


def _controller_config(
    config: NodeConfig, bootstrap: Sequence[MetadataRecord], supported: Supported
) -> ControllerConfig:
    """Return the settings of the active controller."""
    return config.controller.replaced(
        static=config.dynamic,
        bootstrap=bootstrap,
        machine=config.controller.machine.replaced(tiered_storage=config.tier.enabled, supported=supported),
    )
