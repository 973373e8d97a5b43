"""The rules A11 to A13: who counts, who leaves, and the table of moves, by single messages."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from raft_bench import CLUSTER, Bench, key

from strandline.controller.raft.config import EPOCH_LEAD_MAX, EPOCH_MAX, OBSERVERS_MAX
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    OffsetAndEpoch,
    ReadSnapshot,
    Reply,
    VoteRequest,
    VoteResponse,
)
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.role import Move
from strandline.controller.raft.transitions import TRANSITIONS, Event, RoleKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.ids import NodeId

# --- Rules A11, A12: who counts ---------------------------------------------------------------------------------------


def test_a11_a_wiped_voter_observes() -> None:
    """Rule A11, schedule 26 (KAFKA-12181): another directory id is another replica; it never asks for an election."""
    bench = Bench(node=1, directory=99)
    assert bench.role is RoleKind.OBSERVER
    bench.wait(20_000)
    assert bench.sent(VoteRequest) == []


def test_a11_a_wiped_voter_does_not_vote_in_its_old_name() -> None:
    """Rule A11, schedule 26: the candidate asks for the recorded directory."""
    bench = Bench(node=1, directory=99)
    response = bench.ask(bench.vote_request(candidate=2, epoch=1, voter=key(1)))
    assert response == VoteResponse(ErrorCode.INVALID_VOTER_KEY, 0, None, False)


def test_a11_a_wiped_voter_is_not_elected_and_its_fetches_do_not_count() -> None:
    """Rule A11, schedule 26: as candidate refused, as fetcher an observer."""
    bench = Bench(node=2)
    response = bench.ask(VoteRequest(CLUSTER, key(1, 99), 1, key(2), OffsetAndEpoch(0, 0), False))
    assert isinstance(response, VoteResponse)
    assert (response.error, response.granted) == (ErrorCode.INVALID_VOTER_KEY, False)
    bench.lead()
    bench.append()
    bench.flush()
    bench.fetch(1, 2, replica=key(1, 99))
    assert bench.core.high_watermark == 0
    bench.fetch(1, 2)
    assert bench.core.high_watermark == 2


def test_a12_observers_count_for_nothing() -> None:
    """Rule A12: neither for the high watermark nor for check-quorum (see rule A5)."""
    bench = Bench()
    bench.lead()
    bench.append()
    bench.flush()
    for node in (7, 8, 9):
        bench.fetch(node, 2)
    assert bench.core.high_watermark == 0
    assert [seen.key.node_id for seen in bench.core.leading.described_observers(bench.now)] == [7, 8, 9]  # type: ignore[union-attr]
    bench.wait(100)
    bench.now += 400_000
    assert bench.core.leading is not None
    assert bench.core.leading.described_observers(bench.now) == []


def test_a12_an_observer_finds_the_leader_by_fetching_from_any_voter() -> None:
    """Rule A12: each failure sends it to another voter; a voter's answer names the leader."""
    bench = Bench(node=9)
    asked: list[int] = []
    for _ in range(30):
        sent = bench.sent(FetchRequest)[-1]
        asked.append(sent.to)
        bench.fail(sent, broken=True)
        bench.wait(300)
    assert set(asked) == {1, 2, 3}
    assert all(a != b for a, b in pairwise(asked))
    sent = bench.sent(FetchRequest)[-1]
    bench.respond(sent, FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, 4, NodeId(2)))
    assert (bench.core.epoch, bench.core.leader_id) == (4, 2)
    assert bench.sent(FetchRequest)[-1].to == 2


# --- leaving, failing ------------------------------------------------------------------------------------------------


def test_a_leader_whose_write_failed_steps_down() -> None:
    """Schedule 24 (canonical/raft#320): it must not write another record at an (offset, epoch) that others may hold."""
    bench = Bench()
    bench.lead()
    epoch, end = bench.core.epoch, bench.core.log.end_offset
    bench.append()
    bench.core.append_failed(end, bench.now)
    bench.drain()
    assert bench.role is RoleKind.RESIGNED
    assert bench.core.log.end_offset == end
    assert [sent.to for sent in bench.sent(EndQuorumEpochRequest)] == [2, 3]
    assert bench.core.epoch == epoch


def test_a_resigned_leader_names_the_furthest_first_and_that_one_stands_at_once() -> None:
    """EndQuorumEpoch: preferred candidates in the order of their logs."""
    bench = Bench(node=1)
    bench.lead()
    bench.append()
    bench.fetch(2, 1)
    bench.fetch(3, 2)
    bench.core.resign(bench.now)
    request = bench.sent(EndQuorumEpochRequest)[0].request
    assert isinstance(request, EndQuorumEpochRequest)
    assert [candidate.node_id for candidate in request.preferred_candidates] == [3, 2]

    delays = {}
    for node in (2, 3):
        follower = Bench(node=node)
        follower.follow(1, epoch=request.epoch)
        follower.ask(request)
        delays[node] = follower.core.deadline_ms()
    assert delays[3] == 0
    assert 0 < delays[2] < 500


