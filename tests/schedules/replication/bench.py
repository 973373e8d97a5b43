"""Three brokers on virtual time with one partition: logs written beforehand, messages and metadata held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from strandline.chaos.sim.ports import Ports
from strandline.log.batch import Record, build_batch
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch
from strandline.replica.states import ReplicaConfig
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import CLUSTER, TP
from tests.replica.simulated import PATH, SimCluster

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
TOPIC_ID = UUID(int=9)
T = TypeVar("T")

History = Sequence[tuple[int, int]]
"""What a log was written with: (leader epoch, number of records); none for an epoch that was led and wrote nothing."""


class Bench(SimCluster):
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
        super().__init__(1, config=ReplicaConfig(**{"replica_lag_time_max_ms": 3_000, **config}))
        self.clean_stops = True
        self._logs = logs or {}
        self._high_watermarks = high_watermarks or {}
        self._lagging = lagging
        self._state = replace(
            partition_state(topic_id=TOPIC_ID, leader=leader, isr=isr, min_insync_replicas=min_insync_replicas),
            leader_epoch=LeaderEpoch(leader_epoch),
            partition_epoch=PartitionEpoch(10),
        )

    async def begin(self) -> None:
        """Everything runs, and the partition is led."""
        for node, history in self._logs.items():
            await self._write_beforehand(node, history)
        for broker in self.brokers.values():
            broker.start()
        await self.world.sleep_ms(200)
        for node in self._lagging:
            self.broker(node).cut()
        self.controller.create(self._state)
        present = [node for node in (1, 2, 3) if node not in self._lagging]
        await self.until(lambda: all(self.hosted(node) is not None for node in present))

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
