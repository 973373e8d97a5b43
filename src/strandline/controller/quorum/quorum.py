"""The quorum of a node: what the rest of the node sees of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from strandline.controller.quorum.addresses import Addresses, stand_ins
from strandline.controller.quorum.api import (
    LeaderAndEpoch,
    NotLeader,
    QuorumConfig,
    QuorumDescription,
    QuorumListener,
    Rehearsal,
    ReplicaDescription,
    Voter,
)
from strandline.controller.quorum.dispatch import Dispatcher
from strandline.controller.quorum.driver import Driver, Durable
from strandline.controller.quorum.fetched import Fetched
from strandline.controller.quorum.joining import Joining
from strandline.controller.quorum.memory import Memory
from strandline.controller.quorum.metadata_log import MetadataLog, build_data_batch
from strandline.controller.quorum.methods import METHODS
from strandline.controller.quorum.snapshots import SnapshotStore
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.leader import Leader, ReplicaProgress
from strandline.controller.raft.messages import Batch, ReplicaKey
from strandline.controller.raft.node import Standing
from strandline.controller.raft.voters import VoterSet
from strandline.log.disk import Disk
from strandline.log.rewriting import Rewriting, restore_names
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.messages.method import Method
from strandline.proto.ports import Clock, Rng, Rpc, RpcUnavailable, StreamHandler, UnaryHandler

DIRECTORY = "__cluster_metadata-0"

_CHANGE_TIMEOUT_S = 10.0
"""Seconds that a change of the voter set waits for its commit."""

_CLOSE_TIMEOUT_S = 0.5
"""Seconds that a stopping leader waits for the voters to learn that it resigned."""


async def _believed(_: NodeId, __: Endpoint) -> str:
    return ""


class Quorum:
    """A voter or an observer of the metadata quorum.

    `register` listeners, then `start()`; mount `rpc_handlers()` on the node's internal listener; end with `close()`.
    After a failed write or sync, or a broken invariant, it does nothing more and calls `on_fatal` once: the node must
    stop (rule A9, schedule 32).
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        directory_id: UUID,
        cluster_id: str,
        voters: Sequence[Voter],
        is_voter: bool,
        disk: Disk,
        clock: Clock,
        rng: Rng,
        rpc: Rpc,
        data_dir: str,
        config: QuorumConfig,
        on_fatal: Callable[[BaseException], None],
        fresh_boot: bool = False,
        stamp_ms: Callable[[], int] | None = None,
        listens_at: Endpoint | None = None,
        bootstrap: Sequence[Endpoint] = (),
        auto_join: bool = False,
        reach: Callable[[NodeId, Endpoint], Awaitable[str]] = _believed,
    ) -> None:
        """Make a quorum.

        Args:
            voters: the configured ones, or those of the beginning; empty on a node that learns of them from the log.
            is_voter: the node is a controller: it votes, or may be given a vote.
            fresh_boot: no process of this boot has used `data_dir` before, so what is read there is on the disk.
            stamp_ms: the time that records get; left out: the wall clock's.
            listens_at: where others reach the internal listener of this node.
            bootstrap: addresses at which some controller answers.
            auto_join: ask for a vote once caught up (KIP-1186).
            reach: why a node that is to vote cannot be reached there, or could not be a voter; empty: it can.

        Raises:
            ConfigError: role and voter set contradict each other.

        A node whose id is a voter's but whose directory id is not that voter's has lost its disk: it observes only,
        and `describe` shows it so (schedule 26).
        """
        self._formatted_id = directory_id
        self._key = ReplicaKey(node_id, directory_id)
        self._cluster_id = cluster_id
        self._endpoints = {voter.node_id: voter.endpoint for voter in voters}
        keys = (ReplicaKey(voter.node_id, voter.directory_id) for voter in voters)
        self._voters = VoterSet(keys, endpoints=self._endpoints, dynamic=not voters)
        if is_voter != self._voters.contains_id(node_id) and not (is_voter and bootstrap):
            expected = "a controller is one of the quorum's voters, a broker alone is not"
            raise ConfigError("controller.quorum.voters", [int(key.node_id) for key in self._voters], expected)
        self._is_controller = is_voter
        self._listens_at = listens_at
        self._bootstrap = tuple(bootstrap)
        self._auto_join = auto_join
        self._reach = reach
        self._kraft_version = 0
        self._disk = disk
        self._clock = clock
        self._rng = rng
        self._rpc = rpc
        self._data_dir = data_dir
        self._directory = f"{data_dir}/{DIRECTORY}"
        self._config = config
        self._on_fatal = on_fatal
        self._fresh_boot = fresh_boot
        self._stamp_ms = clock.wall_ms if stamp_ms is None else stamp_ms
        self._listeners: list[QuorumListener] = []
        self._rehearsal: Rehearsal | None = None
        self._dispatcher: Dispatcher | None = None
        self._driver: Driver | None = None
        self._log: MetadataLog | None = None

    # --- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover what is on disk, load the latest snapshot into the listeners, and take part.

        Raises:
            CorruptLogError: the quorum state, the log or the latest snapshot is damaged.
            DiskError
        """
        disk = self._disk
        if not disk.exists(self._directory):
            disk.mkdir(self._directory)
            disk.sync_dir(self._directory.rpartition("/")[0])
        restore_names(disk, self._directory)
        snapshots = SnapshotStore(disk, self._directory)
        rewriting = None if self._fresh_boot else Rewriting(disk)
        memory = memory_of(disk, self._data_dir, self._formatted_id, promises=self._is_controller)
        memory.recall()
        log = MetadataLog.open(
            disk, self._directory, self._clock, self._config, rewriting=rewriting, before_cut=memory.doubt
        )
        self._log = log
        latest = snapshots.open_latest()
        summary = log.summary(snapshots.ids, None if latest is None else latest.voters)
        # Who has no vote since it lost its log once was not alone then, and has voted among nobody since.
        # rule A38/a-quorum-of-one-that-grew-refuses
        alone = memory.now.has_vote and (memory.now.voters or len(self._voters)) == 1
        memory.settle(summary.end, alone=alone, rng=self._rng)
        self._key = ReplicaKey(self._key.node_id, memory.directory_id)
        core = RaftCore(
            key=self._key,
            cluster_id=self._cluster_id,
            voters=self._voters,
            config=self._config,
            rng=self._rng,
            log=summary,
            saved=memory.saved,
            now_ms=self._clock.monotonic_ms(),
            voteless=not memory.now.has_vote,
            life=memory.now.sequence,
            proven=log.proven or memory.saved is None,
            standing=Standing(
                may_vote=self._is_controller,
                listens_at=self._listens_at,
                # rule A38/who-was-removed-asks-again/2
                wants_vote=self._auto_join and memory.now.voters == 0,
                bootstrap=stand_ins(self._bootstrap),
                kraft_version=self._kraft_version,
            ),
        )
        dispatcher = Dispatcher(self._key.node_id, log, snapshots, self._failed)
        for listener in self._listeners:
            dispatcher.register(listener)
        dispatcher.load_latest_snapshot(latest)
        self._dispatcher = dispatcher
        self._driver = Driver(
            core=core,
            durable=Durable(disk, memory, log, snapshots),
            dispatcher=dispatcher,
            addresses=Addresses(core, self._listens_at, self._endpoints, self._bootstrap),
            config=self._config,
            clock=self._clock,
            stamp_ms=self._stamp_ms,
            rpc=self._rpc,
            on_fatal=self._on_fatal,
            fetched=None if self._rehearsal is None else Fetched(log, self._rehearsal),
        )
        self._driver.joining = Joining(core, self.add_voter, self.remove_voter, self._clock.monotonic_ms)
        self._driver.pump()

    async def close(self, clean: bool = True) -> None:
        """Resign if leading, let the voters know, sync and close the log. After a failure, or if the stop is not
        `clean`, only give back what is held: a sync under way may never end. Idempotent."""
        driver = self._driver
        if driver is None or driver.stopped:
            self.abandon()
            return
        if driver.core.leading is not None:
            self.resign()
            await driver.drain_calls(_CLOSE_TIMEOUT_S)
        if not clean:
            self.abandon()
            return
        driver.stop()
        await driver.finish()
        if self._log is not None:
            self._log.close()
            self._log = None
        driver.note_held()

    def abandon(self) -> None:
        """Stop as a killed process does: no resignation, no flush; only the file descriptors go."""
        if self._driver is not None:
            self._driver.abandon()
        if self._log is not None:
            self._log.abandon()
            self._log = None

    def register(self, listener: QuorumListener) -> None:
        """Add a listener; one registered after `start` gets the snapshot and the log from their beginning."""
        self._listeners.append(listener)
        if self._dispatcher is not None and self._driver is not None:
            self._dispatcher.register(listener)
            self._driver.schedule_pump()

    def rehearse_on(self, rehearsal: Rehearsal) -> None:
        """Append as a voter only what the first listener could replay, tried on this copy of it; call before
        `start`."""
        self._rehearsal = rehearsal

    def rpc_handlers(self) -> tuple[dict[str, UnaryHandler], dict[str, StreamHandler]]:
        """The quorum's methods for the node's internal listener."""
        return {method.path: partial(self._serve, method) for method in METHODS.values()}, {}

    async def _serve(self, method: Method[Any, Any], payload: bytes) -> bytes:
        if self._driver is None:
            raise RpcUnavailable("this node's quorum has not started yet")
        return await self._driver.serve(method, payload)

    def _failed(self, error: BaseException) -> None:
        if self._driver is not None:
            self._driver.fail(error)

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The leader as this node knows it now; listeners learn of it in step with the log instead."""
        if self._driver is None:
            return LeaderAndEpoch(None, 0)
        return LeaderAndEpoch(self._driver.core.leader_id, self._driver.core.epoch)

    @property
    def high_watermark(self) -> int:
        """Everything below is committed, as far as this node knows."""
        return 0 if self._driver is None else self._driver.core.high_watermark

    @property
    def log_end_offset(self) -> int:
        """One past the last record of this node's log."""
        return 0 if self._driver is None else self._driver.core.log.end_offset

    @property
    def held_since_start(self) -> int:
        """Every record below was on this node's disk when it started, as it is in the quorum; 0: none, or not known."""
        return 0 if self._log is None else self._log.held

    @property
    def max_append_bytes(self) -> int:
        """The largest batch that `append` takes."""
        return self._config.max_batch_bytes

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        """A controller's internal listener; None for nodes that are none."""
        return self._endpoints.get(node_id) if self._driver is None else self._driver.addresses.of(node_id)

    @property
    def unreached(self) -> Mapping[NodeId, str]:
        """The voters to which the last call found no connection, and why."""
        return {} if self._driver is None else self._driver.unreached

    @property
    def key(self) -> ReplicaKey:
        """Replica as which this node presents itself; known once it has started."""
        return self._key

    @property
    def voters(self) -> VoterSet:
        """Voters, by the log as far as this node has it."""
        return self._voters if self._driver is None else self._driver.core.voters

    def describe(self) -> QuorumDescription:
        """The quorum as this node knows it."""
        leader = self.leader_and_epoch
        leading = self._driver.core.leading if self._driver is not None else None
        if leading is not None:
            return self._describe_as_leader(leading)
        voters = [self._describe_unknown(key) for key in self.voters]
        votes = self._driver is not None and self._driver.core.is_voter
        observers = [] if votes else [self._describe_self()]
        return QuorumDescription(leader.leader_id, leader.epoch, self.high_watermark, voters, observers)

    def _describe_as_leader(self, leading: Leader) -> QuorumDescription:
        voters = [
            self._describe_self() if key.node_id == self._key.node_id else self._describe(leading.voters[key.node_id])
            for key in self.voters
        ]
        observers = [self._describe(seen) for seen in leading.described_observers(self._clock.monotonic_ms())]
        if not self.voters.contains_id(self._key.node_id):  # it was removed, and leads until that is committed
            observers.append(self._describe_self())
        known = -1 if leading.epoch_high_watermark is None else leading.epoch_high_watermark
        return QuorumDescription(self._key.node_id, leading.epoch, known, voters, observers)

    def _describe(self, progress: ReplicaProgress) -> ReplicaDescription:
        return ReplicaDescription(
            progress.key.node_id,
            progress.key.directory_id,
            progress.end_offset,
            self._wall_ms(progress.last_fetch_ms),
            self._wall_ms(progress.last_caught_up_ms),
        )

    def _describe_self(self) -> ReplicaDescription:
        now_ms = self._clock.wall_ms()
        return ReplicaDescription(self._key.node_id, self._key.directory_id, self.log_end_offset, now_ms, now_ms)

    def _describe_unknown(self, key: ReplicaKey) -> ReplicaDescription:
        if key.admits(self._key):
            return self._describe_self()
        return ReplicaDescription(key.node_id, key.directory_id, -1, -1, -1)

    def _wall_ms(self, monotonic_ms: float) -> int:
        if monotonic_ms == -math.inf:
            return -1
        return self._clock.wall_ms() - round(self._clock.monotonic_ms() - monotonic_ms)

    # --- what it does ------------------------------------------------------------------------------------------------

    def append(self, epoch: int, records: Sequence[bytes]) -> int:
        """Append records as one atomic batch; returns the offset of the last.

        Appended is not committed: wait until a listener gets the batch. Appends of one turn of the loop share a sync.

        Raises:
            NotLeader: this node does not lead in `epoch`; nothing was appended.
            KafkaError: RECORD_LIST_TOO_LARGE, the batch exceeds `max_batch_bytes`; nothing was appended.
        """
        driver = self._driver
        leading = driver.core.leading if driver is not None and not driver.stopped else None
        if driver is None or leading is None or leading.epoch != epoch:
            raise NotLeader(self.leader_and_epoch, wanted_epoch=epoch)
        base = driver.core.log.end_offset
        data = build_data_batch(records, base_offset=base, epoch=epoch, timestamp_ms=self._stamp_ms())
        if len(data) > self._config.max_batch_bytes:
            message = "too many metadata records at once"
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, message, bytes=len(data), max_batch_bytes=self._config.max_batch_bytes
            )
        driver.core.append(Batch(base, base + len(records), epoch, data), self._clock.monotonic_ms())
        driver.schedule_pump()
        return base + len(records) - 1

    async def remove_voter(self, node_id: NodeId, directory_id: UUID) -> tuple[NodeId, ...]:
        """Take the vote of a replica that is gone, wait until that is committed, and return who votes then.

        Raises:
            KafkaError: see `raft.voter_changes.remove_voter`; REQUEST_TIMED_OUT, it was not committed in time, and may
                be yet.
        """
        return await self._change(lambda core, now_ms: core.remove_voter(node_id, directory_id, now_ms))

    async def add_voter(
        self, node_id: NodeId, directory_id: UUID, endpoint: Endpoint | None = None, *, uncommitted: bool = False
    ) -> tuple[NodeId, ...]:
        """Give a vote to a replica that has caught up, wait until that is committed, and return who votes then.

        Args:
            endpoint: where the node listens; None: where it says itself that it does.
            uncommitted: do not wait for more than the append.

        Raises:
            KafkaError: see `raft.voter_changes.add_voter`; INVALID_REQUEST besides, the node cannot be reached there;
                REQUEST_TIMED_OUT, it was not committed in time, and may be yet.
        """
        if self.voters.dynamic:
            core = self._running().core
            core.judge_addition(node_id, directory_id, self._clock.monotonic_ms(), endpoint)
            seen = None if core.leading is None else core.leading.observers.get(ReplicaKey(node_id, directory_id))
            endpoint = endpoint or (None if seen is None else seen.listens_at)
            if endpoint is not None:  # else it votes already
                why = await self._reach(node_id, endpoint)
                if why:  # rule A38/nobody-asks-the-newcomer
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node {node_id} is not made a voter: {why}.")
        return await self._change(
            lambda core, now_ms: core.add_voter(node_id, directory_id, now_ms, endpoint), uncommitted=uncommitted
        )

    async def update_voter(
        self, key: ReplicaKey, endpoint: Endpoint | None, levels: range, *, epoch: int = -1
    ) -> tuple[NodeId, ...]:
        """Record where a voter listens, as it tells (KIP-853), wait until that is committed, and return who votes then.
        Our voters tell it by their fetches too, and what these say counts.

        Args:
            levels: of kraft.version, that the voter's build knows.
            epoch: the quorum's, as the voter knows it; -1: it does not say.

        Raises:
            KafkaError: see `raft.voter_changes.update_voter`; FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, the epoch is
                another one; REQUEST_TIMED_OUT, it was not committed in time, and may be yet.
        """
        now = self.leader_and_epoch.epoch
        if epoch not in (-1, now):
            code = ErrorCode.FENCED_LEADER_EPOCH if epoch < now else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"The quorum is in epoch {now}, not {epoch}.")
        return await self._change(lambda core, now_ms: core.update_voter(key, endpoint, levels, now_ms))

    def raise_kraft_version(self, version: int) -> None:
        """The cluster has this kraft.version: the voter set is to have it as well. Never lowered."""
        if version <= self._kraft_version:
            return
        self._kraft_version = version
        if self._driver is not None and not self._driver.stopped:
            self._driver.core.raise_kraft_version(version)
            self._driver.schedule_pump()

    def _running(self) -> Driver:
        driver = self._driver
        if driver is None or driver.stopped:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This node's quorum does not run.")
        return driver

    async def _change(
        self, change: Callable[[RaftCore, float], int | None], *, uncommitted: bool = False
    ) -> tuple[NodeId, ...]:
        driver = self._running()
        core = driver.core
        offset = change(core, driver.now_ms())
        driver.pump()
        if uncommitted:
            return tuple(key.node_id for key in core.voters)
        committed = driver.commits.committed(core.epoch, core.node.voters_offset if offset is None else offset)
        try:
            async with asyncio.timeout(_CHANGE_TIMEOUT_S):
                await committed
        except TimeoutError:
            message = (
                "The change of the voter set is not committed yet: is a majority of the voters up? Look again later."
            )
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from None
        return tuple(key.node_id for key in core.voters)

    def snapshot_soon(self) -> None:
        """Take a snapshot of what the listeners hold, however little was committed since the last."""
        if self._driver is not None:
            self._driver.snapshot_soon()

    def resign(self) -> None:
        """Give up leading and ask the best of the other voters to stand. Nothing happens if this node does not lead."""
        if self._driver is not None and not self._driver.stopped:
            self._driver.core.resign(self._clock.monotonic_ms())
            self._driver.pump()


def memory_of(disk: Disk, data_dir: str, directory_id: UUID, *, promises: bool) -> Memory:
    """Memory of the quorum in a data directory; `promises` if its node is one of the voters."""
    return Memory(disk, data_dir, f"{data_dir}/{DIRECTORY}", directory_id=directory_id, promises=promises)
