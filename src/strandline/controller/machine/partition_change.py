"""One partition's change: its ISR, its eligible replicas, its leader (Kafka's PartitionChangeBuilder, KIP-966).

Election order (rule B10): the current leader if it still may lead; the ISR in replica order; the eligible leader
replicas in replica order, if the ISR is empty.

An eligible replica that is back after an unclean stop had all that was committed, and nothing proves that its disk gave
it back (rule B30). Where no proven one is alive, the greatest log of the last ISR leads: at once, if all of its members
have reported where theirs end; else when the wait for the others is over.

Then, if the ELR is empty too:

- the greatest log of the members in doubt, once all of them are back (docs/correctness.md, "After a crash: who may
  lead"). It has everything that was acknowledged, so this is no unclean election;
- where a broker acks what it has not synced (flush.policy=replicate) the last known leader.

A replica whose disk is full takes no writes, and one that has rotted cannot be read in part. Either is unfit: it leads,
and is in the ISR, only where no member that is fit is left
(schedule 57). Its log counts like any other, so it is as eligible as it was.

A move (KIP-455) is over with the change that leaves every replica of its target in the ISR (rule B44): the record sets
the target, takes those that were to go out of the ISR, and lets a member of the target lead.

At last, where the topic or an operator allows an unclean election, the live replica with the greatest (last epoch, log
end). The last known leader and an unclean one may lack committed records: the ISR becomes the new leader alone, and the
partition is RECOVERING.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from strandline.controller.metadata.records import PartitionChangeRecord, PartitionRecord
from strandline.proto.ids import NO_NODE, LeaderEpoch, NodeId, Offset
from strandline.proto.marks import mark


class Election(Enum):
    """Kinds of election, by how far they may go."""

    ONLINE = "keep a leader that may lead, else elect a clean one"
    PREFERRED = "the first replica, if it is in the ISR, even if another one leads"
    UNCLEAN = "as ONLINE, and at last any live replica, but for those that a move is adding"
    ANY = "as UNCLEAN, and those too: their logs may be empty"


class Rule(Enum):
    """Rule by which the leader leads; the words stand in the record's reason."""

    KEPT = "the leader stays"
    IN_SYNC = "elected from the ISR"
    ELIGIBLE = "elected from the eligible leader replicas"
    GREATEST = "elected for the greatest log of all members in doubt"
    LAST_KNOWN = "unclean election of the last known leader"
    UNCLEAN = "unclean election"
    NOBODY = "nobody may lead"

    @property
    def unclean(self) -> bool:
        """True if committed records may be lost."""
        return self in (Rule.LAST_KNOWN, Rule.UNCLEAN)


class LogPosition(NamedTuple):
    """End of a replica's log while its partition has no leader; the last epoch is -1 where it has no record."""

    last_epoch: LeaderEpoch
    log_end_offset: Offset


class Assignment(NamedTuple):
    """Where the replicas of a partition are, and what a move under way makes of that.

    Attributes:
        replicas: all, those of the target first.
        adding, removing: those of them that come and those that go; neither: no move.
    """

    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()

    @property
    def target(self) -> tuple[NodeId, ...]:
        """The replicas once the move is over."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def guarded(self) -> int:
        """Number of replicas that min.insync.replicas may count. A move in progress does not change it beyond the
        number of replicas that exist (rule B45)."""
        return len(self.replicas) - len(self.adding)


def assignment_of(partition: PartitionRecord) -> Assignment:
    """The partition's assignment, from its metadata."""
    return Assignment(partition.replicas, partition.adding_replicas, partition.removing_replicas)


Rank = Callable[[Sequence[NodeId]], Sequence[NodeId]]
"""Orders live candidates of an unclean election, the best first."""


def keep_order(candidates: Sequence[NodeId]) -> Sequence[NodeId]:
    """The rank where nothing is known of the candidates' logs: replica order."""
    return candidates


def not_reported(_: NodeId) -> LogPosition | None:
    """Log position of a broker that has reported none: always None."""
    return None


def is_sure(_: NodeId) -> bool:
    """True if every eligible replica has what it had."""
    return True


