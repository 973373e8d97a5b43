"""The rules A1 to A4, durable state and votes, by single messages. Each test fails without its rule."""

from __future__ import annotations

import pytest
from raft_bench import Bench, batch, key

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    FetchRequest,
    FetchResponse,
    OffsetAndEpoch,
    Reply,
    SendRequest,
    VoteRequest,
    VoteResponse,
)
from strandline.controller.raft.ready import Append, ElectionState
from strandline.controller.raft.transitions import RoleKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId

# --- Rules A1, A2: durable state --------------------------------------------------------------------------------------


def test_a1_a_vote_is_persisted_in_the_very_ready_that_sends_it() -> None:
    """Rule A1: durable before reply. The Ready that carries the answer carries the vote, and persist stands before
    send."""
    bench = Bench()
    assert bench.ask(bench.vote_request(epoch=5)) == VoteResponse(ErrorCode.NONE, 5, None, True)
    ready = next(ready for ready in bench.outputs if any(isinstance(m, Reply) for m in ready.send))
    assert ready.persist == ElectionState(5, voted_for=key(2))


def test_a1_every_change_of_epoch_vote_or_leader_is_persisted() -> None:
    """Rule A1 along a life: new epoch, vote, leader, own candidacy, own leadership."""
    bench = Bench()
    bench.ask(bench.vote_request(epoch=3, last=(0, 0), candidate=2))
    bench.follow(2, epoch=3)
    bench.follow(3, epoch=4)
    bench.wait(2500)
    for sent in bench.sent(VoteRequest):
        bench.respond(sent, VoteResponse(ErrorCode.NONE, 4, None, True))
    states = [ready.persist for ready in bench.outputs if ready.persist is not None]
    assert states[0] == ElectionState(0)
    assert ElectionState(3, voted_for=key(2)) in states
    assert ElectionState(3, leader_id=NodeId(2)) in states
    assert ElectionState(4, leader_id=NodeId(3)) in states
    assert states[-1] == ElectionState(5, voted_for=key(1))


@pytest.mark.parametrize(
    ("saved", "role", "epoch"),
    [
        (None, RoleKind.UNATTACHED, 0),
        (ElectionState(4, leader_id=NodeId(1)), RoleKind.RESIGNED, 4),
        (ElectionState(4, voted_for=key(1)), RoleKind.CANDIDATE, 4),
        (ElectionState(4, voted_for=key(2)), RoleKind.UNATTACHED, 4),
        (ElectionState(4, leader_id=NodeId(2)), RoleKind.FOLLOWER, 4),
        (ElectionState(4), RoleKind.UNATTACHED, 4),
        (ElectionState(4, leader_id=NodeId(77)), RoleKind.UNATTACHED, 4),
        (ElectionState(1, leader_id=NodeId(1)), RoleKind.UNATTACHED, 3),
    ],
)
def test_a2_restart(saved: ElectionState | None, role: RoleKind, epoch: int) -> None:
    """Rule A2: the role follows from the quorum-state file; one that is older than the log counts for nothing."""
    log = LogSummary(end_offset=7, epochs=((1, 0), (3, 5))) if saved else None
    bench = Bench(saved=saved, log=log)
    assert (bench.role, bench.core.epoch) == (role, epoch)


@pytest.mark.parametrize(
    "saved",
    [
        ElectionState(4, leader_id=NodeId(1)),
        ElectionState(4, voted_for=key(1)),
        ElectionState(4, voted_for=key(3)),
        ElectionState(4, leader_id=NodeId(3)),
        ElectionState(4, leader_id=NodeId(77)),
        ElectionState(4, voted_for=key(1, 99)),
    ],
)
def test_a2_no_second_vote_after_a_restart(saved: ElectionState) -> None:
    """Rule A2: whatever a node did in an epoch (led, stood, voted, followed), it votes for no other in it."""
    bench = Bench(saved=saved)
    response = bench.ask(bench.vote_request(candidate=2, epoch=4, last=(0, 0)))
    assert isinstance(response, VoteResponse)
    assert not response.granted


