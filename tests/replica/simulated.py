"""Three brokers in the simulated world: the production replica manager, logs and streams; a workload; faults; checks.

The controller is the one for tests, outside of the world: its word reaches a broker some milliseconds later, in order,
unless the broker is cut off from it. A broker whose process is gone, or that is cut off, is fenced after a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.object_store import SimStore
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.world import WorldConfig
from strandline.log.batch import decode_records, iter_batches
from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import PartitionLog
from strandline.log.retention import believed_clock
from strandline.log.tier.reading import TierReader
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import BrokerEpoch, Endpoint, NodeId, TopicIdPartition, TopicPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.ports import RpcTimeout, RpcUnavailable
from strandline.proto.tier import TierChange, TierOutcome
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append
from strandline.replica.states import BrokerState, PartitionState, ReadOutcome, ReplicaConfig, ReplicaStatus, Role
from strandline.replica.tier_config import TierConfig
from strandline.replica.tiering import TierParts
from tests.replica.fake_controller import FakeController, partition_state
from tests.replica.helpers import CLUSTER, TP, batch
from tests.stage import Stage

PORT = 9000
FENCE_AFTER_MS = 300
PATH = "/data"


class SimBroker:
    """A machine, and the replica manager of the process that runs on it."""

    def __init__(self, cluster: SimCluster, node: int) -> None:
        self.cluster = cluster
        self.node = NodeId(node)
        self.name = f"n{node}"
        self.endpoint = Endpoint(self.name, PORT)
        self.manager: ReplicaManager | None = None
        self.log_dir: LogDir | None = None
        self.process: Process | None = None
        self.cut_off = False
        self.changes = 0
        """How often the controller was to hear something at once."""
        self._inbox: deque[Callable[[], None]] = deque()
        self._delivered_us = 0
        self.late: list[list[AlterPartitionItem]] | None = None
        """Proposals that the network holds while their sender gives up; None: it holds none."""
        cluster.world.add_machine(self.name)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        self.manager = None
        self._inbox.clear()
        self.process = self.cluster.world.spawn(self.name, self._main)

    async def _main(self, ports: Ports) -> None:
        cluster = self.cluster
        if not ports.disk.exists(f"{PATH}/meta.properties"):
            format_log_dir(ports.disk, PATH, CLUSTER, self.node, UUID(int=self.node))
        self.log_dir = LogDir.open(ports.disk, PATH, ports.clock)
        assert not self.log_dir.offline, self.log_dir.offline
        believed = believed_clock(ports.clock, ports.disk, PATH)
        believed.tell(ports.clock.wall_ms())  # as metadata do
        self.manager = ReplicaManager(
            node_id=self.node,
            cluster_id=CLUSTER,
            log_dirs=LogDirs([self.log_dir]),
            clock=ports.clock,
            believed=believed,
            rng=ports.rng,
            rpc=ports.rpc,
            config=cluster.config,
            send_alter_partition=self._alter_partition,
            on_fatal=cluster.fatal,
            on_change=self._changed,
            tier=self._tier(ports),
        )
        await ports.rpc.serve(Endpoint("", PORT), {}, self.manager.stream_handlers())
        self.manager.start()
        while self.cut_off:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.005)
        controller = cluster.controller
        clean = cluster.rng.random() < 0.5 if cluster.clean_stops is None else cluster.clean_stops
        epoch = controller.register(BrokerState(self.node, self.endpoint, BrokerEpoch(-1)), clean=clean)
        controller.subscribe(self.node, self._post)
        self.deliver(lambda: self._registered(epoch))
        await asyncio.sleep(3600)

    def _changed(self) -> None:
        self.changes += 1

    def _tier(self, ports: Ports) -> TierParts | None:
        cluster = self.cluster
        if cluster.tier_config is None:
            return None
        assert self.process is not None
        store, config = cluster.store.for_node(self.process), cluster.tier_config
        reader = TierReader(
            store,
            CLUSTER,
            ports.clock,
            cache_bytes=config.cache_bytes,
            index_cache_bytes=config.index_cache_bytes,
            concurrency=config.reads_max,
            read_ahead_bytes=1 << 20,
        )
        return TierParts(store, reader, config, self._alter_tiers)

    async def _alter_tiers(self, changes: Sequence[TierChange]) -> list[TierOutcome]:
        """As the session's channel does it: the call or its answer may be lost."""
        rng = self.cluster.rng
        await asyncio.sleep(rng.uniform(0.001, 0.02))
        if self.cut_off or rng.random() < self.cluster.tier_calls_lost:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller can be reached")
        outcomes = self.cluster.controller.alter_tiers(self.node, changes)
        await asyncio.sleep(rng.uniform(0.001, 0.05))
        if rng.random() < self.cluster.tier_calls_lost:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the answer was lost")
        return outcomes

    def _registered(self, epoch: BrokerEpoch) -> None:
        assert self.manager is not None
        if (rate := self.cluster.throttled_rate) is not None:
            self.manager.set_throttled_rates(2 * rate, rate)
        self.manager.set_broker_epoch(epoch)
        asyncio.get_running_loop().call_later(0.01, self.cluster.unfence, self.node)

    def _post(
        self, changes: list[PartitionState], deleted: list[TopicIdPartition], brokers: dict[NodeId, BrokerState]
    ) -> None:
        manager = self.manager
        if manager is not None:
            self.deliver(lambda: manager.apply(changes, deleted, brokers))

    def deliver(self, event: Callable[[], None]) -> None:
        """Let `event` happen in the broker's process, after everything that was delivered before."""
        self._inbox.append(event)
        if not self.cut_off:
            self._deliver_one()

    def _deliver_one(self) -> None:
        loop = self.cluster.world.loop
        due = max(self._delivered_us, loop.now_us + self.cluster.rng.randrange(500, 20_000)) + 1
        self._delivered_us = due
        assert self.process is not None
        loop.call_at_us(due, self._happen, self.process, context=self.process.context)

    def _happen(self, process: Process) -> None:
        if self._inbox and process is self.process and not self.cut_off:
            self._inbox.popleft()()

    def cut(self) -> None:
        self.cut_off = True

    def reach(self) -> None:
        if self.cut_off:
            self.cut_off = False
            for _ in self._inbox:
                self._deliver_one()

    async def _alter_partition(self, items: list[AlterPartitionItem]) -> list[AlterPartitionOutcome]:
        rng = self.cluster.rng
        await asyncio.sleep(rng.uniform(0.001, 0.02))
        if self.late is not None:
            self.late.append(items)
            raise RpcTimeout("the controller is silent")
        if self.cut_off or rng.random() < 0.1:
            raise RpcUnavailable("no controller can be reached")
        outcomes = self.cluster.controller.alter_partition(self.node, items)
        await asyncio.sleep(rng.uniform(0.001, 0.05))
        if rng.random() < 0.1:
            raise RpcUnavailable("the answer was lost")
        return outcomes

    def run(self, action: Callable[[ReplicaManager], None]) -> None:
        """In the broker's process, if there is one."""
        process, manager = self.process, self.manager
        if process is not None and process.alive and manager is not None:
            self.cluster.world.loop.call_soon(action, manager, context=process.context)


