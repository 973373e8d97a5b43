"""Whoever reaches the port between nodes harms no quorum for good, whatever is sent (rule A17, schedule 62)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import pytest
from google.protobuf.message import Message

from strandline.chaos.sim.ports import Ports
from strandline.controller.quorum.methods import METHODS
from strandline.controller.raft.config import EPOCH_LEAD_MAX, PROOF_INTERVAL_MS
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    OffsetAndEpoch,
    ReplicaKey,
    VoteRequest,
)
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.ports import Rpc, RpcError, RpcRejected
from tests.controller.sim_cluster import CLUSTER, Node, SimCluster, endpoint
from tests.hostile.internal import CONTROLLER, FORESEEN, QUORUM, Attacker

Send = Callable[[int, str, bytes], Awaitable[None]]


def attacked(seed: int, attack: Callable[[SimCluster, Send], Awaitable[None]]) -> None:
    """Three nodes with a topic; the attack from a machine of its own; then all of them live, and go on alone."""
    cluster = SimCluster(seed)
    cluster.world.add_machine("stranger")

    async def whole(cluster: SimCluster) -> None:
        await cluster.create("kept", [[1, 2, 3]])
        over: list[BaseException | None] = []

        async def stranger(ports: Ports) -> None:
            async def send(node: int, path: str, data: bytes) -> None:
                try:
                    await ports.rpc.call(endpoint(node), path, data, timeout_ms=200)
                except RpcError as error:
                    if isinstance(error, RpcRejected) and not str(error).partition(": ")[2].startswith(FORESEEN):
                        raise AssertionError(f"{path} fails by {data!r}") from error

            try:
                await attack(cluster, send)
            except BaseException as error:
                over.append(error)
                raise
            over.append(None)

        cluster.world.spawn("stranger", stranger)
        await cluster.until(lambda: bool(over), within_ms=600_000)
        assert over == [None]
        await cluster.until(cluster.healthy)
        for node in cluster.nodes.values():
            assert not node.fatal
        await cluster.create("last", [[1, 2, 3], [2, 3, 1]])
        await cluster.restart_all()
        for node in cluster.nodes.values():
            assert {"kept", "last"} <= node.publisher.image.topics.keys()

    cluster.play(whole)


def highest(cluster: SimCluster) -> int:
    return max(node.quorum.leader_and_epoch.epoch for node in cluster.nodes.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kinds", [QUORUM, CONTROLLER, {**QUORUM, **CONTROLLER}], ids=["quorum", "controller", "both"])
def test_62_anything_at_all(kinds: Mapping[str, type[Message]], seed: int) -> None:
    """Messages that are well formed, nearly so, and not at all, in the names of true voters too, thousands of them."""

    async def attack(cluster: SimCluster, send: Send) -> None:
        rng = random.Random(seed)
        directories = {node: UUID(int=node) for node in cluster.nodes}
        attacker = Attacker(rng, CLUSTER, directories, lambda: highest(cluster))
        before, began_ms = highest(cluster), cluster.world.now_ms
        for _ in range(100):
            storm = [(rng.choice((1, 2, 3)), *attacker.message(kinds)) for _ in range(20)]
            await asyncio.gather(*(send(*one) for one in storm))
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.05, 1.0)))  # some meet a leader, some an election
        assert highest(cluster) <= before + allowed(cluster.world.now_ms - began_ms)

    attacked(seed, attack)


def allowed(elapsed_ms: float) -> float:
    """How far three nodes may have been lifted in so much time."""
    return EPOCH_LEAD_MAX * 3 * (2 + elapsed_ms / PROOF_INTERVAL_MS)


def test_62_nobody_climbs_by_having_the_voters_ask_each_other() -> None:
    """What a lifted voter answers proves its epoch to the one that asks it. Whoever makes them ask, in turns, would
    lift them by another bound with each answer, to the last epoch there can be within days."""

    async def attack(cluster: SimCluster, send: Send) -> None:
        before, began_ms = highest(cluster), cluster.world.now_ms
        nothing = OffsetAndEpoch(0, 0)
        for turn in range(300):
            epoch = highest(cluster) + EPOCH_LEAD_MAX - 1
            low, high = 1 + turn % 3, 1 + (turn + 1) % 3
            for request, target in (
                (VoteRequest(CLUSTER, voter(low), epoch, voter(high), nothing, False), high),
                (BeginQuorumEpochRequest(CLUSTER, NodeId(high), epoch, voter(low)), low),
                (EndQuorumEpochRequest(CLUSTER, NodeId(high), epoch, (voter(low),)), low),
            ):
                method = METHODS[type(request)]
                await send(target, method.path, method.request.encode(request))
            await asyncio.sleep(0.01)
        elapsed_ms = cluster.world.now_ms - began_ms
        assert highest(cluster) <= before + allowed(elapsed_ms), f"in {elapsed_ms:.0f} ms"
        assert highest(cluster) > before

    attacked(1, attack)


def test_62_a_later_start_is_claimed_of_a_living_voter() -> None:
    """One fetch in the name of a voter as of its last start there can ever be: its own fetches counted no more, and it
    had no metadata until the leader changed."""

    async def attack(cluster: SimCluster, send: Send) -> None:
        active, other = cluster.active_and_other()
        epoch = active.quorum.leader_and_epoch.epoch
        end = active.quorum.log_end_offset
        lie = FetchRequest(CLUSTER, voter(other.node), epoch, end, epoch, 0, 0, 1000, life=2**63 - 1)
        fetch = METHODS[FetchRequest]
        await send(active.node, fetch.path, fetch.request.encode(lie))
        await cluster.create("later", [[1, 2, 3]])

    attacked(1, attack)


def voter(node: int) -> ReplicaKey:
    return ReplicaKey(NodeId(node), UUID(int=node))


class Garbling:
    """An `Rpc` whose answers come with bits turned over, lost, doubled and put in, while `on`."""

    def __init__(self, inner: Rpc, garbled: Callable[[bytes], bytes], rng: random.Random) -> None:
        self.on = True
        self._inner = inner
        self._garbled = garbled
        self._rng = rng

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        answer = await self._inner.call(endpoint, method, request, timeout_ms=timeout_ms)
        return self._garbled(answer) if self.on and self._rng.random() < 0.3 else answer


@pytest.mark.parametrize("seed", range(4))
def test_62_any_answer(seed: int) -> None:
    """What the voters answer each other is garbled: an answer that makes no sense is a call that failed."""

    async def attack(cluster: SimCluster, send: Send) -> None:
        rng = random.Random(seed)
        attacker = Attacker(rng, CLUSTER, {}, lambda: 0)
        wrapped = []
        for node in cluster.nodes.values():
            driver = node.quorum._driver
            assert driver is not None
            garbling = Garbling(driver._rpc, attacker.mutated, rng)
            driver._rpc = garbling  # type: ignore[assignment]
            wrapped.append(garbling)
        for number in range(30):
            await asyncio.sleep(1.0)
            active = cluster.active
            if active is not None and number % 3 == 0:
                await cluster.on(active.node, resign)
        for garbling in wrapped:
            garbling.on = False

    attacked(seed, attack)


async def resign(node: Node) -> None:
    node.quorum.resign()
