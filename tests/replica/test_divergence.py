"""Where logs part: what the leader answers, where the follower cuts (rule B8, truncation; schedules 1 to 7)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from strandline.proto.errors import FatalError
from strandline.proto.ids import LeaderEpoch
from strandline.replica.core import (
    Committed,
    DeleteBefore,
    FetchJudgement,
    FollowerCore,
    KeepLog,
    RestartAt,
    Truncate,
    Verdict,
    judge_fetch,
    truncation_offset,
)
from tests.replica.fake_controller import partition_state

VALID = FetchJudgement(Verdict.VALID)


@dataclass
class Epochs:
    """A log by its epochs alone: (epoch, start offset), and where it ends."""

    entries: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        known = [i for i, entry in enumerate(self.entries) if entry[0] <= epoch]
        if not known:
            return -1, -1
        last = known[-1]
        end = self.entries[last + 1][1] if last + 1 < len(self.entries) else self.end
        return self.entries[last][0], end

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def truncate(self, offset: int) -> None:
        self.end = min(self.end, offset)
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()


def judge(leader: Epochs, offset: int, epoch: int, start: int = 0) -> FetchJudgement:
    return judge_fetch(leader, start, leader.end, offset, epoch)


def reconcile(follower: Epochs, leader: Epochs) -> int:
    """Fetch and cut until the leader finds the follower valid; how many cuts it took."""
    for cuts in range(100):
        judgement = judge(leader, follower.end, follower.last_epoch)
        if judgement.verdict is Verdict.VALID:
            return cuts
        assert judgement.verdict is Verdict.DIVERGING
        follower.truncate(truncation_offset(follower, 0, follower.end, judgement.epoch, judgement.end_offset))
    raise AssertionError("they never meet")


def test_a_prefix_is_valid() -> None:
    """Rule B8: the follower's last epoch and end lie on the leader's history."""
    leader = Epochs([(1, 0), (3, 10)], 20)
    assert judge(leader, 5, 1) == VALID
    assert judge(leader, 10, 1) == VALID
    assert judge(leader, 20, 3) == VALID
    assert judge(leader, 0, -1) == VALID


def test_a_longer_log_of_the_same_epoch_diverges() -> None:
    """Its tail is not the leader's."""
    assert judge(Epochs([(1, 0), (3, 10)], 20), 12, 1) == FetchJudgement(Verdict.DIVERGING, 1, 10)


def test_an_unknown_epoch_diverges_at_the_largest_below() -> None:
    """KIP-279: the leader replies with the largest epoch <= the requested one, and its end."""
    assert judge(Epochs([(1, 0), (3, 10)], 20), 15, 2) == FetchJudgement(Verdict.DIVERGING, 1, 10)


def test_below_the_log_start_is_out_of_range_even_when_diverging() -> None:
    """Rule B8: fetch offset < log start -> OFFSET_OUT_OF_RANGE, whatever the epochs say."""
    leader = Epochs([(1, 8), (3, 10)], 20)
    assert judge(leader, 7, 2, start=8).verdict is Verdict.OUT_OF_RANGE


def test_an_empty_log_beyond_the_leaders_end_is_out_of_range() -> None:
    """There is no epoch to judge by."""
    assert judge(Epochs([(1, 0)], 5), 9, -1).verdict is Verdict.OUT_OF_RANGE


def test_a_leader_that_has_deleted_the_followers_epochs() -> None:
    """What it still has is all of newer epochs: the follower keeps nothing beyond the leader's log start, and from
    there it is valid (no endless loop)."""
    leader = Epochs([(5, 30)], 60)
    assert judge(leader, 40, 3, start=30) == FetchJudgement(Verdict.DIVERGING, 3, 30)
    follower = Epochs([(2, 0), (3, 20)], 40)
    follower.truncate(truncation_offset(follower, 0, follower.end, 3, 30))
    assert follower.end == 30
    assert judge(leader, 30, 3, start=30) == VALID


def test_truncation_is_by_epoch_and_not_to_the_high_watermark() -> None:
    """Schedule 1 (KIP-101): B restarts with its high watermark behind: what it has of the leader's epoch stays."""
    leader = Epochs([(1, 0)], 10)
    follower = Epochs([(1, 0)], 10)
    assert reconcile(follower, leader) == 0
    assert follower.end == 10


def test_back_to_back_failovers_need_iteration() -> None:
    """Schedule 2 (KAFKA-6361): the leader lacks the follower's epoch, the follower lacks the leader's next smaller
    one."""
    leader = Epochs([(1, 0), (2, 10), (5, 15)], 30)
    follower = Epochs([(1, 0), (3, 12), (4, 20)], 40)
    assert reconcile(follower, leader) == 2
    assert follower.end == 10
    assert follower.entries == [(1, 0)]


def test_a_follower_that_has_only_larger_epochs_starts_over() -> None:
    """Schedule 2: its only record is of epoch 2, which the leader never heard of; the leader answers with the end of
    epoch 1, of which the follower has nothing: equal lengths must not make it believe that they agree."""
    follower, leader = Epochs([(2, 0)], 1), Epochs([(1, 0), (3, 1)], 9)
    assert judge(leader, 1, 2) == FetchJudgement(Verdict.DIVERGING, 1, 1)
    assert reconcile(follower, leader) == 1
    assert follower.end == 0


