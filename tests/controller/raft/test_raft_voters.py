"""Rule A11: which directory of a controller votes, changed while the quorum runs; by single messages."""

from __future__ import annotations

from uuid import UUID

import pytest
from raft_bench import CLUSTER, Bench, batch, key

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    FetchRequest,
    OffsetAndEpoch,
    ReplicaKey,
    VoteRequest,
    VotersChange,
)
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.transitions import RoleKind
from strandline.controller.raft.voters import VoterSet
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId

NEW = key(3, 33)
"""Node 3 after it lost its log."""
WITHOUT = (key(1), key(2))
WITH_NEW = (key(1), key(2), NEW)


def change(base: int, epoch: int, voters: tuple[ReplicaKey, ...]) -> Batch:
    """A voter set as a follower fetches it."""
    said = VotersChange(voters)
    return Batch(base, base + 1, epoch, said, said)


def leading(bench: Bench) -> Bench:
    """Node 1 leads, and node 2 has what it has; node 3 has been silent for long."""
    bench.lead()
    for _ in range(4):
        bench.wait(900)
        bench.fetch(2, bench.core.log.end_offset, max_wait_ms=0)
    return bench


def committed(bench: Bench) -> None:
    bench.flush()
    bench.fetch(2, bench.core.log.end_offset, max_wait_ms=0)


def refused(bench: Bench, node: int, directory: int, *, add: bool) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        (bench.core.add_voter if add else bench.core.remove_voter)(NodeId(node), UUID(int=directory), bench.now)
    return error.value.code


# --- the leader ------------------------------------------------------------------------------------------------------


def test_a_change_counts_from_its_append_on() -> None:
    """Rule A11: it commits with the new majority; a vacant place counts like a voter that never answers."""
    bench = leading(Bench())
    assert bench.core.remove_voter(NodeId(3), key(3).directory_id, bench.now) is not None
    assert bench.core.voters.keys == WITHOUT
    assert (len(bench.core.voters), bench.core.voters.majority) == (3, 2)
    bench.flush()
    assert bench.core.leading is not None
    before = bench.core.leading.epoch_high_watermark
    bench.fetch(3, bench.core.log.end_offset, max_wait_ms=0)
    assert bench.core.leading.epoch_high_watermark == before, "the old node 3 has no vote any more"
    committed(bench)
    assert bench.core.high_watermark == bench.core.log.end_offset

    bench.fetch(3, bench.core.log.end_offset, replica=NEW, max_wait_ms=0, voteless=True)
    bench.core.add_voter(NEW.node_id, UUID(int=33), bench.now)
    bench.flush()
    bench.fetch(3, bench.core.log.end_offset, replica=NEW, max_wait_ms=0, voteless=True)
    assert bench.core.high_watermark == bench.core.log.end_offset, "with the new node 3 it is a majority"


def test_one_change_at_a_time() -> None:
    """Rule A11: the next one waits until the last is committed, and until this epoch has committed something
    (schedule 25)."""
    bench = leading(Bench())
    bench.core.remove_voter(NodeId(3), key(3).directory_id, bench.now)
    bench.flush()
    assert refused(bench, 3, 33, add=True) is ErrorCode.REQUEST_TIMED_OUT
    committed(bench)
    bench.fetch(3, bench.core.log.end_offset, replica=NEW, max_wait_ms=0)
    assert bench.core.add_voter(NEW.node_id, UUID(int=33), bench.now) is not None

    fresh = Bench(saved=ElectionState(1), log=LogSummary(end_offset=5, epochs=((1, 0),)))
    fresh.lead()
    for _ in range(4):
        fresh.wait(900)
        fresh.fetch(2, 5, max_wait_ms=0)
    assert fresh.core.leading is not None
    assert fresh.core.leading.epoch_high_watermark is None
    with pytest.raises(KafkaError, match="has not committed its own first record"):
        fresh.core.remove_voter(NodeId(3), key(3).directory_id, fresh.now)


def test_a_replica_that_lags_or_is_silent_is_not_added() -> None:
    """Rule A11: the joiner has caught up as an observer."""
    bench = leading(Bench())
    bench.core.remove_voter(NodeId(3), key(3).directory_id, bench.now)
    committed(bench)
    bench.fetch(3, 0, replica=NEW, max_wait_ms=0)
    assert refused(bench, 3, 33, add=True) is ErrorCode.REQUEST_TIMED_OUT
    bench.fetch(3, bench.core.log.end_offset, replica=NEW, max_wait_ms=0)
    bench.fetch(2, bench.core.log.end_offset, max_wait_ms=0)
    bench.wait(2_000)
    assert refused(bench, 3, 33, add=True) is ErrorCode.INVALID_REQUEST


