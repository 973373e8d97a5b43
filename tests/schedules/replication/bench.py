"""Three brokers on virtual time with one partition: logs written beforehand, messages and metadata held back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from strandline.chaos.sim.ports import Ports
from strandline.log.batch import iter_batches
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.partition_log import PartitionLog
from strandline.log.records import Record, build_batch, decode_records
from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import ReadOutcome, ReplicaConfig, ReplicaStatus, Role
from strandline.replica.waiting import Append
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import CLUSTER, TP, batch
from tests.replica.simulated import PATH, SimBroker, SimCluster

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
TOPIC_ID = UUID(int=9)
T = TypeVar("T")

History = Sequence[tuple[int, int]]
"""What a log was written with: (leader epoch, number of records); none for an epoch that was led and wrote nothing."""


class Bench:
    """A cluster that a schedule is played on.

    `logs` and `high_watermarks` are what the brokers have on disk when they start; a record says its epoch and offset,
    so that logs match exactly where epochs do. What is not named is empty.
    `lagging` brokers do not know of the partition until they are told to `reach` the controller.
    """

    def __init__(
        self,
        *,
        logs: Mapping[int, History] | None = None,
        high_watermarks: Mapping[int, int] | None = None,
        leader: int = 1,
        leader_epoch: int = 0,
        isr: tuple[int, ...] = (1, 2, 3),
        min_insync_replicas: int = 2,
        lagging: tuple[int, ...] = (),
        **config: Any,
    ) -> None:
        self.cluster = SimCluster(1, config=ReplicaConfig(**{"replica_lag_time_max_ms": 3_000, **config}))
        self.cluster.clean_stops = True
        self.world = self.cluster.world
        self.controller = self.cluster.controller
        self._logs = logs or {}
        self._high_watermarks = high_watermarks or {}
        self._lagging = lagging
        self._state = replace(
            partition_state(topic_id=TOPIC_ID, leader=leader, isr=isr, min_insync_replicas=min_insync_replicas),
            leader_epoch=LeaderEpoch(leader_epoch),
            partition_epoch=PartitionEpoch(10),
        )

    def play(self, scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Start everything, wait until the partition is led, and run the scenario."""

        async def whole() -> T:
            for node, history in self._logs.items():
                await self._write_beforehand(node, history)
            for broker in self.cluster.brokers.values():
                broker.start()
            await self.world.sleep_ms(200)
            for node in self._lagging:
                self.broker(node).cut()
            self.controller.create(self._state)
            present = [node for node in (1, 2, 3) if node not in self._lagging]
            await self.until(lambda: all(status is not None for status in map(self._status, present)))
            return await scenario()

        result = self.world.run(whole())
        assert not self.world.loop.unhandled, self.world.loop.unhandled[0]
        return result

    async def _write_beforehand(self, node: int, history: History) -> None:
        self.world.spawn(f"n{node}", partial(self._write, node, history))
        await self.world.sleep_ms(500)
        self.world.kill(f"n{node}")

    async def _write(self, node: int, history: History, ports: Ports) -> None:
        format_log_dir(ports.disk, PATH, CLUSTER, NodeId(node), UUID(int=node))
        log_dir = LogDir.open(ports.disk, PATH, ports.clock)
        log = log_dir.create(TP, TOPIC_ID)
        for epoch, count in history:
            log.assign_epoch_start(epoch, log.log_end_offset)
            for _ in range(count):
                offset = int(log.log_end_offset)
                record = Record(0, 1_700_000_000_000, None, b"%d of epoch %d" % (offset, epoch), ())
                log.append_as_follower(memoryview(build_batch([record], base_offset=offset, leader_epoch=epoch)))
        log_dir.write_checkpoints({TP: self._high_watermarks.get(node, 0)})
        log_dir.close(None)

    # What the nodes are and have

    def broker(self, node: int) -> SimBroker:
        return self.cluster.brokers[NodeId(node)]

    def manager(self, node: int) -> ReplicaManager:
        manager = self.broker(node).manager
        assert manager is not None
        return manager

    def _status(self, node: int) -> ReplicaStatus | None:
        manager = self.broker(node).manager
        hosted = manager.hosted() if manager is not None else []
        return hosted[0] if hosted else None

    def status(self, node: int) -> ReplicaStatus:
        status = self._status(node)
        assert status is not None, f"node {node} hosts nothing"
        return status

    def log(self, node: int) -> PartitionLog:
        partition = self.manager(node).partition(TP)
        assert partition is not None
        assert partition.log is not None
        return partition.log

    def leads(self, node: int) -> bool:
        status = self._status(node)
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

    async def append(self, node: int, value: bytes, acks: int = -1) -> Append:
        try:
            async with asyncio.timeout(30):
                return await self.send(node, batch(value), acks)
        except TimeoutError:
            raise AssertionError(f"no answer to {value!r} with acks={acks}") from None

    async def until(self, condition: Callable[[], bool], limit_ms: float = 20_000) -> None:
        deadline = self.world.now_ms + limit_ms
        while not condition():
            assert self.world.now_ms < deadline, "it never came true"
            await self.world.sleep_ms(5)

    async def leave_out(self, *nodes: int) -> None:
        """These nodes die and are fenced: they are out of the ISR."""
        for node in nodes:
            self.world.kill(f"n{node}")
            self.controller.fence(NodeId(node))
        await self.until(lambda: not set(nodes) & {int(node) for node in self.isr})
        await self.world.sleep_ms(100)

    async def elect(self, node: int) -> None:
        self.controller.elect(TP, NodeId(node))
        epoch = self.controller.state(TP).leader_epoch
        await self.until(lambda: self.leads(node) and self.status(node).leader_epoch == epoch)

    def hear_only_the_newest(self, node: int) -> None:
        """A broker that was cut off from the metadata comes back to what they are now, as after a snapshot."""
        broker = self.broker(node)
        broker._inbox.clear()
        broker.reach()
        broker._post(list(self.controller.partitions.values()), [], dict(self.controller.brokers))

    async def whole(self, nodes: Sequence[int] = (1, 2, 3)) -> None:
        """These replicas have the same log, all of it known to be committed."""

        def equal() -> bool:
            statuses = [self.status(node) for node in nodes]
            ends = {status.log_end_offset for status in statuses}
            return len(ends) == 1 and all(status.high_watermark == status.log_end_offset for status in statuses)

        await self.until(equal)
        assert len({tuple(self.values(node)) for node in nodes}) == 1, "logs of one length differ"


def decoded(data: bytes) -> list[bytes]:
    """The values of consecutive batches."""
    return [record.value or b"" for _, view in iter_batches(memoryview(data)) for record in decode_records(view)]
