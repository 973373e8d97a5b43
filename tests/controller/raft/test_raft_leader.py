"""The rules A5, A6, A7 and A9, what a leader may do, by single messages. Each test fails without its rule."""

from __future__ import annotations

from raft_bench import Bench, batch, key

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import FetchResponse, LeaderChange, OffsetAndEpoch
from strandline.controller.raft.ready import Append, ElectionState
from strandline.controller.raft.transitions import RoleKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId

# --- Rule A5: check-quorum --------------------------------------------------------------------------------------------


def test_a5_a_leader_without_fetches_of_a_majority_resigns() -> None:
    """Rule A5, schedule 27 (KAFKA-15489): after 1.5 fetch timeouts; fetches of one of the others of three put it
    off."""
    bench = Bench()
    bench.lead()
    bench.wait(2200)
    assert bench.role is RoleKind.LEADER
    bench.fetch(2, 1)
    bench.wait(2200)
    assert bench.role is RoleKind.LEADER
    bench.fetch(9, 1)  # an observer does not count
    bench.wait(200)
    assert bench.role is RoleKind.RESIGNED


def test_a5_a_single_voter_is_exempt() -> None:
    """Rule A5: it is its own majority."""
    bench = Bench(voters=1)
    bench.wait(1)
    bench.wait(100_000)
    assert bench.role is RoleKind.LEADER


def test_a5_of_five_two_others_must_fetch() -> None:
    """Rule A5: a majority with the leader itself counted."""
    bench = Bench(voters=5)
    bench.lead()
    for _ in range(4):
        bench.wait(750)
        if bench.role is RoleKind.LEADER:
            bench.fetch(2, 1)
    assert bench.role is RoleKind.RESIGNED


# --- Rules A6, A7, A9: the high watermark -----------------------------------------------------------------------------


def test_a6_the_epoch_opens_with_leader_change() -> None:
    """Rule A6: the first append of an epoch, in Kafka's terms with voters and granting voters."""
    bench = Bench()
    bench.lead()
    (first,) = [action.batch for ready in bench.outputs for action in ready.log if isinstance(action, Append)]
    assert isinstance(first.data, LeaderChange)
    assert first.data.leader_id == 1
    assert first.data.voters == (key(1), key(2), key(3))
    assert len(first.data.granting_voters) >= 2


def test_a6_nothing_of_an_older_epoch_is_committed_by_count() -> None:
    """Rule A6, schedule 22: the majority's offset must lie beyond the epoch's start; until then the high watermark is
    unknown."""
    bench = Bench(saved=ElectionState(1), log=LogSummary(end_offset=5, epochs=((1, 0),)))
    bench.lead()
    assert bench.core.leading is not None
    for node, offset in ((2, 5), (3, 5)):
        bench.fetch(node, offset)
    assert bench.core.leading.epoch_high_watermark is None
    assert bench.core.high_watermark == 0
    bench.fetch(2, 6)
    assert bench.core.leading.epoch_high_watermark == 6


def test_a6_a_new_leader_tells_no_high_watermark_before_its_epoch_has_one() -> None:
    """Rule A6: what it knew as a follower may lag behind what its predecessor had committed, and is of another
    epoch."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(batch(0, 1, 5), high_watermark=4)
    bench.flush()
    bench.fetched(high_watermark=4)
    bench.lead()
    assert bench.core.high_watermark == 4
    response = bench.fetch(3, 2)
    assert isinstance(response, FetchResponse)
    assert response.high_watermark == -1
    bench.fetch(2, 6)
    response = bench.fetch(3, 2)
    assert isinstance(response, FetchResponse)
    assert response.high_watermark == 6


def test_a6_the_high_watermark_does_not_go_back() -> None:
    """Rule A6: a follower that lost its tail fetches from further back."""
    bench = Bench()
    bench.lead()
    bench.append(5)
    bench.flush()
    bench.fetch(2, 6)
    assert bench.core.leading is not None
    assert bench.core.high_watermark == 6
    for lost_tail in (3, 1):
        bench.fetch(2, lost_tail)
        assert (bench.core.high_watermark, bench.core.leading.epoch_high_watermark) == (6, 6)


def test_a7_only_a_valid_fetch_updates_replica_state() -> None:
    """Rule A7: a diverging fetcher's offset says nothing about what it holds of this log."""
    bench = Bench(saved=ElectionState(3), log=LogSummary(end_offset=4, epochs=((1, 0), (3, 2))))
    bench.lead()
    assert bench.core.leading is not None
    response = bench.fetch(2, 5, last_epoch=2)
    assert isinstance(response, FetchResponse)
    assert response.diverging == OffsetAndEpoch(2, 1)
    assert bench.core.leading.voters[NodeId(2)].end_offset == -1
    assert bench.core.leading.epoch_high_watermark is None