def nobody_listens(_: bool) -> None:
    """Whether the partition waits is told to nobody."""


def everybody_is_fit(_: NodeId) -> bool:
    """True if nothing is known of any disk, nor of rot."""
    return True


class PartitionChange:
    """Computes the record that brings a partition from what it is to what it should be.

    Invariants of the result:

    * the leader is in the ISR, and only acceptable replicas are elected;
    * of the acceptable members of the ISR all are fit, or none;
    * ISR and ELR are disjoint, and the ELR is empty while |ISR| >= min ISR;
    * a replica leaves ISR and ELR together only if it is in doubt, or has lost its log, was in neither, or the ISR
      reached min ISR;
    * a member in doubt is in neither, and their list is empty while |ISR| >= min ISR;
    * a record that ends a move, or takes a replica away, raises the leader epoch: no leader counts on what it knew of a
      replica before that was away, nor goes on by the min ISR of fewer replicas (rule B46);
    * an election of the greatest log in doubt, and an unclean one, leave ISR = {leader}, ELR empty; only the unclean
      one leaves the partition recovering.
    """

    def __init__(
        self,
        partition: PartitionRecord,
        *,
        acceptable: Callable[[NodeId], bool],
        min_isr: int,
        election: Election = Election.ONLINE,
        target_isr: tuple[NodeId, ...] | None = None,
        assignment: Assignment | None = None,
        recovering: bool | None = None,
        doubtful: NodeId = NO_NODE,
        lost: NodeId = NO_NODE,
        synced: bool = True,
        is_fit: Callable[[NodeId], bool] = everybody_is_fit,
        position: Callable[[NodeId], LogPosition | None] = not_reported,
        rank: Rank = keep_order,
        proven: Callable[[NodeId], bool] = is_sure,
        patient: bool = True,
        on_wait: Callable[[bool], None] = nobody_listens,
        reason: str = "",
    ) -> None:
        """`min_isr`: min.insync.replicas, whatever the number of replicas. `assignment`: the one that it gets; None: it
        stays as it is.

        `doubtful`: its log may lack the end that it had. `lost`: its log lacks what it had, for certain.

        `synced`: nothing was acknowledged that its ISR had not synced (flush.policy=ack on every replica's broker).
        `is_fit`: its broker has not said that its disk is full, nor that the replica has rotted.
        `position`: what a live replica has reported since the partition lost its leader; None without a report.
        `proven`: an eligible replica's log reaches to where it did, for certain. `patient`: where none that is proven
        lives, the others of the last ISR are waited for, which `on_wait` is told.
        """
        self._partition = partition
        self._acceptable = acceptable
        self._election = election
        self._is_fit = is_fit
        self._assignment = assignment_of(partition) if assignment is None else assignment
        wanted = partition.isr if target_isr is None else target_isr
        self._isr = self._without_the_unfit(tuple(node for node in wanted if node in self._assignment.replicas))
        self._configured_min_isr = min_isr
        self._min_isr = min(min_isr, self._assignment.guarded)
        self._elr = partition.eligible_leader_replicas
        self._recovering = partition.recovering if recovering is None else recovering
        self._doubtful = doubtful
        self._lost = lost
        self._synced = synced
        self._position = position
        self._rank = rank
        self._proven = proven
        self._patient = patient
        self._on_wait = on_wait
        self._waits = False
        self._reason = reason
        self.ends_move = False
        """The move under way is over with it."""
        self.rule = Rule.KEPT
        """Rule by which the leader of the record leads."""

    def build(self) -> PartitionChangeRecord | None:
        """The record, or None when the partition stays as it is."""
        old = self._partition
        self._end_move()
        self._elr = self._next_elr()
        leader, rule = self._elect()
        self.rule = rule
        if self._patient:  # rule B30/preview-ends-the-wait
            self._on_wait(self._waits)
        self._mark(leader, rule)
        if leader != old.leader and (leader in self._elr or rule is Rule.GREATEST):
            # Alone at min ISR 1 it raises the high watermark on its own: then no other replica stays eligible.
            self._isr = (leader,)  # schedule 45/greatest-log-is-elected-uncleanly
            # rule B11/eligible-leader-leaves-the-others-eligible-at-min-isr-1
            self._elr = () if self._min_isr <= 1 else tuple(node for node in self._elr if node != leader)
        elif rule.unclean:
            self._isr = (leader,)  # rule B10/unclean-leader-keeps-the-isr
            self._elr = ()  # rule B10/unclean-leader-keeps-the-eligible
            self._recovering = True  # rule B10/unclean-leader-does-not-recover
        self._end_move()  # rule B44/moves-end-for-elected-leaders-alone
        assignment = self._assignment
        last_known = self._next_in_doubt(rule) if self._synced else self._next_last_known_leader(leader)
        record = PartitionChangeRecord(
            topic_id=old.topic_id,
            partition=old.partition,
            replicas=None if assignment.replicas == old.replicas else assignment.replicas,
            isr=None if self._isr == old.isr else self._isr,
            eligible_leader_replicas=None if self._elr == old.eligible_leader_replicas else self._elr,
            last_known_elr=None if last_known == old.last_known_elr else last_known,
            leader=None if leader == old.leader and not self._must_begin_anew() else leader,
            recovering=None if self._recovering == old.recovering else self._recovering,
            reason=self._words(rule),
            adding_replicas=None if assignment.adding == old.adding_replicas else assignment.adding,
            removing_replicas=None if assignment.removing == old.removing_replicas else assignment.removing,
        )
        return record if _changes(record) else None

    def _end_move(self) -> None:
        """End the move if every replica of its target is in the ISR: before the election, so that one of them leads;
        and after it, for an ISR that is the new leader alone. Not while what an unclean election lost may be on those
        that are to go."""
        target = self._assignment.target
        if target == self._assignment.replicas and not self._assignment.adding:
            return
        # rule B44/a-move-ends-before-its-target-is-in-sync
        if self._recovering or any(node not in self._isr for node in target):
            return
        self.ends_move = True
        self._assignment = Assignment(target)
        self._min_isr = min(self._configured_min_isr, self._assignment.guarded)
        self._isr = tuple(node for node in self._isr if node in target)
        self._elr = ()

    def _must_begin_anew(self) -> bool:
        """True if the same leader needs a new leader epoch: a replica was removed, or min.insync.replicas counts more
        replicas."""
        gone = any(node not in self._assignment.replicas for node in self._partition.replicas)
        return gone or self.ends_move  # rule B46/a-replica-goes-within-a-leader-epoch

    def _words(self, rule: Rule) -> str:
        reason = f"{self._reason}, and the move is over" if self.ends_move else self._reason
        return reason if rule is Rule.KEPT else f"{reason}: {rule.value}"

    def _mark(self, leader: NodeId, rule: Rule) -> None:
        """Coverage marks: how the leader was found."""
        old = self._partition
        if leader != old.leader:
            if rule is Rule.NOBODY:
                mark("partition-leaderless")
            elif rule is Rule.ELIGIBLE:
                mark("elected-from-elr")
            elif rule is Rule.GREATEST:
                mark("elected-in-doubt")
            elif rule is Rule.LAST_KNOWN:
                mark("elected-last-known-leader")
            else:
                mark("elected-unclean" if rule is Rule.UNCLEAN else "elected-from-isr")
        if len(self._elr) > len(old.eligible_leader_replicas):
            mark("elr-grew")
        if self.ends_move:
            mark("reassignment-over" if leader == old.leader else "reassignment-over-under-another-leader")

    def _without_the_unfit(self, isr: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        """Schedules 57, 80: acks do not wait for a member that is unfit, as long as a fit one may lead."""
        # schedule 57/full-replicas-leave-every-isr
        if not any(self._is_fit(node) and self._acceptable(node) for node in isr):
            return isr
        # schedule 57/full-leader-keeps-the-leadership, schedule 57/full-replica-stays-in-the-isr
        return tuple(node for node in isr if self._is_fit(node))

    def _next_elr(self) -> tuple[NodeId, ...]:
        """KIP-966: below min ISR members that leave the ISR stay eligible; at min ISR the list is cleared.

        Safe because the high watermark stands still while |ISR| < min ISR (the strict rule of B): every member of the
        ISR when it fell below holds all that is committed.
        """
        if len(self._isr) >= self._min_isr:  # rule B11/no-eligible-replicas, rule B11/eligible-are-never-cleared
            return ()
        # rule B11/earlier-eligible-are-forgotten
        candidates = {*self._partition.eligible_leader_replicas, *self._partition.isr}
        # schedule 45/log-in-doubt-stays-eligible, schedule 46/lost-log-stays-eligible
        # schedule 57/full-replica-is-not-eligible
        return tuple(
            node
            for node in self._assignment.replicas
            if node in candidates and node not in self._isr and node not in (self._doubtful, self._lost)
        )

    def _elect(self) -> tuple[NodeId, Rule]:
        old = self._partition
        replicas = self._assignment.replicas
        # rule B10/leader-replaced-although-valid, rule B10/election-in-the-isrs-own-order
        order = [old.leader, *replicas]
        if self._election is Election.PREFERRED:
            order.insert(0, replicas[0])
        # schedule 57/eligible-without-room-first
        order.sort(key=lambda node: not self._is_fit(node))  # eligible replicas, too: those that can take writes
        clean = [node for node in dict.fromkeys(order) if self._may_lead(node)]
        if clean and (self._isr or not self._synced):
            return clean[0], self._clean_rule(clean[0])
        if clean:
            return self._eligible(clean)
        if not self._isr and not self._elr:  # schedule 45/in-doubt-before-the-eligible
            node, rule = self._greatest_in_doubt() if self._synced else self._last_known_leader()
            if node != NO_NODE:
                return node, rule
        if self._election in (Election.UNCLEAN, Election.ANY):  # rule B10/unclean-although-forbidden
            new = () if self._election is Election.ANY else self._assignment.adding  # rule B41/empty-replicas-lead
            # rule B10/unclean-by-replica-order
            for node in self._rank([node for node in replicas if node not in new and self._acceptable(node)]):
                return node, Rule.UNCLEAN
        return NO_NODE, Rule.NOBODY

    def _may_lead(self, node: NodeId) -> bool:
        # rule B10/eligible-before-the-isr, rule B10/eligible-are-never-elected
        in_sync = node in self._isr or (not self._isr and node in self._elr)
        return in_sync and self._acceptable(node)  # rule B10/leader-out-of-sync, rule B10/leader-that-is-not-alive

    def _clean_rule(self, node: NodeId) -> Rule:
        if node == self._partition.leader:
            return Rule.KEPT
        return Rule.IN_SYNC if node in self._isr else Rule.ELIGIBLE

    # Eligible replicas after unclean stops

    def _eligible(self, alive: list[NodeId]) -> tuple[NodeId, Rule]:
        """One of the live eligible replicas; or the greatest log of the last ISR, where none of them is proven. For
        that every member lives and has said where its log ends, or nobody waits any longer."""
        for node in alive:
            if self._proven(node):
                return node, self._clean_rule(node)
        members = {*self._elr, *self._in_doubt()}  # rule B30/members-in-doubt-are-not-waited-for
        if len(members) == 1:
            return alive[0], self._clean_rule(alive[0])
        known = {
            node: position
            for node in self._assignment.replicas
            if node in members and self._acceptable(node) and (position := self._position(node)) is not None
        }
        if len(known) < len(members):
            if self._patient:
                mark("unproven-end-waits")
                self._waits = True
                return NO_NODE, Rule.NOBODY
            mark("unproven-end-leads")
        if not known:
            return alive[0], self._clean_rule(alive[0])
        best = greatest(known)  # rule B30/first-unproven-end-leads
        equals = [node for node in alive if known.get(node) == known[best]]
        return (equals[0], self._clean_rule(equals[0])) if equals else (best, Rule.GREATEST)

    # Members in doubt

    def _in_doubt(self) -> tuple[NodeId, ...]:
        """Members of the last ISR whose logs were cut when they were recovered, and that have not caught up since.

        Like the ELR they are members of the time when the high watermark stood still. A member stays in doubt however
        often its log is found intact later: it still lacks what it lost then.
        """
        old = self._partition
        members = {*old.last_known_elr}
        if self._doubtful in (*old.isr, *old.eligible_leader_replicas):
            members.add(self._doubtful)
        # schedule 46/who-lost-its-log-is-waited-for, schedule 45/in-doubt-although-it-caught-up
        members -= {self._lost, *self._isr, *self._elr}
        return tuple(node for node in self._assignment.replicas if node in members)

    def _next_in_doubt(self, rule: Rule) -> tuple[NodeId, ...]:
        # schedule 45/in-doubt-is-forgotten-beside-a-leader, schedule 45/in-doubt-at-min-isr
        return () if len(self._isr) >= self._min_isr or rule.unclean else self._in_doubt()

    def _greatest_in_doubt(self) -> tuple[NodeId, Rule]:
        """The greatest (last epoch, log end) of all of them, once every one lives and has said where its log ends.

        Their logs were all prefixes of what the last leader had, so that the greatest has whatever an honest one has.
        """
        members = self._in_doubt()
        positions = {node: self._position(node) for node in members if self._acceptable(node)}
        known = {node: position for node, position in positions.items() if position is not None}
        if not members or len(known) < len(members):  # schedule 45/member-in-doubt-does-not-wait
            if members:
                mark("members-in-doubt-wait")
            return NO_NODE, Rule.NOBODY
        best = greatest(known)
        # schedule 46/empty-log-in-doubt-leads
        if known[best].last_epoch < 0 and not self._nobody_reaches_beyond(known[best]):
            mark("empty-log-in-doubt-waits")
            return NO_NODE, Rule.NOBODY
        return best, Rule.GREATEST

    def _nobody_reaches_beyond(self, empty: LogPosition) -> bool:
        """True if a log without records may lead: every replica is back and none holds a record that it lacks."""
        for node in self._assignment.replicas:
            position = self._position(node) if self._acceptable(node) else None
            if position is None or position.log_end_offset > empty.log_end_offset:
                return False
        return True

    # Where a broker acks what it has not synced

    def _last_known_leader(self) -> tuple[NodeId, Rule]:
        last_known = self._partition.last_known_elr
        # rule B10/last-known-leader-is-not-tried, rule B10/last-known-leader-although-dead
        if len(last_known) == 1 and self._acceptable(last_known[0]):
            return last_known[0], Rule.LAST_KNOWN
        return NO_NODE, Rule.NOBODY

    def _next_last_known_leader(self, leader: NodeId) -> tuple[NodeId, ...]:
        """Remembered from the moment the partition loses its leader and its ISR until it has a leader again, or has
        lost its log: it would lead without what others still hold."""
        old = self._partition
        if leader != NO_NODE:
            return ()
        last_known = (old.leader,) if not self._isr and old.leader != NO_NODE else old.last_known_elr
        kept = [node for node in last_known if node in self._assignment.replicas]
        return tuple(node for node in kept if node != self._lost)  # rule B10/last-known-leader-without-its-disk


def greatest(positions: dict[NodeId, LogPosition]) -> NodeId:
    """The greatest (last epoch, log end), the first of equals.

    A log all of whose records were deleted has forgotten their epoch. Beside one of those the ends decide alone: among
    members of one ISR they order the logs just as well.
    """
    # schedule 45/trimmed-log-is-outranked-by-its-epoch
    if any(position.last_epoch < 0 < position.log_end_offset for position in positions.values()):
        return max(positions, key=lambda node: positions[node].log_end_offset)
    # schedule 45/smallest-log-in-doubt, schedule 45/in-doubt-by-length-alone
    return max(positions, key=positions.__getitem__)


def _changes(record: PartitionChangeRecord) -> bool:
    return any(
        value is not None
        for value in (
            record.isr,
            record.eligible_leader_replicas,
            record.last_known_elr,
            record.leader,
            record.recovering,
            record.replicas,
            record.adding_replicas,
            record.removing_replicas,
        )
    )
