"""Three pure replicas on logs that are lists, under the controller for tests: every step at random from a seed.

Messages, syncs, metadata, the controller's answers and crashes are single steps, so that any order of them is met. The
ledger holds what was ever below a leader's high watermark; it is compared after every step.

Flush policy "ack": a crash loses what was not synced, and nothing of the ledger may be lost by that.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from strandline.proto.ids import NO_NODE, BrokerEpoch, Endpoint, NodeId, TopicIdPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.replica.core import (
    FetchJudgement,
    FollowerCore,
    IsrChange,
    IsrProposal,
    KeepLog,
    LeaderCore,
    ProposeIsr,
    Verdict,
    judge_fetch,
)
from strandline.replica.states import BrokerState, PartitionState
from tests.replica.fake_controller import FakeController, partition_state

LAG_MS = 250.0


class Entry(NamedTuple):
    epoch: int
    value: int


@dataclass
class ModelLog:
    """Entries, epochs, and how much survives a crash."""

    entries: list[Entry] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    durable: int = 0
    durable_epochs: list[tuple[int, int]] = field(default_factory=list)
    syncing_to: int | None = None

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def assign(self, epoch: int, start: int) -> None:
        if epoch > self.last_epoch:
            self.epochs.append((epoch, start))

    def append(self, entry: Entry) -> None:
        self.assign(entry.epoch, self.end)
        self.entries.append(entry)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        known = [i for i, (each, _) in enumerate(self.epochs) if each <= epoch]
        if not known:
            return -1, -1
        last = known[-1]
        return self.epochs[last][0], self.epochs[last + 1][1] if last + 1 < len(self.epochs) else self.end

    def truncate(self, offset: int) -> None:
        del self.entries[offset:]
        self.epochs = [entry for entry in self.epochs if entry[1] < offset]
        self.durable = min(self.durable, offset)
        if self.syncing_to is not None:
            self.syncing_to = min(self.syncing_to, offset)

    def start_sync(self) -> None:
        if self.syncing_to is None:
            self.syncing_to = self.end

    def end_sync(self) -> None:
        if self.syncing_to is not None:
            self.durable = max(self.durable, self.syncing_to)
            self.syncing_to = None

    def crash(self, rng: random.Random) -> None:
        self.syncing_to = None
        kept = rng.randint(self.durable, self.end)
        del self.entries[kept:]
        self.epochs = [entry for entry in self.epochs if entry[1] < kept]
        self.durable = kept


class Fetch(NamedTuple):
    leader_epoch: int
    offset: int
    last_epoch: int
    durable: int
    broker_epoch: BrokerEpoch


class Reply(NamedTuple):
    fetch: Fetch
    judgement: FetchJudgement
    high_watermark: int
    data: tuple[Entry, ...]


class Replica:
    """One broker's copy: its log outlives its process."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.log = ModelLog()
        self.alive = False
        self.broker_epoch = BrokerEpoch(-1)
        self.inbox: deque[tuple[list[PartitionState], dict[NodeId, BrokerState]]] = deque()
        self.state: PartitionState | None = None
        self.brokers: dict[NodeId, BrokerState] = {}
        self.leader: LeaderCore | None = None
        self.follower: FollowerCore | None = None
        self.high_watermark = 0
        self.sent: IsrProposal | None = None
        """Proposed, and on its way or answered."""
        self.answers: list[tuple[LeaderCore, IsrProposal, AlterPartitionOutcome]] = []

    @property
    def known_high_watermark(self) -> int:
        core = self.leader or self.follower
        return core.high_watermark if core is not None else self.high_watermark


