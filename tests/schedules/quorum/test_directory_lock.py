"""Two processes on one data directory: schedule 51."""

from __future__ import annotations

import asyncio
from uuid import UUID

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.node import Node
from strandline.controller.quorum.api import Voter
from strandline.controller.quorum.methods import METHODS
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey, VoteRequest, VoteResponse
from strandline.log.disk import Disk
from strandline.proto.errors import DirectoryInUse
from strandline.proto.ids import Endpoint, NodeId
from tests.schedules.helpers import schedule

CLUSTER = "shared-volume"
EPOCH = 9


@schedule(51, rule="A3: one process in a data directory", mutant="a-directory-for-everybody")
def test_51_two_processes_on_one_directory() -> None:
    """Two containers share a volume, each with ports of its own. Each asks its own memory whom it has voted for: with
    both of them running, one voter votes for two candidates in one epoch. The second does not start; a third, after
    the first was killed, does."""
    world = World(1)
    world.add_machine("first")
    world.add_machine("second").disk = world.machines["first"].disk
    votes: list[bool] = []
    refused: list[str] = []

    def config(host: str) -> NodeConfig:
        return NodeConfig(
            {
                "node.id": "1",
                "process.roles": "controller",
                "listeners": f"INTERNAL://{host}:19092",
                "log.dirs": "/data",
                "controller.quorum.voters": ",".join(f"{number}@somewhere:{number}" for number in (1, 2, 3)),
            }
        )

    async def run(host: str, candidate: int, ports: Ports) -> None:
        if not ports.disk.exists("/data/meta.properties"):
            format_directory(ports.disk, config(host), cluster_id=CLUSTER, initial_controllers=_voters(), rng=ports.rng)
        try:
            node = Node(config(host), disk=ports.disk, clock=ports.clock, rng=ports.rng, rpc=ports.rpc)
        except DirectoryInUse as error:
            refused.append(str(error))
            return
        await node.start()
        votes.append(await _vote(node, candidate))
        await asyncio.sleep(1e6)

    async def scenario() -> None:
        world.spawn("first", lambda ports: run("first", 2, ports))
        await world.sleep_ms(300)
        world.spawn("second", lambda ports: run("second", 3, ports))
        await world.sleep_ms(300)
        assert votes == [True], "one voter gave two candidates its vote in one epoch"
        assert len(refused) == 1
        assert "process first#1 uses this directory" in refused[0]
        for name in ("first", "second"):
            world.kill(name)
        world.spawn("second", lambda ports: run("second", 3, ports))
        await world.sleep_ms(300)
        assert votes == [True, False], "its vote of that epoch is given"

    world.run(scenario())
    assert not world.loop.unhandled, world.loop.unhandled[0]


def _voters() -> tuple[Voter, ...]:
    return tuple(Voter(NodeId(number), UUID(int=number), Endpoint("somewhere", number)) for number in (1, 2, 3))


async def _vote(node: Node, candidate: int) -> bool:
    """Ask the node for its vote; whether it gives it."""
    request = VoteRequest(
        CLUSTER,
        ReplicaKey(NodeId(candidate), UUID(int=candidate)),
        EPOCH,
        ReplicaKey(NodeId(1), UUID(int=1)),
        OffsetAndEpoch(0, 0),
        False,
    )
    method = METHODS[type(request)]
    handler = node.quorum.rpc_handlers()[0][method.path]
    answer = method.reply.decode(await handler(method.request.encode(request)))
    assert isinstance(answer, VoteResponse)
    return answer.granted


@schedule(51, rule="A3: one process in a data directory", mutant="a-directory-formatted-by-everybody")
def test_51_a_directory_is_formatted_under_a_node() -> None:
    """A directory that a process has is not formatted by another one: who knows what that one is about to write."""
    world = World(1)
    world.add_machine("first")
    said: list[str] = []

    async def holder(ports: Ports) -> None:
        ports.disk.mkdir("/data")
        ports.disk.lock("/data")
        await asyncio.sleep(1e6)

    async def scenario() -> None:
        world.spawn("first", holder)
        world.add_machine("second").disk = world.machines["first"].disk
        await world.sleep_ms(10)
        world.spawn("second", lambda ports: formats(ports.disk, ports))
        await world.sleep_ms(10)
        assert len(said) == 1
        assert "/data/meta.properties" not in world.machines["first"].disk.files()
        for name in ("first", "second"):
            world.kill(name)
        world.spawn("second", lambda ports: formats(ports.disk, ports))
        await world.sleep_ms(10)
        assert "/data/meta.properties" in world.machines["first"].disk.files()

    async def formats(disk: Disk, ports: Ports) -> None:
        config = NodeConfig(
            {"node.id": "1", "process.roles": "controller", "listeners": "INTERNAL://x:19092", "log.dirs": "/data"}
        )
        try:
            format_directory(disk, config, cluster_id=CLUSTER, initial_controllers=_voters(), rng=ports.rng)
        except DirectoryInUse as error:
            said.append(str(error))

    world.run(scenario())
    assert not world.loop.unhandled, world.loop.unhandled[0]
