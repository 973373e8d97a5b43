"""The rules A1 to A4, durable state and votes, by single messages. Each test fails without its rule."""

from __future__ import annotations

import pytest
from raft_bench import Bench, key

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import FetchRequest, Reply, VoteRequest, VoteResponse
from strandline.controller.raft.ready import Append, ElectionState
from strandline.controller.raft.state import RoleKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId

# --- A1, A2: durable state -------------------------------------------------------------------------------------------


def test_a1_a_vote_is_persisted_in_the_very_ready_that_sends_it() -> None:
    """A1: durable before reply. The Ready that carries the answer carries the vote, and persist stands before send."""
    bench = Bench()
    assert bench.ask(bench.vote_request(epoch=5)) == VoteResponse(ErrorCode.NONE, 5, None, True)
    ready = next(ready for ready in bench.outputs if any(isinstance(m, Reply) for m in ready.send))
    assert ready.persist == ElectionState(5, voted_for=key(2))


def test_a1_every_change_of_epoch_vote_or_leader_is_persisted() -> None:
    """A1 along a life: new epoch, vote, leader, own candidacy, own leadership."""
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
    """A2: the role follows from the quorum-state file; one that is older than the log counts for nothing."""
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
    """A2: whatever a node did in an epoch (led, stood, voted, followed), it votes for no other in it."""
    bench = Bench(saved=saved)
    response = bench.ask(bench.vote_request(candidate=2, epoch=4, last=(0, 0)))
    assert isinstance(response, VoteResponse)
    assert not response.granted


def test_a2_a_restarted_leader_never_leads_its_epoch_again() -> None:
    """A2: it leads the epoch after next at the earliest, so that no (offset, epoch) is used twice."""
    bench = Bench(voters=1, saved=ElectionState(4, leader_id=NodeId(1)), log=LogSummary(end_offset=3, epochs=((4, 0),)))
    bench.wait(10)
    assert bench.core.leading is not None
    assert bench.core.epoch > 4
    appends = [action.batch for ready in bench.outputs for action in ready.log if isinstance(action, Append)]
    assert [entry.epoch for entry in appends] == [bench.core.epoch]


# --- A3, A4: votes and pre-votes -------------------------------------------------------------------------------------


def test_a3_errors_of_vote() -> None:
    """A3: stale epoch, a log too new for its epoch, a foreign cluster, the wrong voter, our own candidacy."""
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
    """A3: (last epoch, end offset) >= own, by epoch first."""
    bench = Bench(saved=ElectionState(4), log=LogSummary(end_offset=5, epochs=((1, 0), (3, 2))))
    for pre_vote in (True, False):
        response = bench.ask(bench.vote_request(epoch=6, last=last, pre_vote=pre_vote))
        assert isinstance(response, VoteResponse)
        assert response.granted is granted


def test_a3_one_vote_an_epoch_and_again_to_the_same_candidate() -> None:
    """A3: no vote for another (id, directory id); the same candidate may ask again."""
    bench = Bench()
    answers = [bench.ask(bench.vote_request(candidate=candidate, epoch=1)) for candidate in (2, 3, 2)]
    assert [answer.granted for answer in answers if isinstance(answer, VoteResponse)] == [True, False, True]


def test_a3_a_higher_epoch_keeps_the_election_timer_and_a_vote_resets_it() -> None:
    """A3: else candidates with poor logs could put off everyone's election for ever."""
    bench = Bench(log=LogSummary(end_offset=5, epochs=((1, 0),)))
    before = bench.core.deadline_ms()
    bench.now = 10.0
    bench.ask(bench.vote_request(epoch=7, last=(0, 0)))
    assert (bench.core.epoch, bench.core.deadline_ms()) == (7, before)
    bench.ask(bench.vote_request(epoch=7, last=(9, 2)))
    assert bench.core.deadline_ms() >= 10.0 + bench.core.config.election_timeout_ms


def test_a3_an_observer_votes_when_asked_by_its_very_key() -> None:
    """A3: a non-voter's voter set may be stale; its vote is durable like any other."""
    bench = Bench(node=9)
    assert bench.role is RoleKind.OBSERVER
    first = bench.ask(bench.vote_request(candidate=2, epoch=3))
    second = bench.ask(bench.vote_request(candidate=3, epoch=3))
    assert isinstance(first, VoteResponse)
    assert isinstance(second, VoteResponse)
    assert (first.granted, second.granted) == (True, False)
    assert bench.outputs[-2].persist == ElectionState(3, voted_for=key(2))


def test_a4_a_pre_vote_changes_no_state() -> None:
    """A4, KIP-996: granted, and yet nothing is persisted, and others may still be granted."""
    bench = Bench(saved=ElectionState(5))
    deadline = bench.core.deadline_ms()
    for candidate in (2, 3):
        response = bench.ask(bench.vote_request(candidate=candidate, epoch=5, pre_vote=True))
        assert response == VoteResponse(ErrorCode.NONE, 5, None, True)
    assert all(ready.persist is None for ready in bench.outputs)
    assert (bench.core.epoch, bench.core.deadline_ms(), bench.role) == (5, deadline, RoleKind.UNATTACHED)


def test_a4_a_follower_refuses_only_while_its_own_leader_serves_it() -> None:
    """A4: never fetched -> grants (else two roles livelock); fetched -> refuses; connection broken -> grants."""
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
    """A3: no known leader in the epoch."""
    bench = Bench()
    bench.follow(2, epoch=1)
    response = bench.ask(bench.vote_request(candidate=3, epoch=1))
    assert response == VoteResponse(ErrorCode.NONE, 1, NodeId(2), False)


def test_a3_nor_does_a_prospective_that_knows_the_epochs_leader() -> None:
    """A3: it forgets neither the leader nor its own vote of the epoch it is still in."""
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
    """A4, D-28: a node that hears nobody stays in its epoch for as long as that lasts."""
    bench = Bench(voters=3)
    for _ in range(20):
        bench.wait(500)
        for sent in bench.sent(VoteRequest):
            bench.fail(sent, broken=False)
    assert bench.core.epoch == 0