def test_a_directory_that_the_configuration_leaves_open_is_recorded() -> None:
    """Schedule 26: the one that fetched; then a wiped disk under that id is no voter. Not before the epoch commits."""
    bench = Bench(recorded=False)
    bench.lead()
    assert bench.core.voters.recorded(NodeId(1)) == ReplicaKey(NodeId(1), None)
    bench.fetch(2, bench.core.log.end_offset, max_wait_ms=0)
    assert bench.core.voters.keys == (key(1), key(2), ReplicaKey(NodeId(3), None))
    committed(bench)
    bench.fetch(3, bench.core.log.end_offset, replica=NEW, max_wait_ms=0)
    assert bench.core.voters.keys == WITH_NEW
    committed(bench)
    end = bench.core.log.end_offset
    bench.fetch(3, end, max_wait_ms=0)
    assert bench.core.log.end_offset == end, "nothing is left open"


def test_what_has_lost_its_log_is_not_recorded() -> None:
    """Rule A14: a voteless replica does not take the place that the configuration leaves open."""
    bench = Bench(recorded=False)
    bench.lead()
    bench.fetch(2, bench.core.log.end_offset, max_wait_ms=0)
    committed(bench)
    bench.fetch(3, bench.core.log.end_offset, replica=NEW, voteless=True, max_wait_ms=0)
    assert bench.core.voters.recorded(NodeId(3)) == ReplicaKey(NodeId(3), None)


# --- who fetches it --------------------------------------------------------------------------------------------------


def test_an_observer_becomes_a_voter_where_the_log_names_it() -> None:
    """Rule A11: from the append on, and not any more where the record is cut again."""
    bench = Bench(node=3, directory=33, voteless=True)
    assert bench.role is RoleKind.OBSERVER
    bench.follow(2, epoch=1)
    bench.fetched(batch(0, 1), change(1, 1, WITHOUT))
    bench.flush()
    assert bench.role is RoleKind.OBSERVER
    bench.fetched(change(2, 1, WITH_NEW))
    assert bench.role is RoleKind.FOLLOWER
    bench.flush()
    assert bench.core.node.voters_offset == 2
    bench.fetched(diverging=OffsetAndEpoch(2, 1))
    assert bench.role is RoleKind.OBSERVER
    assert bench.core.voters.keys == WITHOUT


def test_a_follower_whose_place_is_given_away_observes() -> None:
    """Rule A11: it is the former replica now; it fetches on and stands for nothing."""
    bench = Bench(node=3)
    bench.follow(2, epoch=1)
    bench.fetched(batch(0, 1), change(1, 1, WITHOUT))
    bench.flush()
    assert bench.role is RoleKind.OBSERVER
    bench.wait(20_000)
    assert bench.sent(VoteRequest) == []


def test_an_observer_with_a_place_flushes_before_it_fetches() -> None:
    """Rule A8: what it fetched counts the moment it is given its vote, so it must be durable."""
    bench = Bench(node=3, directory=33, voteless=True)
    bench.follow(2, epoch=1)
    bench.fetched(batch(0, 1))
    before = len(bench.sent(FetchRequest))
    bench.wait(100)
    assert len(bench.sent(FetchRequest)) == before
    bench.flush()
    assert len(bench.sent(FetchRequest)) == before + 1


def test_a_restart_finds_the_voters_in_the_log() -> None:
    """Rule A11: the latest set in the log holds, committed or not; a snapshot's where the log begins after it."""
    log = LogSummary(end_offset=3, epochs=((1, 0),), voters=((1, VotersChange(WITHOUT)), (2, VotersChange(WITH_NEW))))
    assert Bench(node=3, directory=33, log=log, voteless=True).role is RoleKind.UNATTACHED
    assert Bench(node=3, log=log).role is RoleKind.OBSERVER
    log.truncate_to(2)
    assert Bench(node=3, directory=33, log=log, voteless=True).role is RoleKind.OBSERVER
    snapshot = OffsetAndEpoch(10, 1)
    said = VotersChange(WITH_NEW)
    log.reset_to(snapshot, said)
    assert log.voters == (9, said)
    assert (log.voters_at(10), log.voters_at(9)) == (said, None)
    assert Bench(node=3, log=log).role is RoleKind.OBSERVER