def test_suspicion_a_broken_connection_shortens_the_wait_and_a_good_fetch_ends_it() -> None:
    """A killed leader must not cost the fetch timeout; a reconnect must not cost an election."""
    bench = Bench(node=3)
    bench.follow(2)
    bench.fetched()
    bench.fail(bench.sent(FetchRequest)[-1], broken=True)
    bench.wait(30)
    bench.fetched()
    bench.wait(1000)
    assert bench.role is RoleKind.FOLLOWER
    bench.fail(bench.sent(FetchRequest)[-1], broken=True)
    bench.wait(150)
    assert bench.role is RoleKind.PROSPECTIVE


def test_suspicion_a_slow_answer_is_none() -> None:
    """Only a broken connection is: a leader that is merely busy keeps its second and a half. It is asked again, and for
    an answer at once (schedule 60)."""
    bench = Bench(node=3)
    bench.follow(2)
    first = bench.sent(FetchRequest)[-1]
    bench.fail(first, broken=False)
    bench.wait(1000)
    assert bench.role is RoleKind.FOLLOWER
    again = bench.sent(FetchRequest)[-1]
    assert isinstance(first.request, FetchRequest)
    assert isinstance(again.request, FetchRequest)
    assert (first.request.max_wait_ms, again.request.max_wait_ms) == (500, 0)
    bench.wait(1000)
    assert bench.role is RoleKind.PROSPECTIVE


def test_another_leader_in_an_epoch_is_not_believed() -> None:
    """SingleLeader, rule A17: whoever names another is refused and told of in a log line; the node follows on."""
    bench = Bench()
    bench.follow(2, epoch=1)
    answer = bench.ask(BeginQuorumEpochRequest(CLUSTER, NodeId(3), 1, key(1)))
    assert answer == BeginQuorumEpochResponse(ErrorCode.INVALID_REQUEST, 1, NodeId(2))
    assert "names node 3 as the leader of epoch 1, which node 2 leads" in bench.outputs[-1].notices[0]
    assert (bench.role, bench.core.leader_id) == (RoleKind.FOLLOWER, 2)


def test_a17_who_is_far_behind_learns_by_asking() -> None:
    """Rule A17: a voter that missed more elections than a request may claim refuses the request, asks, and believes the
    answer; from then on requests of about that epoch are heard."""
    far = 10 * EPOCH_LEAD_MAX
    bench = Bench()
    vote = bench.vote_request(epoch=far)
    assert bench.ask(vote) == VoteResponse(ErrorCode.INVALID_REQUEST, 0, None, False)
    assert "claims epoch 10000" in bench.outputs[-1].notices[0]
    bench.wait(2500)
    asked = bench.sent(VoteRequest)[-1]
    bench.respond(asked, VoteResponse(ErrorCode.FENCED_LEADER_EPOCH, far - 1, None, False))
    assert bench.core.epoch == far - 1
    assert bench.ask(vote) == VoteResponse(ErrorCode.NONE, far, None, True)


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1, 2**31 - 1])
def test_a17_no_answer_lifts_an_epoch_beyond_the_last(epoch: int) -> None:
    bench = Bench()
    bench.wait(2500)
    bench.respond(bench.sent(VoteRequest)[-1], VoteResponse(ErrorCode.FENCED_LEADER_EPOCH, epoch, None, False))
    assert bench.core.epoch == 0


@pytest.mark.parametrize("leader", [1, 2])
def test_a17_in_the_last_epoch_nobody_opens_another(leader: int) -> None:
    """Neither by an election nor by giving up a leadership: what cannot be said is not sent, and the node lives."""
    bench = Bench(saved=ElectionState(EPOCH_MAX, leader_id=NodeId(leader)))
    for _ in range(5):
        bench.wait(3000)
        for sent in bench.sent(VoteRequest):
            request = sent.request
            assert isinstance(request, VoteRequest)
            assert request.pre_vote
            bench.respond(sent, VoteResponse(ErrorCode.NONE, EPOCH_MAX, None, True))
    assert bench.core.epoch == EPOCH_MAX
    assert any("is the last" in notice for ready in bench.outputs for notice in ready.notices)


def test_a17_a_leader_remembers_so_many_observers() -> None:
    """Whoever draws a new directory id for each fetch does not fill the leader's memory; who fetches on is kept."""
    bench = Bench()
    bench.lead()
    assert bench.core.leading is not None
    for number in range(OBSERVERS_MAX + 100):
        bench.fetch(9, 0, replica=key(9, 1_000_000 + number), max_wait_ms=500)
        bench.fetch(8, 0, max_wait_ms=0)
    assert len(bench.core.leading.observers) == OBSERVERS_MAX
    assert key(8) in bench.core.leading.observers
    assert len(bench.core.leading._parked) <= OBSERVERS_MAX