def test_a7_divergence_and_snapshot_are_answered_at_once() -> None:
    """Rule A7: there is nothing to wait for; who waits a fetch's time for it stays behind."""
    snapshot = OffsetAndEpoch(4, 2)
    bench = Bench(
        saved=ElectionState(3),
        log=LogSummary(start=snapshot, snapshot=snapshot, end_offset=9, epochs=((2, 4), (3, 6))),
    )
    bench.lead()
    diverging = bench.fetch(2, 8, last_epoch=2, max_wait_ms=500)
    assert isinstance(diverging, FetchResponse)
    assert diverging.diverging == OffsetAndEpoch(6, 2)
    behind = bench.fetch(3, 1, last_epoch=1, max_wait_ms=500)
    assert isinstance(behind, FetchResponse)
    assert behind.snapshot == snapshot


def test_a7_errors_of_fetch() -> None:
    """Rule A7: older epoch fenced, newer unknown, no leader here, a foreign cluster, the leader's own id."""
    bench = Bench()
    not_leading = bench.fetch(2, 0, last_epoch=0)
    assert isinstance(not_leading, FetchResponse)
    assert not_leading.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.lead()
    for over, error in (
        ({"epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"replica": key(1)}, ErrorCode.INVALID_REQUEST),
    ):
        response = bench.fetch(2, 0, last_epoch=0, **over)  # type: ignore[arg-type]
        assert isinstance(response, FetchResponse)
        assert response.error is error
        assert response.leader_id == 1


def test_a7_a_parked_fetch_returns_its_original_answer() -> None:
    """Rule A7, KAFKA-15100: when the wait ends without news, what it was worth when it came; not a new judgement."""
    bench = Bench()
    bench.lead()
    assert bench.fetch(2, 1) is not None  # it brings the high watermark
    assert bench.fetch(2, 1, high_watermark=1) is None
    token = bench.tokens
    bench.wait(499)
    assert bench.answer_to(token) is None
    bench.wait(2)
    response = bench.answer_to(token)
    assert response == FetchResponse(ErrorCode.NONE, bench.core.epoch, NodeId(1), 1, 0)


def test_a7_one_parked_fetch_a_replica() -> None:
    """A replica that fetches again has given the first one up: that is answered, and not kept."""
    bench = Bench()
    bench.lead()
    bench.fetch(2, 1)
    assert bench.fetch(2, 1, high_watermark=1) is None
    first = bench.tokens
    assert bench.fetch(2, 1, high_watermark=1) is None
    assert bench.answer_to(first) is not None
    bench.append()
    assert bench.answer_to(bench.tokens) is not None


def test_a7_parked_fetches_learn_at_once_that_the_leader_is_gone() -> None:
    """They are answered with NOT_LEADER_OR_FOLLOWER by the role that follows."""
    bench = Bench()
    bench.lead()
    bench.fetch(9, 1)
    token = bench.tokens
    bench.follow(3, epoch=bench.core.epoch + 1)
    response = bench.answer_to(token)
    assert isinstance(response, FetchResponse)
    assert (response.error, response.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, NodeId(3))


def test_a9_the_leaders_own_end_counts_only_when_flushed() -> None:
    """Rule A9: even where it is the only voter."""
    for voters in (1, 3):
        bench = Bench(voters=voters)
        if voters == 1:
            bench.wait(1)
            bench.flush()
        else:
            bench.lead()
        bench.append()
        bench.fetch(2, 2)
        assert bench.core.high_watermark < 2, f"{voters} voters"
        bench.flush()
        assert bench.core.high_watermark == 2, f"{voters} voters"


def test_a9_a_flush_that_began_before_an_append_does_not_cover_it() -> None:
    """Rules A9, E9: a sync covers what was written before it began."""
    bench = Bench(voters=1)
    bench.wait(1)
    bench.append()
    before = bench.core.log.end_offset
    bench.append()
    bench.core.flushed(before, bench.now)
    bench.drain()
    assert bench.core.high_watermark == before
