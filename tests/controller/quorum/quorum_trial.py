"""Quorums on simulated machines, whose disks fail, fill up and lose power."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from tests.stage import Stage

from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import WorldConfig
from strandline.controller.quorum.api import CommittedBatch, LeaderAndEpoch, QuorumConfig, Rehearsal, Voter
from strandline.controller.quorum.quorum import Quorum
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import Endpoint, NodeId

PORT = 9


class Node:
    """A listener and its quorum, in one life of a simulated machine."""

    def __init__(self, number: int, voters: int, config: QuorumConfig, *, recorded: bool = True) -> None:
        self.number = number
        self.voters = [
            Voter(NodeId(n), UUID(int=n) if recorded else None, Endpoint(f"n{n}", PORT)) for n in range(1, voters + 1)
        ]
        self.config = config
        self.values: list[bytes] = []
        self.end_offset = 0
        self.epoch = 0
        self.leader = LeaderAndEpoch(None, 0)
        self.fatal: list[BaseException] = []
        self.refused: BaseException | None = None
        self.rehearsal: Rehearsal | None = None
        self.quorum: Quorum | None = None

    async def main(self, ports: Ports) -> None:
        ports.disk.mkdir("/data")
        ports.disk.sync_dir("/")
        quorum = Quorum(
            node_id=NodeId(self.number),
            directory_id=UUID(int=self.number),
            cluster_id="faults",
            voters=self.voters,
            is_voter=True,
            disk=ports.disk,
            clock=ports.clock,
            rng=ports.rng,
            rpc=ports.rpc,
            data_dir="/data",
            config=self.config,
            on_fatal=self.fatal.append,
        )
        quorum.register(self)
        if self.rehearsal is not None:
            quorum.rehearse_on(self.rehearsal)
        unary, streams = quorum.rpc_handlers()
        try:
            await quorum.start()
        except CorruptLogError as error:
            self.refused = error
            return
        self.quorum = quorum
        await ports.rpc.serve(Endpoint(f"n{self.number}", PORT), unary, streams)
        await asyncio.sleep(1e6)

    def handle_commit(self, batch: CommittedBatch) -> None:
        if self.quorum is not None:
            assert batch.last_offset < self.quorum.high_watermark, "handed over before it is committed here"
        self.values += batch.records
        self.end_offset, self.epoch = batch.last_offset + 1, batch.epoch

    def handle_load_snapshot(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> None:
        self.values, self.end_offset, self.epoch = list(records), end_offset, epoch

    def handle_leader_change(self, leader_and_epoch: LeaderAndEpoch) -> None:
        self.leader = leader_and_epoch

    def take_snapshot(self) -> tuple[int, int, list[bytes]] | None:
        return self.end_offset, self.epoch, list(self.values)


class Trial(Stage):
    """A few nodes; the scenario starts them."""

    def __init__(
        self,
        *,
        voters: int = 3,
        seed: int = 1,
        config: QuorumConfig | None = None,
        disk: DiskConfig | None = None,
        recorded: bool = True,
    ) -> None:
        """`recorded`: the voter set was written with directory ids; else any directory of a node is that voter."""
        machines = [f"n{number}" for number in range(1, voters + 1)]
        super().__init__(seed, machines, config=WorldConfig(disk=disk or DiskConfig()))
        self.voters = voters
        self.recorded = recorded
        self.config = config or QuorumConfig()
        self.nodes: dict[int, Node] = {}

    def start(self, *numbers: int) -> None:
        for number in numbers or range(1, self.voters + 1):
            node = self.nodes[number] = Node(number, self.voters, self.config, recorded=self.recorded)
            self.world.spawn(f"n{number}", node.main)

    def leading(self) -> Node | None:
        found = [
            node for node in self.nodes.values() if node.leader.leader_id == node.number and self.is_alive(node.number)
        ]
        return max(found, key=lambda node: node.leader.epoch, default=None)

    async def elect(self) -> Node:
        await self.until(lambda: self.leading() is not None)
        node = self.leading()
        assert node is not None
        return node

    def append(self, node: Node, value: bytes) -> None:
        process = self.world.process(f"n{node.number}")
        assert node.quorum is not None
        assert process is not None
        process.context.copy().run(node.quorum.append, node.leader.epoch, [value])

    async def commit(self, value: bytes) -> Node:
        node = await self.elect()
        self.append(node, value)
        await self.until(lambda: value in node.values)
        return node
