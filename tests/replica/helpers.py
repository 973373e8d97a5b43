"""A few brokers with real logs and streams in memory, under a controller made for tests."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from strandline.log.batch import Record, build_batch
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.log_dirs import LogDirs
from strandline.log.real_disk import RealDisk
from strandline.proto.believed import BelievedClock
from strandline.proto.ids import BrokerEpoch, Endpoint, NodeId, TopicPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.ports import RpcServer
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append
from strandline.replica.states import BrokerState, ReplicaConfig
from tests.replica.fake_controller import FakeController, partition_state
from tests.replica.memory_rpc import MemoryNetwork

CLUSTER = "cluster-for-tests"
TOPIC_ID = UUID(int=7)
TP = TopicPartition("t", 0)


class RealClock:
    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        return int(time.time() * 1000)


def batch(
    value: bytes, count: int = 1, *, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
) -> memoryview:
    """A writable batch of `count` records, as a client sends it."""
    records = [Record(0, 1_700_000_000_000 + i, None, value, ()) for i in range(count)]
    return memoryview(
        build_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    )


class Broker:
    """One process: killed by `kill`, stopped by `stop`; what lies in its directory outlives it."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self.cluster = cluster
        self.node = NodeId(node)
        self.endpoint = Endpoint("memory", 9000 + node)
        self.path = str(cluster.directory / f"n{node}")
        self.paths = [self.path, *(f"{self.path}-{more}" for more in range(2, cluster.directories + 1))]
        self.disk = RealDisk()
        self.fatal: list[Exception] = []
        self.server: RpcServer | None = None
        for number, path in enumerate(self.paths):
            format_log_dir(self.disk, path, CLUSTER, self.node, UUID(int=100 * number + node))
        self.lives = 0
        self.log_dirs: LogDirs
        self.log_dir: LogDir
        self.replicas: ReplicaManager

    async def start(self, *, clean: bool = True) -> None:
        rpc = self.cluster.network.rpc(self.endpoint)
        self.log_dirs = LogDirs.open(dict.fromkeys(self.paths, self.disk), RealClock())
        self.log_dir = self.log_dirs.first
        if len(self.paths) > 1:
            self.lives += 1
            self.log_dirs.begin_life(UUID(int=self.lives))
            self.log_dirs.registered(UUID(int=self.lives))
        self.replicas = ReplicaManager(
            node_id=self.node,
            cluster_id=CLUSTER,
            log_dirs=self.log_dirs,
            clock=RealClock(),
            believed=BelievedClock(RealClock()),
            rng=random.Random(self.node),
            rpc=rpc,
            config=self.cluster.config,
            send_alter_partition=self._alter_partition,
            on_fatal=self.fatal.append,
        )
        self.server = await rpc.serve(self.endpoint, {}, self.replicas.stream_handlers())
        controller = self.cluster.controller
        epoch = controller.register(BrokerState(self.node, self.endpoint, BrokerEpoch(-1)), clean=clean)
        self.replicas.start()
        controller.subscribe(self.node, self.replicas.apply)
        self.replicas.set_broker_epoch(epoch)
        controller.unfence(self.node)

    async def _alter_partition(self, items: list[AlterPartitionItem]) -> list[AlterPartitionOutcome]:
        await asyncio.sleep(0)
        return self.cluster.controller.alter_partition(self.node, items)

    async def stop(self, *, clean: bool = True) -> None:
        """Stop serving; the controller is told by the caller."""
        self.cluster.controller.subscribers.pop(self.node, None)
        if self.server is not None:
            await self.server.close()
            self.server = None
            await self.replicas.close(clean)
            self.log_dirs.close(None)

    def append(self, tp: TopicPartition, data: memoryview, acks: int = -1) -> asyncio.Future[Append]:
        future: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
        self.replicas.append(tp, data, acks, future.set_result)
        return future

    def log_bytes(self, tp: TopicPartition = TP) -> bytes:
        """The bytes of the whole log, committed or not, as they are in its files."""
        segments = self.log_dir.logs[tp].segments
        return b"".join(Path(segment.file.path).read_bytes()[: segment.size] for segment in segments)


class Cluster:
    def __init__(self, directory: Path, nodes: int, config: ReplicaConfig, directories: int = 1) -> None:
        self.directory = directory
        self.directories = directories
        self.config = config
        self.network = MemoryNetwork()
        self.controller = FakeController()
        self.brokers = {node: Broker(self, node) for node in range(1, nodes + 1)}

    def __getitem__(self, node: int) -> Broker:
        return self.brokers[node]

    def create(self, **more: object) -> None:
        replicas = tuple(self.brokers)
        self.controller.create(partition_state(topic_id=TOPIC_ID, **{"replicas": replicas, **more}))  # type: ignore[arg-type]

    def leader(self) -> Broker:
        return self.brokers[self.controller.state(TP).leader]


@contextmanager
def syncs_held(disk: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No sync of the disk that begins in the block ends before it."""
    may_end, real = asyncio.Event(), disk.sync

    async def held(*what: Any) -> None:
        await may_end.wait()
        await real(*what)

    monkeypatch.setattr(disk, "sync", held)
    try:
        yield
    finally:
        may_end.set()


async def until(condition: Callable[[], bool], what: str = "", timeout_s: float = 60.0) -> None:
    """Wait for a condition: long enough for a machine that has much else to do."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def running(directory: Path, nodes: int = 3, *, directories: int = 1, **config: object) -> AsyncIterator[Cluster]:
    """`nodes` brokers up and registered, each with so many log directories."""
    cluster = Cluster(directory, nodes, ReplicaConfig(**config), directories)  # type: ignore[arg-type]
    try:
        for broker in cluster.brokers.values():
            await broker.start()
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            await broker.stop(clean=False)
            broker.disk.close()