def test_a2_a_restarted_leader_never_leads_its_epoch_again() -> None:
    """Rule A2: it leads the epoch after next at the earliest, so that no (offset, epoch) is used twice."""
    bench = Bench(voters=1, saved=ElectionState(4, leader_id=NodeId(1)), log=LogSummary(end_offset=3, epochs=((4, 0),)))
    bench.wait(10)
    assert bench.core.leading is not None
    assert bench.core.epoch > 4
    appends = [action.batch for ready in bench.outputs for action in ready.log if isinstance(action, Append)]
    assert [entry.epoch for entry in appends] == [bench.core.epoch]


# --- Rules A3, A4: votes and pre-votes --------------------------------------------------------------------------------


def test_a3_errors_of_vote() -> None:
    """Rule A3: stale epoch, a log too new for its epoch, a foreign cluster, the wrong voter, our own candidacy."""
    bench = Bench(saved=ElectionState(5))
    cases = [
        (bench.vote_request(epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (bench.vote_request(epoch=6, last=(3, 6)), ErrorCode.INVALID_REQUEST),
        (bench.vote_request(epoch=6, last=(3, 7), pre_vote=True), ErrorCode.INVALID_REQUEST),
        (bench.vote_request(epoch=6, candidate=1), ErrorCode.INVALID_REQUEST),
        (bench.vote_request(epoch=6, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (bench.vote_request(epoch=6, voter=key(3)), ErrorCode.INVALID_VOTER_KEY),
    ]
    for request, error in cases:
        response = bench.ask(request)
        assert isinstance(response, VoteResponse)
        assert (response.error, response.granted) == (error, False)
    assert bench.core.epoch == 5


@pytest.mark.parametrize(
    ("last", "granted"), [((9, 2), False), ((5, 3), True), ((4, 3), False), ((1, 4), True), ((100, 2), False)]
)
def test_a3_only_a_candidate_with_a_log_not_behind_ours(last: tuple[int, int], granted: bool) -> None:
    """Rule A3: (last epoch, end offset) >= own, by epoch first."""
    bench = Bench(saved=ElectionState(4), log=LogSummary(end_offset=5, epochs=((1, 0), (3, 2))))
    for pre_vote in (True, False):
        response = bench.ask(bench.vote_request(epoch=6, last=last, pre_vote=pre_vote))
        assert isinstance(response, VoteResponse)
        assert response.granted is granted


def test_a3_one_vote_an_epoch_and_again_to_the_same_candidate() -> None:
    """Rule A3: no vote for another (id, directory id); the same candidate may ask again."""
    bench = Bench()
    answers = [bench.ask(bench.vote_request(candidate=candidate, epoch=1)) for candidate in (2, 3, 2)]
    assert [answer.granted for answer in answers if isinstance(answer, VoteResponse)] == [True, False, True]


def test_a3_a_higher_epoch_keeps_the_election_timer_and_a_vote_resets_it() -> None:
    """Rule A3: else candidates with poor logs could put off everyone's election for ever."""
    bench = Bench(log=LogSummary(end_offset=5, epochs=((1, 0),)))
    before = bench.core.deadline_ms()
    bench.now = 10.0
    bench.ask(bench.vote_request(epoch=7, last=(0, 0)))
    assert (bench.core.epoch, bench.core.deadline_ms()) == (7, before)
    bench.ask(bench.vote_request(epoch=7, last=(9, 2)))
    assert bench.core.deadline_ms() >= 10.0 + bench.core.node.config.election_timeout_ms


def test_a3_an_observer_votes_when_asked_by_its_very_key() -> None:
    """Rule A3: a non-voter's voter set may be stale; its vote is durable like any other."""
    bench = Bench(node=9)
    assert bench.role is RoleKind.OBSERVER
    first = bench.ask(bench.vote_request(candidate=2, epoch=3))
    second = bench.ask(bench.vote_request(candidate=3, epoch=3))
    assert isinstance(first, VoteResponse)
    assert isinstance(second, VoteResponse)
    assert (first.granted, second.granted) == (True, False)
    assert bench.outputs[-2].persist == ElectionState(3, voted_for=key(2))


def test_a4_a_pre_vote_changes_no_state() -> None:
    """Rule A4, KIP-996: granted, and yet nothing is persisted, and others may still be granted."""
    bench = Bench(saved=ElectionState(5))
    deadline = bench.core.deadline_ms()
    for candidate in (2, 3):
        response = bench.ask(bench.vote_request(candidate=candidate, epoch=5, pre_vote=True))
        assert response == VoteResponse(ErrorCode.NONE, 5, None, True)
    assert all(ready.persist is None for ready in bench.outputs)
    assert (bench.core.epoch, bench.core.deadline_ms(), bench.role) == (5, deadline, RoleKind.UNATTACHED)


def test_a4_a_follower_refuses_only_while_its_own_leader_serves_it() -> None:
    """Rule A4: never fetched -> grants (else two roles livelock); fetched -> refuses; connection broken -> grants."""
    bench = Bench()
    bench.follow(2, epoch=1)

    def granted() -> bool:
        response = bench.ask(bench.vote_request(candidate=3, epoch=1, pre_vote=True, last=(0, 0)))
        assert isinstance(response, VoteResponse)
        return response.granted

    assert granted()
    bench.fetched()
    assert not granted()
    bench.fail(bench.sent(FetchRequest)[-1], broken=True)
    assert granted()


def test_a4_a_follower_never_gives_a_real_vote_in_its_leaders_epoch() -> None:
    """Rule A3: no known leader in the epoch."""
    bench = Bench()
    bench.follow(2, epoch=1)
    response = bench.ask(bench.vote_request(candidate=3, epoch=1))
    assert response == VoteResponse(ErrorCode.NONE, 1, NodeId(2), False)


def test_a3_nor_does_a_prospective_that_knows_the_epochs_leader() -> None:
    """Rule A3: it forgets neither the leader nor its own vote of the epoch it is still in."""
    bench = Bench()
    bench.follow(2, epoch=1)
    bench.wait(2500)
    assert bench.role is RoleKind.PROSPECTIVE
    response = bench.ask(bench.vote_request(candidate=3, epoch=1))
    assert response == VoteResponse(ErrorCode.NONE, 1, NodeId(2), False)
    voted = Bench()
    voted.ask(voted.vote_request(candidate=2, epoch=1))
    voted.wait(2500)
    assert voted.role is RoleKind.PROSPECTIVE
    response = voted.ask(voted.vote_request(candidate=3, epoch=1))
    assert response == VoteResponse(ErrorCode.NONE, 1, None, False)


def test_a4_no_epoch_is_opened_without_a_majority_of_pre_votes() -> None:
    """Rule A4, schedule 28: a node that hears nobody stays in its epoch for as long as that lasts."""
    bench = Bench(voters=3)
    for _ in range(20):
        bench.wait(500)
        for sent in bench.sent(VoteRequest):
            bench.fail(sent, broken=False)
    assert bench.core.epoch == 0


# --- Rule A15: votes in doubt -----------------------------------------------------------------------------------------


DOUBT = OffsetAndEpoch(9, 1)
"""The log may have reached so far before its tail was cut."""


def votes(bench: Bench, *, pre_vote: bool) -> dict[int, SendRequest]:
    """The last requests for votes of a round, by who is asked."""
    asked = [sent for sent in bench.sent(VoteRequest) if sent.request.pre_vote is pre_vote]  # type: ignore[union-attr]
    return {sent.to: sent for sent in asked}


def grant(bench: Bench, sent: SendRequest, *, in_doubt: bool) -> None:
    bench.respond(sent, VoteResponse(ErrorCode.NONE, bench.core.epoch, None, True, in_doubt))


def test_a15_a_vote_in_doubt_counts_only_with_all_others() -> None:
    """Rule A15: the voter may have held what was committed, and not know it. Of three, two votes with one in doubt
    elect nobody; all three do. So it is with pre-votes."""
    bench = Bench()
    bench.wait(2500)
    for pre_vote, before, after in (
        (True, RoleKind.PROSPECTIVE, RoleKind.CANDIDATE),
        (False, RoleKind.CANDIDATE, RoleKind.LEADER),
    ):
        asked = votes(bench, pre_vote=pre_vote)
        grant(bench, asked[2], in_doubt=True)
        assert bench.role is before
        grant(bench, asked[3], in_doubt=True)
        assert bench.role is after


def test_a15_a_candidate_in_doubt_needs_all_others() -> None:
    """Rule A15: its own vote is one in doubt: two of three are not enough. Two others beyond doubt are a majority."""
    bench = Bench(saved=ElectionState(1, doubt=DOUBT))
    bench.wait(2500)
    asked = votes(bench, pre_vote=True)
    grant(bench, asked[2], in_doubt=False)
    assert bench.role is RoleKind.PROSPECTIVE
    bench.fail(asked[3], broken=True)
    assert bench.role is RoleKind.UNATTACHED, "it cannot be won now: not with a majority beyond doubt, nor with all"
    bench.wait(2500)
    asked = votes(bench, pre_vote=True)
    grant(bench, asked[2], in_doubt=False)
    grant(bench, asked[3], in_doubt=False)
    assert bench.role is RoleKind.CANDIDATE


def test_a15_a_candidate_that_has_more_than_was_lost_has_a_vote_in_full() -> None:
    """Rule A15: Raft's comparison with the log as it may have been: a later epoch, or as far in that one."""
    bench = Bench(saved=ElectionState(1, doubt=DOUBT))
    for last, in_doubt in (((8, 1), True), ((9, 1), False), ((2, 2), False), ((99, 0), True)):
        answer = bench.ask(bench.vote_request(epoch=3, last=last, pre_vote=True))
        assert isinstance(answer, VoteResponse)
        assert (answer.granted, answer.in_doubt) == (True, in_doubt), last


def test_a15_a_voter_says_that_it_is_in_doubt() -> None:
    """Rule A15: with each vote, and durably with each state that it writes."""
    bench = Bench(saved=ElectionState(1, doubt=DOUBT))
    answer = bench.ask(bench.vote_request(epoch=2))
    assert answer == VoteResponse(ErrorCode.NONE, 2, None, True, in_doubt=True)
    assert [ready.persist.doubt for ready in bench.outputs if ready.persist is not None] == [DOUBT]


def test_a15_the_doubt_ends_with_the_flush_that_covers_what_is_committed() -> None:
    """Rule A15: a leader served it, it has all that is committed in that leader's epoch, and has it durably."""
    bench = Bench(saved=ElectionState(1, doubt=DOUBT))
    bench.follow(2, epoch=2)
    bench.fetched(batch(0, 2, 3))
    assert bench.core.node.doubt
    bench.flush()
    bench.fetched(batch(3, 2, 1), high_watermark=5)
    bench.flush()
    assert bench.core.node.doubt, "one more is committed, and may be what it lost"
    bench.fetched(batch(4, 2, 1), high_watermark=5)
    assert bench.core.node.doubt, "it is not durable here"
    bench.flush()
    assert bench.core.node.doubt is None
    last = [ready.persist for ready in bench.outputs if ready.persist is not None][-1]
    assert last == ElectionState(2, leader_id=NodeId(2))


def test_a15_a_late_fetch_of_a_former_life_acknowledges_nothing() -> None:
    """Rule A15: a voter acknowledged offset 3, crashed, cut its tail, and fetches from 2; the old fetch arrives
    again."""
    bench = Bench()
    bench.lead()
    bench.append(2)
    bench.flush()
    bench.fetch(2, 2, life=8, max_wait_ms=0)
    late = bench.fetch(2, 3, life=7, max_wait_ms=0)
    assert isinstance(late, FetchResponse)
    assert late.error is ErrorCode.INVALID_REQUEST
    assert bench.core.leading is not None
    assert bench.core.leading.voters[NodeId(2)].end_offset == 2