def test_a17_a_claimed_life_shuts_nobody_out() -> None:
    """A voter goes on fetching after a later start of it was claimed: the leader resigns. One that fetches as of that
    start now and then proves it, and what comes late of the start before is only refused."""
    bench = Bench()
    bench.lead()
    for _ in range(20):
        bench.fetch(3, 1, life=1, max_wait_ms=0)
        bench.fetch(2, 1, life=2, max_wait_ms=0)
        bench.wait(1000)
        late = bench.fetch(2, 1, life=1, max_wait_ms=0)
        assert isinstance(late, FetchResponse)
        assert late.error is ErrorCode.INVALID_REQUEST
    assert bench.role is RoleKind.LEADER
    bench.fetch(2, 1, life=2**62, max_wait_ms=0)
    for _ in range(6):
        assert bench.role is RoleKind.LEADER
        bench.fetch(3, 1, life=1, max_wait_ms=0)
        bench.fetch(2, 1, life=2, max_wait_ms=0)
        bench.wait(400)
    bench.fetch(2, 1, life=2, max_wait_ms=0)
    assert bench.role is RoleKind.RESIGNED
    assert any("as of a later start" in notice for ready in bench.outputs for notice in ready.notices)


def test_a17_an_answer_has_so_many_bytes_of_a_snapshot() -> None:
    bench = Bench()
    bench.lead()
    bench.ask(FetchSnapshotRequest(CLUSTER, key(2), bench.core.epoch, OffsetAndEpoch(1, 1), 0, 2**31 - 1))
    (read,) = (
        message.read
        for ready in bench.outputs
        for message in ready.send
        if isinstance(message, Reply) and isinstance(message.read, ReadSnapshot)
    )
    assert read.max_bytes == bench.core.node.config.snapshot_chunk_bytes


def test_begin_and_end_of_an_epoch_are_judged() -> None:
    """Errors of BeginQuorumEpoch and EndQuorumEpoch."""
    bench = Bench(saved=ElectionState(5))
    begin = [
        (BeginQuorumEpochRequest("x", NodeId(2), 6, key(1)), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(2), 4, key(1)), ErrorCode.FENCED_LEADER_EPOCH),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(2), 6, key(3)), ErrorCode.INVALID_VOTER_KEY),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(1), 6, key(1)), ErrorCode.INVALID_REQUEST),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(9), 6, key(1)), ErrorCode.INVALID_REQUEST),
    ]
    for request, error in begin:
        response = bench.ask(request)
        assert isinstance(response, BeginQuorumEpochResponse)
        assert response.error is error
    for end, error in (
        (EndQuorumEpochRequest("x", NodeId(2), 6, ()), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (EndQuorumEpochRequest(CLUSTER, NodeId(2), 4, ()), ErrorCode.FENCED_LEADER_EPOCH),
        (EndQuorumEpochRequest(CLUSTER, NodeId(1), 6, ()), ErrorCode.INVALID_REQUEST),
    ):
        response_end = bench.ask(end)
        assert response_end is not None
        assert response_end.error is error
    assert (bench.core.epoch, bench.role) == (5, RoleKind.UNATTACHED)


# --- the table of transitions ----------------------------------------------------------------------------------------


def test_the_table_is_the_only_way() -> None:
    """Every event that the table does not have for a role raises, and changes nothing."""
    roles: dict[RoleKind, Bench] = {}
    for kind in RoleKind:
        bench = Bench(node=9 if kind is RoleKind.OBSERVER else 1)
        if kind is RoleKind.FOLLOWER:
            bench.follow(2)
        elif kind is RoleKind.PROSPECTIVE:
            bench.wait(400)
        elif kind in (RoleKind.LEADER, RoleKind.RESIGNED):
            bench.lead()
            if kind is RoleKind.RESIGNED:
                bench.core.resign(bench.now)
        elif kind is RoleKind.CANDIDATE:
            bench = Bench(saved=ElectionState(1, voted_for=key(1)))
        assert bench.role is kind
        roles[kind] = bench
    for source, event in product(RoleKind, Event):
        if (source, event) not in TRANSITIONS:
            core = roles[source].core
            before, role = core.node.drain(), core.role
            with pytest.raises(FatalError, match="LegalTransition"):
                core._make(Move(event, core.epoch, leader_id=NodeId(2)))
            assert core.role is role
            assert (before.empty, core.node.drain().empty) == (True, True)


def test_the_table_has_every_role_and_every_event() -> None:
    """What stands in neither column is a leftover; every role can be entered, and left for another or by a restart."""
    assert {kind for kind, _ in TRANSITIONS} == {None, *RoleKind}
    assert set(TRANSITIONS.values()) == set(RoleKind)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert len({event.value for event in Event}) == len(Event), "no two arrows say the same"


def test_a_role_is_asked_for_by_its_event_and_not_by_its_name() -> None:
    """A move that is legal for one reason is refused for another: a follower asks for pre-votes when its fetches fail,
    and not because an election timer ran out, which it does not have."""
    bench = Bench()
    bench.follow(2)
    with pytest.raises(FatalError, match=r"state=Follower, event=ELECTION_TIMEOUT"):
        bench.core._make(Move(Event.ELECTION_TIMEOUT, bench.core.epoch))
    bench.core._make(Move(Event.FETCH_TIMEOUT, bench.core.epoch, leader_id=NodeId(2)))
    assert bench.role is RoleKind.PROSPECTIVE
