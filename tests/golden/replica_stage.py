"""The stage of the replica's scenarios: the pure cores of leaders and followers over logs in memory, message by
message, and the controller's own rules of ISR changes and elections.

Nothing happens unless a command says so, save that committed metadata reach every living replica at once (`hold N`
keeps them from one).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from strandline.controller.machine.isr import accepted, validate
from strandline.controller.machine.partition_change import Election, LogPosition, PartitionChange
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord, RegisterBrokerRecord
from strandline.controller.metadata.replay import merge
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, BrokerEpoch, Endpoint, LeaderEpoch, NodeId, Offset, PartitionEpoch
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.replica.core import FollowerCore, LeaderCore, ProposeIsr, Truncate, Verdict, judge_fetch
from strandline.replica.states import ACKS_ALL, BrokerState, PartitionState
from tests.replica.model import Entry, Fetch, Replica, Reply

TOPIC = UUID(int=1)
LAG_MS = 10_000.0


class ReplicaStage:
    """One partition and its replicas."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.min_isr = 1
        self.unclean = False
        self.replicas: dict[int, Replica] = {}
        self.brokers: dict[NodeId, BrokerState] = {}
        self.partition = PartitionRecord(TOPIC, 0, (), (), (), (), NO_NODE, LeaderEpoch(-1), PartitionEpoch(-1), False)
        self.mail: dict[tuple[int, int], deque[Fetch | Reply]] = {}
        self.late: dict[int, AlterPartitionItem] = {}
        self.held: set[int] = set()
        self.values: dict[int, str] = {}
        self.registrations = 100
        self.shown: dict[str, str] = {}

    def command(self, line: str) -> list[str]:
        name, *words = line.split()
        handler: Callable[..., list[str] | None] = getattr(self, f"do_{name}")
        told = handler(*words) or []
        return told + self.changes()

    # --- what is seen ---

    def changes(self) -> list[str]:
        """The states that differ from what was shown last."""
        told = []
        for what, state in (("controller", self.describe_partition()), *self.describe_replicas()):
            if self.shown.get(what) != state:
                self.shown[what] = state
                told.append(f"{what}: {state}")
        return told

    def describe_partition(self) -> str:
        one = self.partition
        leader = "none" if one.leader == NO_NODE else str(one.leader)
        elr = f", ELR {list(one.eligible_leader_replicas)}" if one.eligible_leader_replicas else ""
        doubt = f", in doubt {list(one.last_known_elr)}" if one.last_known_elr else ""
        recovering = ", RECOVERING" if one.recovering else ""
        epochs = f"leader epoch {one.leader_epoch}, partition epoch {one.partition_epoch}"
        return f"leader {leader}, {epochs}, ISR {list(one.isr)}{elr}{doubt}{recovering}"

    def describe_replicas(self) -> list[tuple[str, str]]:
        return [(str(node), self.describe(replica)) for node, replica in self.replicas.items()]

    def describe(self, replica: Replica) -> str:
        log = " ".join(f"{self.values[entry.value]}@{entry.epoch}" for entry in replica.log.entries)
        text = f"[{log}], synced to {replica.log.durable}"
        if not replica.alive:
            return f"down, {text}"
        if replica.leader is not None:
            core = replica.leader
            text = f"leads epoch {core.leader_epoch}, {text}, HW {core.high_watermark}"
            if core.maximal_isr != core.isr:
                text += f", maximal ISR {list(core.maximal_isr)}"
            if core.pending is not None:
                text += f", proposes {list(core.pending.isr)}{' (sent)' if core.pending is replica.sent else ''}"
            return text
        if replica.follower is not None:
            core_ = replica.follower
            return f"follows {core_.leader} in epoch {core_.leader_epoch}, {text}, HW {core_.high_watermark}"
        return f"idle, {text}, HW {replica.high_watermark}"

    # --- the partition and its brokers ---

    def do_partition(self, *words: str) -> None:
        """`partition 1 2 3 min 2 [unclean]`: all in sync, the first leads."""
        at = words.index("min")
        nodes = tuple(NodeId(int(word)) for word in words[:at])
        self.min_isr, self.unclean = int(words[at + 1]), "unclean" in words
        self.partition = PartitionRecord(
            TOPIC, 0, nodes, nodes, (), (), nodes[0], LeaderEpoch(0), PartitionEpoch(0), False
        )
        for node in nodes:
            self.replicas[node] = Replica(node)
            self.do_start(str(node))

    def do_start(self, node: str, found: str = "intact") -> None:
        """A process comes up and registers. `cut`: it leaves ISR and ELR, for its log may have lost its end; `lacking`:
        it has, for certain."""
        replica = self.replicas[int(node)]
        replica.alive = True
        replica.high_watermark = min(replica.high_watermark, replica.log.end)
        self.registrations += 1
        replica.broker_epoch = BrokerEpoch(self.registrations)
        endpoint = Endpoint("model", replica.node)
        self.brokers[replica.node] = BrokerState(replica.node, endpoint, replica.broker_epoch)
        isr = tuple(one for one in self.partition.isr if one != replica.node)
        if found == "cut":
            self.change(target_isr=isr, doubtful=replica.node)
        elif found == "lacking":
            self.change(target_isr=isr, lost=replica.node)
        self.change()
        self.publish()

    def do_kill(self, node: str) -> None:
        """The process dies; its log stays as written."""
        self.end(self.replicas[int(node)])

    def do_powercut(self, node: str) -> None:
        """The machine dies, and with it what was not synced."""
        replica = self.replicas[int(node)]
        self.end(replica)
        replica.log.truncate(replica.log.durable)
        replica.log.syncing_to = None

    def do_rot(self, node: str, offset: str) -> None:
        """A record of a log whose process is down rots: recovery cuts there."""
        replica = self.replicas[int(node)]
        assert not replica.alive
        replica.log.truncate(int(offset))

    def end(self, replica: Replica) -> None:
        replica.high_watermark = replica.known_high_watermark
        replica.alive = False
        replica.leader = replica.follower = replica.state = None
        replica.answers.clear()

    def do_fence(self, node: str) -> None:
        """The controller has not heard of a broker: it leaves the ISR, and does not lead."""
        old = self.brokers[NodeId(int(node))]
        self.brokers[old.node_id] = BrokerState(old.node_id, old.endpoint, old.broker_epoch, fenced=True)
        self.change(target_isr=tuple(one for one in self.partition.isr if one != old.node_id))
        self.publish()

    def do_unfence(self, node: str) -> None:
        old = self.brokers[NodeId(int(node))]
        self.brokers[old.node_id] = BrokerState(old.node_id, old.endpoint, old.broker_epoch)
        self.change()
        self.publish()

    def do_elect(self, node: str) -> None:
        """Move the leadership to a member of the ISR, as a reassignment of the preferred leader does."""
        order = (NodeId(int(node)), *(one for one in self.partition.replicas if one != int(node)))
        self.partition = replace(self.partition, replicas=order)
        self.change(election=Election.PREFERRED)
        self.publish()

    def do_hold(self, node: str) -> None:
        """Committed metadata do not reach a replica until `release`."""
        self.held.add(int(node))

    def do_release(self, node: str) -> None:
        self.held.discard(int(node))
        self.publish()

    def change(
        self,
        *,
        target_isr: tuple[NodeId, ...] | None = None,
        recovering: bool | None = None,
        doubtful: NodeId = NO_NODE,
        lost: NodeId = NO_NODE,
        election: Election = Election.ONLINE,
        proposed: bool = False,
    ) -> None:
        """What the controller makes of it (PartitionChange); `proposed` by the leader, and found good."""
        change = PartitionChange(
            self.partition,
            acceptable=lambda node: (broker := self.brokers.get(node)) is not None and broker.eligible,
            min_isr=min(self.min_isr, len(self.partition.replicas)),
            election=Election.UNCLEAN if self.unclean and election is Election.ONLINE else election,
            target_isr=target_isr,
            recovering=recovering,
            doubtful=doubtful,
            lost=lost,
            position=self.position,
        )
        record = accepted(change, TOPIC, 0) if proposed else change.build()
        if record is not None:
            self.partition = merge(self.partition, record)

    def position(self, node: NodeId) -> LogPosition | None:
        """A replica that lives and is not held has said where its log ends."""
        replica = self.replicas[int(node)]
        if not replica.alive or node in self.held or self.partition.has_leader:
            return None
        return LogPosition(LeaderEpoch(replica.log.last_epoch), Offset(replica.log.end))

    def publish(self) -> None:
        """Metadata reach every living replica that is not held."""
        one = self.partition
        state = PartitionState(
            topic="t",
            topic_id=TOPIC,
            partition=0,
            replicas=one.replicas,
            isr=one.isr,
            leader=one.leader,
            leader_epoch=one.leader_epoch,
            partition_epoch=one.partition_epoch,
            recovering=one.recovering,
            min_insync_replicas=self.min_isr,
            unclean_leader_election=self.unclean,
        )
        for node, replica in self.replicas.items():
            if replica.alive and node not in self.held:
                self.hear(replica, state)

    def hear(self, replica: Replica, state: PartitionState) -> None:
        old, replica.state = replica.state, state
        if old is not None and state.leader_epoch == old.leader_epoch:
            if replica.leader is not None:
                replica.leader.metadata_changed(state, dict(self.brokers), self.now_ms)
            return
        replica.high_watermark = replica.known_high_watermark
        replica.leader = replica.follower = None
        log = replica.log
        if state.leader == replica.node:
            log.assign(state.leader_epoch, log.end)
            replica.leader = LeaderCore(
                replica.node,
                state,
                dict(self.brokers),
                log_end_offset=log.end,
                durable_offset=log.durable,
                high_watermark=replica.high_watermark,
                sync_before_ack=True,
                lag_time_max_ms=LAG_MS,
                now_ms=self.now_ms,
            )
        elif state.leader != NO_NODE:
            replica.follower = FollowerCore(state, replica.high_watermark, log.end)

    # --- what replicas do ---

    def leader(self, node: str) -> LeaderCore:
        core = self.replicas[int(node)].leader
        assert core is not None, f"{node} does not lead"
        return core

    def do_append(self, node: str, *values: str) -> list[str]:
        """`append 1 x y [acks=1]`."""
        acks = 1 if "acks=1" in values else -1
        core, log = self.leader(node), self.replicas[int(node)].log
        error = core.admit_acks_all() if acks == ACKS_ALL else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            return [f"refused: {error.name}, nothing is written"]
        for value in values:
            if value != "acks=1":
                number = len(self.values)
                self.values[number] = value
                log.append(Entry(core.leader_epoch, number))
                core.appended(log.end, self.now_ms)
        return []

    def do_sync(self, *nodes: str) -> None:
        for node in nodes:
            self.do_startsync(node)
            self.do_endsync(node)

    def do_startsync(self, node: str) -> None:
        self.replicas[int(node)].log.start_sync()

    def do_endsync(self, node: str) -> None:
        """It covers what was written before it began."""
        replica = self.replicas[int(node)]
        replica.log.end_sync()
        if replica.leader is not None:
            replica.leader.synced(replica.log.durable, self.now_ms)

    def do_fetch(self, node: str) -> list[str]:
        """A follower asks its leader; the fetch waits for `deliver`."""
        replica = self.replicas[int(node)]
        core = replica.follower
        assert core is not None, f"{node} does not follow"
        log = replica.log
        fetch = Fetch(core.leader_epoch, log.end, log.last_epoch, log.durable, replica.broker_epoch)
        self.mail.setdefault((int(node), int(core.leader)), deque()).append(fetch)
        asks = f"from {fetch.offset}@{fetch.last_epoch}, synced to {fetch.durable}"
        return [f"{node} -> {core.leader}: fetch in epoch {fetch.leader_epoch} {asks}"]

    def do_deliver(self, link: str) -> list[str]:
        """`deliver 2->1`: the oldest message on that way arrives."""
        source, target = (int(end) for end in link.split("->"))
        message = self.mail[source, target].popleft()
        replica = self.replicas[target]
        if not replica.alive:
            return [f"{target} is down: lost"]
        if isinstance(message, Fetch):
            return self.serve(source, replica, message)
        return self.receive(replica, message)

    def do_drop(self, link: str) -> None:
        source, target = (int(end) for end in link.split("->"))
        self.mail[source, target].popleft()

    def do_replicate(self, *nodes: str) -> None:
        """Fetch, sync, and fetch again until there is nothing new."""
        for node in nodes:
            for _ in range(8):
                replica = self.replicas[int(node)]
                assert replica.follower is not None, f"{node} does not follow"
                leader = int(replica.follower.leader)
                self.do_fetch(node)
                self.do_deliver(f"{node}->{leader}")
                if self.mail.get((leader, int(node))):
                    self.do_deliver(f"{leader}->{node}")
                self.do_sync(node)

    def serve(self, source: int, replica: Replica, fetch: Fetch) -> list[str]:
        core, log = replica.leader, replica.log
        if core is None or fetch.leader_epoch != core.leader_epoch:
            return [f"{replica.node} refuses: it does not lead epoch {fetch.leader_epoch}"]
        judgement = judge_fetch(log, 0, log.end, fetch.offset, fetch.last_epoch)
        data: tuple[Entry, ...] = ()
        told = f"{replica.node} -> {source}: {judgement.verdict.name}"
        if judgement.verdict is Verdict.VALID:
            core.fetched(
                NodeId(source),
                fetch.broker_epoch,
                fetch_offset=fetch.offset,
                durable_offset=fetch.durable,
                log_start_offset=0,
                now_ms=self.now_ms,
            )
            data = tuple(log.entries[fetch.offset :])
            told += f", {len(data)} records, HW {core.high_watermark}"
        elif judgement.verdict is Verdict.DIVERGING:
            told += f", epoch {judgement.epoch} ends at {judgement.end_offset}"
        reply = Reply(fetch, judgement, core.high_watermark, data)
        self.mail.setdefault((int(replica.node), source), deque()).append(reply)
        return [told]

    def receive(self, replica: Replica, reply: Reply) -> list[str]:
        core, log, fetch = replica.follower, replica.log, reply.fetch
        position = (fetch.offset, fetch.last_epoch)
        if core is None or fetch.leader_epoch != core.leader_epoch or position != (log.end, log.last_epoch):
            return [f"{replica.node} ignores it: it is not where it was when it asked"]
        if reply.judgement.verdict is Verdict.DIVERGING:
            cut = core.diverged(log, 0, log.end, reply.judgement.epoch, reply.judgement.end_offset)
            log.truncate(cut.offset)
            core.truncated(cut.offset)
            assert isinstance(cut, Truncate), f"{replica.node} would lose committed records"
            below = ", below its high watermark" if cut.below_high_watermark else ""
            return [f"{replica.node} truncates to {cut.offset}{below}"]
        for entry in reply.data:
            log.append(entry)
        core.learned(reply.high_watermark, 0, log_start=0, log_end=log.end)
        return []

    def do_wait(self, duration_ms: str) -> None:
        """Time passes; leaders look who lags."""
        self.now_ms += float(duration_ms)
        for replica in self.replicas.values():
            if replica.leader is not None:
                replica.leader.sweep(self.now_ms)

    # --- ISR changes ---

    def do_propose(self, node: str) -> list[str]:
        """What the leader proposes reaches the controller, which judges; the answer waits for `answer`."""
        replica, core = self.replicas[int(node)], self.leader(node)
        assert core.pending is not None, f"{node} proposes nothing"
        change = replica.sent = core.pending
        outcome = self.judge(replica.node, change.item)
        replica.answers.append((core, change, outcome))
        return [f"the controller answers {outcome.error.name}"]

    def do_giveup(self, node: str) -> list[str]:
        """What the leader proposes is on its way, and the leader waits no longer: `late` lets that copy arrive."""
        core = self.leader(node)
        assert core.pending is not None, f"{node} proposes nothing"
        self.late[int(node)] = core.pending.item
        return [f"a copy of {list(core.pending.isr)} under partition epoch {core.pending.item.partition_epoch} is late"]

    def do_late(self, node: str) -> list[str]:
        """A copy that its leader gave up reaches the controller; nobody waits for the answer."""
        outcome = self.judge(self.replicas[int(node)].node, self.late.pop(int(node)))
        self.publish()
        return [f"the controller answers {outcome.error.name}, and nobody hears it"]

    def judge(self, sender: NodeId, item: AlterPartitionItem) -> AlterPartitionOutcome:
        """What the controller does with a proposal."""
        brokers = {
            broker.node_id: RegisterBrokerRecord(
                broker.node_id,
                UUID(int=int(broker.broker_epoch)),
                broker.broker_epoch,
                {},
                broker.endpoint,
                None,
                broker.fenced,
                broker.in_controlled_shutdown,
            )
            for broker in self.brokers.values()
        }
        error = ErrorCode.NONE
        try:
            validate(MetadataImage("model", brokers=brokers), sender, self.partition, item)  # type: ignore[arg-type]
        except KafkaError as refused:
            error = refused.code
        else:
            isr = tuple(member.node_id for member in item.new_isr)
            self.change(target_isr=isr, recovering=item.recovering, proposed=True)
        one = self.partition
        return AlterPartitionOutcome(
            TOPIC, 0, error, "", one.leader, one.leader_epoch, one.partition_epoch, one.isr, one.recovering
        )

    def do_answer(self, node: str) -> None:
        """The controller's answer arrives, and the metadata after it."""
        replica = self.replicas[int(node)]
        core, change, outcome = replica.answers.pop(0)
        if ProposeIsr(change, again=True) in core.answered(change, outcome, self.now_ms):
            self.replicas[int(node)].sent = None
        self.publish()

    def do_loseanswer(self, node: str) -> None:
        """The answer is lost: whether the change was committed is unknown."""
        core, change, outcome = self.replicas[int(node)].answers.pop(0)
        lost = AlterPartitionOutcome(outcome.topic_id, 0, ErrorCode.REQUEST_TIMED_OUT)
        if ProposeIsr(change, again=True) in core.answered(change, lost, self.now_ms):
            self.replicas[int(node)].sent = None

    # --- what must hold ---

    def do_expect(self, what: str, *words: str) -> None:
        """`leader 1 epoch 2`, `hw 1 5`, `log 2 x y`, `isr 1 2`, `elr 3`, `judge 1 NONE`, `knows 1 yes`."""
        one = self.partition
        if what == "leader":
            assert (str(one.leader), str(one.leader_epoch)) == (words[0], words[2]), self.describe_partition()
        elif what == "nobody":
            assert one.leader == NO_NODE, self.describe_partition()
        elif what in ("isr", "elr"):
            held = one.isr if what == "isr" else one.eligible_leader_replicas
            assert sorted(str(node) for node in held) == sorted(words), self.describe_partition()
        elif what == "hw":
            assert self.replicas[int(words[0])].known_high_watermark == int(words[1])
        elif what == "log":
            entries = self.replicas[int(words[0])].log.entries
            assert [self.values[entry.value] for entry in entries] == list(words[1:])
        elif what == "judge":
            assert self.leader(words[0]).judge_committed().name == words[1]
        elif what == "knows":
            assert self.leader(words[0]).knows_committed_end is (words[1] == "yes")
        else:
            raise AssertionError(f"nobody knows what to expect of {what}")