class SimCluster(Stage):
    """A few brokers; the scenario starts them."""

    def __init__(
        self, seed: int, *, nodes: int = 3, config: ReplicaConfig | None = None, throttled_rate: int | None = None
    ) -> None:
        """`throttled_rate`: of followers, and half that of leaders, for all that `create` makes."""
        self.rng = split(seed, "scenario")
        world = WorldConfig(
            network=NetworkConfig(give_up_us=2_000_000),
            disk=DiskConfig(sync_max_us=self.rng.choice([1_000, 20_000]), cold_probability=0.1),
            clock_rate_error=0.01,
        )
        super().__init__(seed, config=world)
        self.config = config or ReplicaConfig(
            replica_lag_time_max_ms=3_000,
            fetch_window_bytes=self.rng.choice([2_000, 1 << 20]),
            fetch_chunk_bytes=self.rng.choice([500, 1 << 20]),
            high_watermark_checkpoint_interval_ms=1_000,
            stream_timeout_ms=2_000,
        )
        self.throttled_rate = throttled_rate
        self.tier_config: TierConfig | None = None
        """Set: there is an object store."""
        self.tier_calls_lost = 0.0
        """So often a change of a tier, or its answer, does not arrive."""
        self.store = SimStore(self.world.loop, split(seed, "store"))
        self.controller = FakeController()
        self.brokers = {NodeId(node): SimBroker(self, node) for node in range(1, nodes + 1)}
        self.fatals: list[Exception] = []
        self.clean_stops: bool | None = None
        """Whether brokers that come back say that their last stop was clean; None: as chance has it."""
        self._absent_since: dict[NodeId, float] = {}

    def fatal(self, error: Exception) -> None:
        self.fatals.append(error)

    def unfence(self, node: NodeId) -> None:
        if not self.brokers[node].cut_off:
            self.controller.unfence(node)

    def create(self, partitions: int) -> list[TopicPartition]:
        nodes = list(self.brokers)
        for number in range(partitions):
            replicas = tuple(nodes[(number + i) % len(nodes)] for i in range(len(nodes)))
            self.controller.create(
                partition_state(
                    topic_id=UUID(int=9),
                    replicas=replicas,
                    partition=number,
                    log_config=LogConfig(segment_bytes=4_000, index_interval_bytes=200),
                    leader_throttled=self.throttled_rate is not None,
                    follower_throttled=self.throttled_rate is not None,
                )
            )
        return [TopicPartition("t", number) for number in range(partitions)]

    async def keep_sessions(self) -> None:
        """The controller's side of sessions: who is absent for a while is fenced, who is back is unfenced."""
        while True:
            await self.world.sleep_ms(50)
            for node, broker in self.brokers.items():
                known = self.controller.brokers.get(node)
                if known is None:
                    continue
                if broker.alive and not broker.cut_off:
                    self._absent_since.pop(node, None)
                    if known.fenced and broker.manager and broker.manager.broker_epoch == known.broker_epoch:
                        self.unfence(node)
                else:
                    since = self._absent_since.setdefault(node, self.world.now_ms)
                    if self.world.now_ms - since > FENCE_AFTER_MS and not known.fenced:
                        self.controller.fence(node)

    # What the nodes are and have

    def broker(self, node: int) -> SimBroker:
        return self.brokers[NodeId(node)]

    def manager(self, node: int) -> ReplicaManager:
        manager = self.broker(node).manager
        assert manager is not None
        return manager

    def hosted(self, node: int) -> ReplicaStatus | None:
        """The node's first replica; None while it has none."""
        manager = self.broker(node).manager
        hosted = manager.hosted() if manager is not None else []
        return hosted[0] if hosted else None

    def status(self, node: int) -> ReplicaStatus:
        status = self.hosted(node)
        assert status is not None, f"node {node} hosts nothing"
        return status

    def log(self, node: int) -> PartitionLog:
        partition = self.manager(node).partition(TP)
        assert partition is not None
        assert partition.log is not None
        return partition.log

    def leads(self, node: int) -> bool:
        status = self.hosted(node)
        return status is not None and status.role is Role.LEADER

    @property
    def isr(self) -> tuple[NodeId, ...]:
        return self.controller.state(TP).isr

    def values(self, node: int) -> list[bytes]:
        """Every record of a node's log, committed or not."""
        log = self.log(node)
        found: list[bytes] = []
        offset = int(log.log_start_offset)
        while offset < log.log_end_offset:
            read = log.read(offset, 1 << 20, log.log_end_offset)
            if read is not None:  # else its bytes are cold this time
                found += decoded(read.data)
                offset = int(read.next_offset)
        return found

    def read(self, node: int, offset: int = 0) -> ReadOutcome:
        """As a consumer of the node."""
        while True:
            outcome = self.manager(node).read(TP, offset, 1 << 20)
            if outcome is not None:
                return outcome

    # What happens

    def send(self, node: int, data: memoryview, acks: int = -1) -> asyncio.Future[Append]:
        """A client's request to a node; the answer comes when it comes."""
        answered: asyncio.Future[Append] = self.world.loop.create_future()

        def append(manager: ReplicaManager) -> None:
            manager.append(TP, data, acks, answered.set_result)

        self.broker(node).run(append)
        return answered

    async def append(self, node: int, value: bytes = b"v", acks: int = -1) -> Append:
        try:
            async with asyncio.timeout(30):
                return await self.send(node, batch(value), acks)
        except TimeoutError:
            raise AssertionError(f"no answer to {value!r} with acks={acks}") from None


def decoded(data: bytes) -> list[bytes]:
    """The values of consecutive batches."""
    return [record.value or b"" for _, view in iter_batches(memoryview(data)) for record in decode_records(view)]