def test_an_election_without_appends_is_known() -> None:
    """Schedule 3 (KAFKA-7415): two elections and no record between: the epochs are in the history since the election,
    and the question for one of them has an answer."""
    leader = Epochs([(1, 0), (2, 10), (3, 10)], 10)
    assert leader.end_offset_for_epoch(2) == (2, 10)
    assert judge(leader, 12, 2) == FetchJudgement(Verdict.DIVERGING, 2, 10)


def test_the_same_leader_again_in_a_new_epoch() -> None:
    """Schedule 4 (KAFKA-7164): the follower missed an epoch; truncation is judged anew in the new one."""
    leader = Epochs([(1, 0), (3, 10)], 12)
    follower = Epochs([(1, 0)], 14)
    assert reconcile(follower, leader) == 1
    assert follower.end == 10


def test_epochs_without_records_do_not_make_the_follower_stick() -> None:
    """Schedule 5 (KAFKA-10706): it led epoch 4 and wrote nothing; the leader has never heard of that epoch. Cutting at
    the very end must drop the entry, or the same question comes for ever."""
    leader = Epochs([(1, 0), (5, 10)], 30)
    follower = Epochs([(1, 0), (4, 10)], 10)
    assert reconcile(follower, leader) == 1
    assert (follower.entries, follower.end) == ([(1, 0)], 10)


@pytest.mark.parametrize(
    ("entries", "end", "leader_epoch", "leader_end", "cut"),
    [
        ([(1, 0)], 20, 1, 10, 10),
        ([(1, 0)], 8, 1, 10, 8),
        ([(1, 0), (3, 6)], 20, 3, 10, 10),
        ([(1, 0), (3, 6)], 20, 2, 10, 6),
        ([(3, 0)], 20, 2, 10, 0),
        ([], 0, 2, 10, 0),
    ],
)
def test_where_a_follower_cuts(
    entries: list[tuple[int, int]], end: int, leader_epoch: int, leader_end: int, cut: int
) -> None:
    """Rule B8: at the smaller end of a common epoch, else at the end of its own largest below, never beyond its end."""
    assert truncation_offset(Epochs(entries, end), 0, end, leader_epoch, leader_end) == cut


# The follower


def follower(high_watermark: int, end: int, **more: object) -> FollowerCore:
    state = replace(partition_state(topic_id=UUID(int=1), leader=2), leader_epoch=LeaderEpoch(5), **more)  # type: ignore[arg-type]
    return FollowerCore(state, high_watermark, end)


def test_a_followers_high_watermark_is_bounded_by_its_own_end() -> None:
    """Rules A8, B4: min(own end, the leader's), and it does not fall with the leader's word."""
    core = follower(3, 10)
    assert core.learned(7, 0, log_start=0, log_end=10) == (Committed(7),)
    assert core.learned(5, 0, log_start=0, log_end=10) == ()
    assert core.learned(99, 0, log_start=0, log_end=10) == (Committed(10),)
    assert core.high_watermark == 10
    assert follower(12, 10).high_watermark == 10


def test_a_cut_below_the_high_watermark_is_told() -> None:
    """KAFKA-12460, rule A8: never silently."""
    history = Epochs([(1, 0)], 10)
    assert follower(8, 10, recovering=True).diverged(history, 0, 10, 1, 6) == Truncate(6, below_high_watermark=True)
    assert follower(6, 10).diverged(history, 0, 10, 1, 6) == Truncate(6)


def test_a_cut_that_nothing_explains_is_not_made() -> None:
    """Rule A8: what was committed is given up after an unclean election, or under flush.policy = replicate, alone."""
    history = Epochs([(1, 0)], 10)
    assert follower(8, 10).diverged(history, 0, 10, 1, 6) == KeepLog(6)
    state = replace(partition_state(topic_id=UUID(int=1), leader=2), leader_epoch=LeaderEpoch(5))
    unsynced = FollowerCore(state, 8, 10, sync_before_ack=False)
    assert unsynced.diverged(history, 0, 10, 1, 6) == Truncate(6, below_high_watermark=True)
    core = follower(8, 10)
    with pytest.raises(FatalError, match="CommittedIsKept"):
        core.truncated(6)


def test_the_leaders_deletions_are_followed_up_to_the_high_watermark() -> None:
    core = follower(3, 10)
    assert core.learned(7, 5, log_start=0, log_end=10) == (Committed(7), DeleteBefore(5))
    assert core.learned(7, 9, log_start=5, log_end=10) == (DeleteBefore(7),)
    assert core.learned(7, 5, log_start=5, log_end=10) == ()


def test_only_an_unclean_election_explains_it() -> None:
    """While the leader recovers, or where the topic allows unclean elections."""
    assert not follower(8, 10).may_lose_committed
    assert follower(8, 10, recovering=True).may_lose_committed
    core = follower(8, 10)
    core.metadata_changed(
        replace(partition_state(topic_id=UUID(int=1)), leader_epoch=LeaderEpoch(5), unclean_leader_election=True)
    )

    assert core.may_lose_committed


def test_starting_anew_where_retention_has_left_the_leader() -> None:
    """OFFSET_OUT_OF_RANGE from below: nothing committed is given up by dropping what the leader has deleted."""
    core = follower(10, 10)
    assert core.out_of_range(10, 30, 60) == RestartAt(30)
    core.started_at(30)
    assert core.high_watermark == 30


def test_a_leader_that_ends_below_our_high_watermark() -> None:
    """OFFSET_OUT_OF_RANGE from above: told."""
    assert follower(10, 10).out_of_range(10, 0, 5) == KeepLog(0)
    assert follower(10, 10, recovering=True).out_of_range(10, 0, 5) == RestartAt(0, below_high_watermark=True)