class Model:
    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0.0
        self.values = 0
        self.controller = FakeController()
        self.replicas = {NodeId(node): Replica(NodeId(node)) for node in range(1, nodes + 1)}
        self.requests: dict[tuple[NodeId, NodeId], deque[Fetch]] = {}
        self.replies: dict[tuple[NodeId, NodeId], deque[Reply]] = {}
        self.ledger: list[Entry] = []
        self.key = TopicIdPartition(UUID(int=1), 0)
        self.truncated_below_high_watermark = 0
        self.elections = 0
        self.expansions = 0
        self.late: list[tuple[NodeId, AlterPartitionItem]] = []
        """Copies of proposals that their senders gave up."""
        self.slow: NodeId | None = None
        """A replica that hardly gets anything done for a while."""
        for replica in self.replicas.values():
            self.restart(replica)
        self.controller.create(partition_state(topic_id=self.key.topic_id, replicas=tuple(self.replicas)))
        for node in self.replicas:
            self.controller.unfence(node)

    # Steps

    def step(self) -> None:
        """One random thing happens; then everything that must hold is looked at."""
        self.now_ms += self.rng.expovariate(1 / 3.0)
        if self.rng.random() < 0.005:
            self.slow = self.rng.choice([None, *self.replicas])
        replica = self.rng.choice(list(self.replicas.values()))
        if replica.node == self.slow and self.rng.random() < 0.95:
            return
        kinds: list[tuple[float, Callable[[Replica], None]]] = [
            (4, self.append),
            (10, self.sync),
            (10, self.fetch),
            (14, self.serve),
            (14, self.receive),
            (10, self.hear),
            (3, self.propose),
            (0.1, self.arrive),
            (0.7, self.answer),
            (0.3, self.sweep),
            (0.25, self.fence),
            (2, self.unfence),
            (0.15, self.elect),
            (0.15, self.crash),
            (0.03, self.blackout),
            (1.5, self.restart),
        ]
        action = self.rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        action(replica)
        self.check()

    def append(self, replica: Replica) -> None:
        core = replica.leader
        if core is not None and core.admit_acks_all() == 0 and replica.log.end < 300:
            self.values += 1
            replica.log.append(Entry(core.leader_epoch, self.values))
            core.appended(replica.log.end, self.now_ms)

    def sync(self, replica: Replica) -> None:
        """A sync has two instants."""
        if not replica.alive:
            return
        if replica.log.syncing_to is None:
            replica.log.start_sync()
            return
        replica.log.end_sync()
        if replica.leader is not None:
            replica.leader.synced(replica.log.durable, self.now_ms)

    def fetch(self, replica: Replica) -> None:
        core = replica.follower
        if core is None:
            return
        log = replica.log
        fetch = Fetch(core.leader_epoch, log.end, log.last_epoch, log.durable, replica.broker_epoch)
        self.requests.setdefault((replica.node, core.leader), deque(maxlen=3)).append(fetch)

    def serve(self, replica: Replica) -> None:
        """The leader takes one fetch that is on the way to it."""
        waiting = [pair for pair in sorted(self.requests) if pair[1] == replica.node and self.requests[pair]]
        if not waiting or not replica.alive:
            return
        pair = self.rng.choice(waiting)
        fetch = self.requests[pair].popleft()
        core, log = replica.leader, replica.log
        if core is None or fetch.leader_epoch != core.leader_epoch:
            return
        judgement = judge_fetch(log, 0, log.end, fetch.offset, fetch.last_epoch)
        data: tuple[Entry, ...] = ()
        high_watermark = core.high_watermark
        if judgement.verdict is Verdict.VALID:
            core.fetched(
                pair[0],
                fetch.broker_epoch,
                fetch_offset=fetch.offset,
                durable_offset=fetch.durable,
                log_start_offset=0,
                now_ms=self.now_ms,
            )
            high_watermark = core.high_watermark
            data = tuple(log.entries[fetch.offset : fetch.offset + self.rng.randint(0, 5)])
        self.replies.setdefault(pair, deque(maxlen=3)).append(Reply(fetch, judgement, high_watermark, data))

    def receive(self, replica: Replica) -> None:
        """The follower takes one reply; it counts only if its position still is what the fetch said."""
        core, log = replica.follower, replica.log
        if core is None:
            return
        replies = self.replies.get((replica.node, core.leader))
        if not replies:
            return
        reply = replies.popleft()
        fetch = reply.fetch
        if (
            fetch.leader_epoch != core.leader_epoch
            or fetch.broker_epoch != replica.broker_epoch
            or (fetch.offset, fetch.last_epoch) != (log.end, log.last_epoch)
        ):
            return
        if reply.judgement.verdict is Verdict.DIVERGING:
            cut = core.diverged(log, 0, log.end, reply.judgement.epoch, reply.judgement.end_offset)
            if isinstance(cut, KeepLog):
                self.truncated_below_high_watermark += 1
                core.may_lose_committed = True
            log.truncate(cut.offset)
            core.truncated(cut.offset)
        elif reply.judgement.verdict is Verdict.VALID:
            for entry in reply.data:
                log.append(entry)
            core.learned(reply.high_watermark, 0, log_start=0, log_end=log.end)

    def hear(self, replica: Replica) -> None:
        """One committed change of the metadata arrives."""
        if not replica.inbox or not replica.alive:
            return
        changes, replica.brokers = replica.inbox.popleft()
        for state in changes:
            self.apply(replica, state)
        if replica.leader is not None:
            replica.leader.brokers_changed(replica.brokers, self.now_ms)

    def apply(self, replica: Replica, state: PartitionState) -> None:
        old = replica.state
        if old is not None and state.partition_epoch < old.partition_epoch:
            return
        replica.state = state
        if old is not None and state.leader_epoch == old.leader_epoch:
            if replica.leader is not None:
                replica.leader.metadata_changed(state, replica.brokers, self.now_ms)
            return
        replica.high_watermark = replica.known_high_watermark
        replica.leader = replica.follower = None
        log = replica.log
        if state.leader == replica.node:
            self.elections += 1
            newest = self.controller.partitions[self.key]
            if newest.leader_epoch == state.leader_epoch:
                self.check_complete(log)
            log.assign(state.leader_epoch, log.end)
            replica.leader = LeaderCore(
                replica.node,
                state,
                replica.brokers,
                log_end_offset=log.end,
                durable_offset=log.durable,
                high_watermark=replica.high_watermark,
                sync_before_ack=True,
                lag_time_max_ms=LAG_MS,
                now_ms=self.now_ms,
            )
        elif state.leader != NO_NODE:
            replica.follower = FollowerCore(state, replica.high_watermark, log.end)

    def propose(self, replica: Replica) -> None:
        """A pending ISR change reaches the controller; its answer may get lost, or the request may be late: then it is
        sent again, and the older copy arrives whenever it does (schedule 50)."""
        core = replica.leader
        if core is None or core.pending is None or core.pending is replica.sent:
            return
        change = replica.sent = core.pending
        if self.rng.random() < 0.2:
            replica.sent = None
            self.late.append((replica.node, change.item))
            return
        outcome = self.controller.alter_partition(replica.node, [change.item])[0]
        if self.rng.random() < 0.1:
            replica.sent = None
        else:
            replica.answers.append((core, change, outcome))

    def arrive(self, _: Replica) -> None:
        """A late copy of a proposal reaches the controller; nobody waits for the answer."""
        if self.late:
            node, item = self.late.pop(self.rng.randrange(len(self.late)))
            self.controller.alter_partition(node, [item])

    def answer(self, replica: Replica) -> None:
        if replica.answers:
            core, change, outcome = replica.answers.pop(0)
            if replica.leader is core:
                self.expansions += change.change is IsrChange.EXPANSION and outcome.error == 0
                if ProposeIsr(change, again=True) in core.answered(change, outcome, self.now_ms):
                    replica.sent = None

    def sweep(self, replica: Replica) -> None:
        self.now_ms += self.rng.choice([0.0, LAG_MS / 2])
        if replica.leader is not None:
            replica.leader.sweep(self.now_ms)

    def fence(self, replica: Replica) -> None:
        if not self.controller.brokers[replica.node].fenced:
            self.controller.fence(replica.node)

    def unfence(self, replica: Replica) -> None:
        if replica.alive and self.controller.brokers[replica.node].fenced:
            self.controller.unfence(replica.node)

    def elect(self, replica: Replica) -> None:
        """By request; the slow one is the interesting choice."""
        state = self.controller.partitions[self.key]
        chosen = self.slow or replica.node
        if state.leader != chosen:
            self.controller.elect(state.topic_partition, chosen)

    def crash(self, replica: Replica) -> None:
        """Power is lost, and with it what was not synced."""
        if not replica.alive:
            return
        replica.high_watermark = self.rng.randint(0, replica.known_high_watermark)
        replica.alive = False
        replica.leader = replica.follower = replica.state = None
        replica.answers.clear()
        replica.inbox.clear()
        self.controller.subscribers.pop(replica.node, None)
        replica.log.crash(self.rng)

    def blackout(self, _: Replica) -> None:
        for replica in self.replicas.values():
            self.crash(replica)

    def restart(self, replica: Replica) -> None:
        if replica.alive:
            return
        replica.alive = True
        replica.high_watermark = min(replica.high_watermark, replica.log.end)
        broker = BrokerState(replica.node, Endpoint("model", replica.node), BrokerEpoch(-1))
        replica.broker_epoch = self.controller.register(broker, clean=self.rng.random() < 0.5)
        self.controller.subscribe(replica.node, lambda changes, _, brokers: replica.inbox.append((changes, brokers)))

    # What must hold

    def check(self) -> None:
        for replica in self.replicas.values():
            core = replica.leader
            if core is not None:
                self.commit(replica.log, core)
        self.check_matching()

    def commit(self, log: ModelLog, core: LeaderCore) -> None:
        """ConsistentRead: whatever any leader shows below its high watermark is the same for ever."""
        end = core.high_watermark
        assert end <= log.end, "a high watermark beyond the log"
        shown = log.entries[:end]
        known = self.ledger[:end]
        assert shown[: len(known)] == known, f"leader of epoch {core.leader_epoch} shows {shown}, was {known}"
        self.ledger.extend(shown[len(known) :])

    def check_complete(self, log: ModelLog) -> None:
        """LeaderCompleteness: who is elected has everything that was committed."""
        assert log.entries[: len(self.ledger)] == self.ledger, "an elected leader lacks committed records"

    def check_matching(self) -> None:
        """LogMatching: the same epoch at the same offset means the same log up to there."""
        logs = [replica.log.entries for replica in self.replicas.values()]
        for i, one in enumerate(logs):
            for other in logs[i + 1 :]:
                for offset in range(min(len(one), len(other)) - 1, -1, -1):
                    if one[offset].epoch == other[offset].epoch:
                        assert one[: offset + 1] == other[: offset + 1], "logs match at an offset and differ before"
                        break

    def settle(self) -> None:
        """Heal everything and let it run: the ISR must become whole and every log the same (liveness)."""
        for replica in self.replicas.values():
            self.restart(replica)
            self.unfence(replica)
        for _ in range(400):
            for replica in self.replicas.values():
                while replica.inbox:
                    self.hear(replica)
                self.sync(replica)
                self.sync(replica)
                self.fetch(replica)
            self.now_ms += 50
            for replica in self.replicas.values():
                for _ in range(6):
                    self.serve(replica)
            for replica in self.replicas.values():
                for _ in range(3):
                    self.receive(replica)
                self.sweep(replica)
                self.propose(replica)
                self.answer(replica)
            self.check()
        state = self.controller.partitions[self.key]
        assert set(state.isr) == set(self.replicas), f"the ISR does not heal: {state}"
        logs = [replica.log.entries for replica in self.replicas.values()]
        assert all(log == logs[0] for log in logs), "logs differ after healing"
        assert logs[0][: len(self.ledger)] == self.ledger
        assert {replica.known_high_watermark for replica in self.replicas.values()} == {len(logs[0])}
