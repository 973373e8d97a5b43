"""Invariants of an explored quorum: Kafka's simulation invariants and those of Vanlightly's KRaft specification.

Rules of one voter are judged in the step that could break them (`judge_step`), rules of all of them on what a step
changed (`History`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lab.explore.model import Violation
from lab.explore.voters import NOW_MS, Answered, Voter
from strandline.controller.raft.leader import Leader
from strandline.controller.raft.messages import Batch, OffsetAndEpoch, VoteRequest, VoteResponse
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.transitions import RoleKind
from strandline.proto.ids import NodeId

MAJORITY = 2


class VoterView(NamedTuple):
    """View of a voter at one instant, as far as anything is decided or judged by it.

    `log` and `disk` begin at `start`. `leads`: the epoch that it leads, 0 for none. `epoch_watermark`: the leader's own
    high watermark in its epoch. `in_doubt`: its disk may have lost what it had synced, and it has not caught up since.
    """

    role: RoleKind | None
    epoch: int
    saved: ElectionState | None
    start: OffsetAndEpoch
    log: tuple[Batch, ...]
    disk: tuple[Batch, ...]
    unsynced: int
    syncing: bool
    high_watermark: int
    leads: int
    epoch_watermark: int
    snapshot: OffsetAndEpoch | None
    in_doubt: bool = False

    @property
    def end(self) -> int:
        """End of the log."""
        return self.log[-1].next_offset if self.log else self.start.offset


def look(voter: Voter) -> VoterView:
    """The present state of a voter."""
    core = voter.core
    leading = core.role if core is not None and isinstance(core.role, Leader) else None
    known = -1 if leading is None or leading.epoch_high_watermark is None else leading.epoch_high_watermark
    return VoterView(
        role=voter.role,
        epoch=core.epoch if core is not None else (voter.saved.epoch if voter.saved is not None else 0),
        saved=voter.saved,
        start=voter.start,
        log=voter.log,
        disk=voter.disk,
        unsynced=len(voter.unsynced),
        syncing=voter.syncing >= 0,
        high_watermark=-1 if core is None else core.high_watermark,
        leads=0 if leading is None else leading.epoch,
        epoch_watermark=known,
        snapshot=voter.snapshot,
        in_doubt=core is not None and core.node.unproven_until_ms > NOW_MS,
    )


def judge_step(
    node: NodeId, before: VoterView, after: VoterView, sent: list[Any], *, restarted: bool
) -> Violation | None:
    """Judge one step of one voter, by what it may not do whatever the others are."""
    if after.epoch < before.epoch:
        return Violation("MonotonicEpoch", f"{node} goes back from epoch {before.epoch} to {after.epoch}")
    forgotten = _forgets(before.saved, after.saved)
    if forgotten:
        return Violation("VotedOnce", f"{node} {forgotten}")
    for message in sent:
        if isinstance(message, Answered) and _undurable(message, after.saved):
            return Violation("VotedOnce", f"{node} answers with a vote that its disk does not hold: {after.saved}")
    if restarted:
        return None
    if after.high_watermark < before.high_watermark:
        return Violation(
            "MonotonicHighWatermark",
            f"the high watermark of {node} falls from {before.high_watermark} to {after.high_watermark}",
        )
    if after.high_watermark > after.end:
        return Violation(
            "MonotonicHighWatermark", f"{node} has high watermark {after.high_watermark}, its log ends at {after.end}"
        )
    if before.leads == after.leads and after.epoch_watermark < before.epoch_watermark:
        return Violation(
            "MonotonicHighWatermark",
            f"leader {node} takes its high watermark back from {before.epoch_watermark} to {after.epoch_watermark}",
        )
    return None


def _forgets(before: ElectionState | None, after: ElectionState | None) -> str:
    """A durable vote stands until its epoch has a leader, and a known leader until the epoch ends."""
    if before is None or before == after:
        return ""
    if after is None or after.epoch < before.epoch:
        return f"forgets {before}"
    if after.epoch > before.epoch:
        return ""
    if before.leader_id is not None and after.leader_id != before.leader_id:
        return f"knew leader {before.leader_id} of epoch {before.epoch}, and now {after}"
    if before.voted_for is not None and after.leader_id is None and after.voted_for != before.voted_for:
        return f"voted for {before.voted_for.node_id} in epoch {before.epoch}, and now {after}"
    return ""


def _undurable(answered: Answered, saved: ElectionState | None) -> bool:
    """True if a vote leaves before it is durable (rule A1: a vote is durable before anyone hears of it)."""
    response, request = answered.response, answered.token.request
    if not isinstance(response, VoteResponse) or not isinstance(request, VoteRequest):
        return False
    if not response.granted or request.pre_vote or response.epoch != request.candidate_epoch:
        return False
    return saved is None or saved.epoch != response.epoch or saved.voted_for != request.candidate


class History(NamedTuple):
    """Facts that hold for good.

    Attributes:
        leaders: who led epoch 1, 2, ...; None while nobody did.
        committed: every batch that was below any high watermark; in_epochs: the epoch in which each was committed.
    """

    leaders: tuple[NodeId | None, ...] = ()
    committed: tuple[Batch, ...] = ()
    in_epochs: tuple[int, ...] = ()


def new_leader(history: History, node: NodeId, after: VoterView) -> History | Violation:
    """A voter has become leader: SingleLeader, LeaderHasAllCommittedValues.

    What was committed in a later epoch a leader may lack: votes that were given before it may be heard of after it.
    """
    led = list(history.leaders) + [None] * (after.leads - len(history.leaders))
    first = led[after.leads - 1]
    if first is not None and first != node:
        return Violation("SingleLeader", f"{first} and {node} lead epoch {after.leads}")
    led[after.leads - 1] = node
    before = tuple(
        batch for batch, epoch in zip(history.committed, history.in_epochs, strict=True) if epoch <= after.leads
    )
    lacking = _lacks(after.start, after.log, before)
    if lacking is not None:
        return Violation(
            "LeaderHasAllCommittedValues",
            f"{node} leads epoch {after.leads} without {tell_batch(lacking)}, which is committed",
        )
    return history._replace(leaders=tuple(led))


def commit(history: History, node: NodeId, after: VoterView) -> History | Violation:
    """A high watermark rose: ConsistentCommittedData."""
    shown = [batch for batch in after.log if batch.base_offset < after.high_watermark]
    known = history.committed
    for batch in shown:
        if batch.base_offset < len(known) and known[batch.base_offset] != batch:
            return Violation(
                "ConsistentCommittedData",
                f"{node} counts {tell_batch(batch)} as committed, where {tell_batch(known[batch.base_offset])} was",
            )
    new = tuple(batch for batch in shown if batch.base_offset >= len(known))
    if new and new[0].base_offset > len(known):
        return Violation("ConsistentCommittedData", f"{node} skips offset {len(known)}")
    if not new:
        return history
    in_epochs = history.in_epochs + (after.epoch,) * len(new)
    return history._replace(committed=known + new, in_epochs=in_epochs)


def majority_holds(looks: tuple[VoterView, ...], committed: tuple[Batch, ...]) -> Violation | None:
    """MajorityReachedHighWatermark: a majority of the disks holds everything committed; of the dead theirs count, and
    what a disk held that did not give it back."""
    holders = sum(one.in_doubt or _lacks(one.start, one.disk, committed) is None for one in looks)
    if holders >= MAJORITY:
        return None
    return Violation(
        "MajorityReachedHighWatermark",
        f"{holders} of {len(looks)} disks hold what is committed below {len(committed)}",
    )


def logs_match(one: VoterView, other: VoterView) -> Violation | None:
    """NoLogDivergence: where two logs have the same epoch at an offset they are equal up to there."""
    mine = {batch.base_offset: batch for batch in one.log}
    theirs = {batch.base_offset: batch for batch in other.log}
    common = [offset for offset in mine if offset in theirs and mine[offset].epoch == theirs[offset].epoch]
    for offset in common:
        for earlier in range(max(one.start.offset, other.start.offset), offset + 1):
            if mine.get(earlier) != theirs.get(earlier):
                return Violation(
                    "NoLogDivergence",
                    f"two logs have epoch {mine[offset].epoch} at offset {offset}, and differ at {earlier}",
                )
    return None


def _lacks(start: OffsetAndEpoch, log: tuple[Batch, ...], committed: tuple[Batch, ...]) -> Batch | None:
    """The first committed batch that a log does not have; what is below its start is in a snapshot."""
    held = {batch.base_offset: batch for batch in log}
    for batch in committed[start.offset :]:
        if held.get(batch.base_offset) != batch:
            return batch
    if start.offset and (start.offset > len(committed) or committed[start.offset - 1].epoch != start.epoch):
        return committed[-1] if committed else None
    return None


def tell_batch(batch: Batch) -> str:
    """A batch in a sentence."""
    data = batch.data
    what = f"record {chr(ord('a') + data[0])}" if isinstance(data, bytes) else "the leader change"
    return f"{what} of epoch {batch.epoch} at offset {batch.base_offset}"


def tell_log(batches: tuple[Batch, ...]) -> str:
    """A log in short: `+` is a leader change."""
    kinds = [chr(ord("a") + one.data[0]) if isinstance(one.data, bytes) else "+" for one in batches]
    return f"[{' '.join(f'{kind}@{one.epoch}' for kind, one in zip(kinds, batches, strict=True))}]"


def tell_voter(one: VoterView) -> str:
    """A voter in full."""
    assert one.role is not None
    saved, start = one.saved, f" from {one.start.offset}" if one.start.offset else ""
    vote = f", vote for n{int(saved.voted_for.node_id)}" if saved is not None and saved.voted_for is not None else ""
    leader = f", leader n{int(saved.leader_id)}" if saved is not None and saved.leader_id is not None else ""
    logs = f"log {tell_log(one.log)}{start}, of which synced {tell_log(one.disk)}"
    return f"{one.role.value} of epoch {one.epoch}{leader}{vote}; {logs}; high watermark {one.high_watermark}"


def tell_point(one: VoterView) -> tuple[str, int, int, int, int, str]:
    """A voter in a row of a story."""
    assert one.role is not None
    last = one.log[-1].epoch if one.log else one.start.epoch
    return one.role.value.lower(), one.epoch, one.high_watermark, one.end, last, ""
