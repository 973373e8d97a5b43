"""Quorums in one process: real disks, a small in-memory Rpc, real (short) time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from strandline.controller.quorum.api import CommittedBatch, LeaderAndEpoch, QuorumConfig, Voter
from strandline.controller.quorum.quorum import Quorum
from strandline.log.disk import Disk
from strandline.log.real_disk import RealDisk
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.ports import (
    RpcRejected,
    RpcServer,
    RpcTimeout,
    RpcUnavailable,
    Stream,
    StreamHandler,
    UnaryHandler,
)
from strandline.proto.system import SystemClock

CLUSTER = "driver-test"
# An election that nobody asked for loses what a test has just appended: a machine that stands still for half a second
# is to cause none.
FAST = QuorumConfig(
    election_timeout_ms=300,
    fetch_timeout_ms=2000,
    request_timeout_ms=1500,
    fetch_max_wait_ms=150,
    suspicion_ms=30,
)


class Network:
    """Who listens where, and which calls are under way."""

    def __init__(self) -> None:
        self.handlers: dict[Endpoint, dict[str, UnaryHandler]] = {}
        self.cut: set[tuple[int, int]] = set()
        self.calls: dict[asyncio.Task[bytes], Endpoint] = {}
        self.sent: list[tuple[int, int, str]] = []

    def vanish(self, endpoint: Endpoint) -> None:
        """The process there died: nobody listens, and its connections break."""
        self.handlers.pop(endpoint, None)
        for task, target in list(self.calls.items()):
            if target == endpoint:
                task.cancel()


class MemoryRpc:
    """One node's calls over a Network."""

    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self._node_id = node_id

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        await asyncio.sleep(0)
        network = self._network
        network.sent.append((self._node_id, endpoint.port, method))
        if (self._node_id, endpoint.port) in network.cut:
            await asyncio.sleep(timeout_ms / 1000)
            raise RpcTimeout("the network swallowed it")
        handlers = network.handlers.get(endpoint)
        if handlers is None:
            raise RpcUnavailable("nobody listens", refused=True)
        task = asyncio.ensure_future(handlers[method](request))
        network.calls[task] = endpoint
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                reply = await asyncio.shield(task)
            if (endpoint.port, self._node_id) in network.cut:
                await asyncio.sleep(timeout_ms / 1000)
                raise RpcTimeout("the network swallowed the reply")
            return reply
        except TimeoutError as error:
            raise RpcTimeout("no answer") from error
        except asyncio.CancelledError:
            if task.cancelled() or endpoint not in network.handlers:
                raise RpcUnavailable("the connection broke") from None
            raise
        except RpcUnavailable as error:
            raise RpcRejected(str(error)) from error
        finally:
            network.calls.pop(task, None)
            task.cancel()

    async def open_stream(self, endpoint: Endpoint, method: str, *, timeout_ms: float) -> Stream:
        raise RpcUnavailable("no streams in this network")

    async def serve(
        self, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> RpcServer:
        raise OSError("handlers are mounted by the test")

    async def close(self) -> None:
        return None


class Replay:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.end_offset = 0
        self.epoch = 0
        self.leaders: list[LeaderAndEpoch] = []
        self.loads: list[tuple[int, int]] = []
        self.batches: list[CommittedBatch] = []
        self.values_at_own_leadership: list[int] = []
        self.own_id = -1
        self.quorum: Quorum | None = None

    def handle_commit(self, batch: CommittedBatch) -> None:
        assert batch.base_offset >= self.end_offset
        assert batch.last_offset - batch.base_offset + 1 == len(batch.records)
        self.batches.append(batch)
        self.values += batch.records
        self.end_offset, self.epoch = batch.last_offset + 1, batch.epoch

    def handle_load_snapshot(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> None:
        self.values = list(records)
        self.end_offset, self.epoch = end_offset, epoch
        self.loads.append((end_offset, epoch))

    def handle_leader_change(self, leader_and_epoch: LeaderAndEpoch) -> None:
        self.leaders.append(leader_and_epoch)
        if leader_and_epoch.leader_id == self.own_id:
            assert self.quorum is not None
            assert self.quorum.describe().high_watermark >= 0, "told to lead before its epoch's start is committed"
            self.values_at_own_leadership.append(len(self.values))

    def take_snapshot(self) -> tuple[int, int, list[bytes]] | None:
        return self.end_offset, self.epoch, list(self.values)


class Member:
    """One node over all its lives."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.id = NodeId(node_id)
        self.directory_id = UUID(int=node_id)
        self.data_dir = str(cluster.path / f"node-{node_id}")
        self.endpoint = Endpoint("node", node_id)
        self.quorum: Quorum | None = None
        self.listener = Replay()
        self.disk: Disk | None = None
        self.fatal: list[BaseException] = []
        self.voters: list[Voter] | None = None
        """Those that it is configured with; None: the cluster's."""
        self.joins: dict[str, Any] = {}
        """What the quorum is given besides: bootstrap addresses, auto-join, how a newcomer is asked."""

    async def start(self, *, claims_to_vote: bool | None = None) -> Quorum:
        cluster = self.cluster
        self.disk = RealDisk()
        self.disk.mkdir(self.data_dir)
        self.listener = Replay()
        self.listener.own_id = self.id
        self.fatal = []
        voters = cluster.voters if self.voters is None else self.voters
        is_voter = bool(self.joins) or any(voter.node_id == self.id for voter in voters)
        self.quorum = Quorum(
            node_id=self.id,
            directory_id=self.directory_id,
            cluster_id=CLUSTER,
            voters=voters,
            is_voter=is_voter if claims_to_vote is None else claims_to_vote,
            disk=self.disk,
            clock=SystemClock(),
            rng=random.Random(cluster.rng.random()),
            rpc=MemoryRpc(cluster.network, self.id),
            data_dir=self.data_dir,
            config=cluster.config,
            on_fatal=self.fatal.append,
            listens_at=self.endpoint,
            **self.joins,
        )
        self.listener.quorum = self.quorum
        self.quorum.register(self.listener)
        await self.quorum.start()
        unary, _ = self.quorum.rpc_handlers()
        cluster.network.handlers[self.endpoint] = unary
        return self.quorum

    def kill(self) -> None:
        """As kill -9: nothing is flushed or said, the operating system closes its connections."""
        assert self.quorum is not None
        self.quorum.abandon()
        self.cluster.network.vanish(self.endpoint)
        self.quorum = None

    async def stop(self) -> None:
        if self.quorum is not None:
            await self.quorum.close()
            self.cluster.network.vanish(self.endpoint)
            self.quorum = None


class Cluster:
    """A few members; use as an async context manager."""

    def __init__(
        self,
        path: Path,
        *,
        voters: int = 3,
        observers: int = 0,
        config: QuorumConfig = FAST,
        seed: int = 1,
    ) -> None:
        self.path = path
        self.config = config
        self.rng = random.Random(seed)
        self.network = Network()
        self.voters = [Voter(NodeId(node), UUID(int=node), Endpoint("node", node)) for node in range(1, voters + 1)]
        self.members = {node: Member(self, node) for node in range(1, voters + 1)}
        self.members |= {node: Member(self, node) for node in range(101, 101 + observers)}

    async def __aenter__(self) -> Cluster:
        for member in self.members.values():
            await member.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            await member.stop()

    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.quorum is not None]

    def leader(self) -> Member | None:
        """The member that leads and whose listener has been told so."""
        for member in self.running():
            assert member.quorum is not None
            told = member.listener.leaders[-1:] or [LeaderAndEpoch(None, 0)]
            if member.quorum.leader_and_epoch.leader_id == member.id and told[0].leader_id == member.id:
                return member
        return None

    async def until(self, condition: Callable[[], object], *, timeout_s: float = 60.0) -> None:
        """Wait, in small steps of the real clock, for something that the quorum does by itself."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.001)

    async def elect(self) -> Member:
        await self.until(lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        return leader

    async def append(self, *values: bytes) -> int:
        """Append on the leader and wait until its listener has it."""
        leader = await self.elect()
        assert leader.quorum is not None
        last = leader.quorum.append(leader.quorum.leader_and_epoch.epoch, values)
        await self.until(lambda: leader.listener.end_offset > last)
        return last