# --- votes of those who know less -----------------------------------------------------------------------------------


def test_a_stale_voter_votes_for_a_directory_that_it_does_not_know() -> None:
    """ReconfigurationNotStuck: the others are gone but the new node 3, whose vote stands in a record that this voter
    lacks. It votes for it: by the log, as for anybody. A wiped disk that names no record gets nothing (schedule 26)."""
    bench = Bench(node=2)
    request = bench.vote_request(candidate=3, epoch=1, candidate_key=NEW)
    assert bench.ask(request).error is ErrorCode.INVALID_VOTER_KEY  # type: ignore[union-attr]
    newer = bench.vote_request(candidate=3, epoch=2, last=(5, 1), candidate_key=NEW, voters_offset=4)
    answer = bench.ask(newer)
    assert answer is not None
    assert (answer.error, answer.granted) == (ErrorCode.NONE, True)  # type: ignore[union-attr]


def test_a_stale_voter_follows_a_leader_whose_place_is_vacant_to_it() -> None:
    """ReconfigurationNotStuck: it lacks the record that gave the leader its vote, and gets it only by following."""
    log = LogSummary(end_offset=2, epochs=((1, 0),), voters=((1, VotersChange(WITHOUT)),))
    bench = Bench(node=2, log=log, saved=ElectionState(1))
    bench.ask(BeginQuorumEpochRequest(CLUSTER, NodeId(3), 2, key(2)))
    assert (bench.role, bench.core.leader_id) == (RoleKind.FOLLOWER, 3)


def test_a_voteless_node_is_asked_by_its_own_name_alone() -> None:
    """Rule A14: who does not know which directory votes does not get its vote, nor is it told to follow so."""
    bench = Bench(node=3, directory=33, voteless=True)
    anybody = ReplicaKey(NodeId(3), None)
    assert bench.ask(bench.vote_request(voter=anybody)).error is ErrorCode.INVALID_VOTER_KEY  # type: ignore[union-attr]
    begin = BeginQuorumEpochRequest(CLUSTER, NodeId(2), 1, anybody)
    assert bench.ask(begin).error is ErrorCode.INVALID_VOTER_KEY  # type: ignore[union-attr]
    assert bench.ask(bench.vote_request(voter=NEW)).granted  # type: ignore[union-attr]


def test_an_observer_that_is_named_elects_another_where_its_leader_is_gone() -> None:
    """ReconfigurationNotStuck: the leader that gave this node its vote died before it had the record, and who has the
    record needs this very vote. It grants a pre-vote as a follower does: not while its leader serves it."""
    bench = Bench(node=3, directory=33, voteless=True)
    bench.follow(2, epoch=1)
    ask = bench.vote_request(candidate=1, epoch=1, last=(9, 1), voter=NEW, pre_vote=True)
    bench.fetched(batch(0, 1))
    bench.flush()
    assert not bench.ask(ask).granted  # type: ignore[union-attr]
    bench.fail(bench.sent(FetchRequest)[-1], broken=True)
    assert bench.ask(ask).granted  # type: ignore[union-attr]


def test_a_stranger_gets_no_vote() -> None:
    """Rule A17: only configured controllers stand for election."""
    bench = Bench()
    assert bench.ask(bench.vote_request(candidate=9)).error is ErrorCode.INVALID_VOTER_KEY  # type: ignore[union-attr]


# --- the set ---------------------------------------------------------------------------------------------------------


def test_places_and_keys() -> None:
    """Places are configured and count in the majority; keys fill them; a key without a place is left out."""
    configured = VoterSet(key(node) for node in (1, 2, 3, 4, 5))
    vacant = configured.filled(VotersChange((key(1), key(2), key(4), key(9))))
    assert (vacant.keys, len(vacant), vacant.majority) == ((key(1), key(2), key(4)), 5, 3)
    assert vacant.recorded(NodeId(3)) is None
    assert [vacant.succession(NodeId(3), NodeId(node)) for node in (4, 1)] == [0, 2]
    with pytest.raises(ValueError, match="distinct"):
        VoterSet([])
