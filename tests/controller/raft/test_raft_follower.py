"""The rules A8 and A10, records and snapshots at a follower, by single messages. Each test fails without its rule."""

from __future__ import annotations

import pytest
from raft_bench import CLUSTER, Bench, batch, key

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    OffsetAndEpoch,
    ReadSnapshot,
    Reply,
)
from strandline.controller.raft.ready import ElectionState, InstallSnapshot, StoreSnapshotChunk, TruncateTo
from strandline.controller.raft.transitions import RoleKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.ids import NodeId

# --- Rule A8: the follower --------------------------------------------------------------------------------------------


def test_a8_a_voter_flushes_before_it_fetches_again() -> None:
    """Rule A8, schedules 23, 30: the next fetch acknowledges what the last one brought."""
    bench = Bench()
    bench.follow(2)
    assert len(bench.sent(FetchRequest)) == 1
    bench.fetched(batch(0, 1))
    assert bench.outputs[-1].flush
    assert len(bench.sent(FetchRequest)) == 1
    bench.flush()
    fetches = bench.sent(FetchRequest)
    assert len(fetches) == 2
    assert isinstance(fetches[-1].request, FetchRequest)
    assert fetches[-1].request.fetch_offset == 1


def test_a8_truncation_to_the_smaller_end() -> None:
    """Rule A8: min(own end of that epoch, the leader's); iterate where the epoch is not known here (schedule 2)."""
    bench = Bench(saved=ElectionState(5), log=LogSummary(end_offset=10, epochs=((1, 0), (3, 4), (5, 8))))
    bench.follow(2, epoch=6)
    bench.fetched(diverging=OffsetAndEpoch(7, 4))
    assert bench.core.log.end == OffsetAndEpoch(8, 3)
    bench.fetched(diverging=OffsetAndEpoch(6, 3))
    assert bench.core.log.end == OffsetAndEpoch(6, 3)
    truncations = [action for ready in bench.outputs for action in ready.log if isinstance(action, TruncateTo)]
    assert truncations == [TruncateTo(8), TruncateTo(6)]


def test_a8_never_truncates_below_the_high_watermark() -> None:
    """Rule A8, KAFKA-12460: whoever leads without what is committed, the node keeps its log, says so, and lives."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(batch(0, 1, 5), high_watermark=4)
    bench.flush()
    bench.fetched(diverging=OffsetAndEpoch(3, 1))
    assert bench.core.log.end == OffsetAndEpoch(5, 1)
    assert "below the high watermark 4" in bench.outputs[-1].notices[0]
    bench.wait(1_000)
    bench.fetched(batch(5, 1), high_watermark=6)
    assert bench.core.log.end == OffsetAndEpoch(6, 1)


def test_a8_high_watermark_is_the_smaller_of_own_end_and_the_leaders() -> None:
    """Rule A8: a lagging follower has not got all that is committed."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(batch(0, 1, 2), high_watermark=50)
    assert bench.core.high_watermark == 2


def test_a8_an_answer_to_another_question_is_ignored() -> None:
    """Schedule 7 in the quorum: a late answer, of an older leader or offset, changes nothing."""
    bench = Bench()
    bench.follow(2, epoch=1)
    (old,) = bench.sent(FetchRequest)
    bench.follow(3, epoch=2)
    bench.respond(old, FetchResponse(ErrorCode.NONE, 1, NodeId(2), 5, 0, batches=(batch(0, 1, 5),)))
    assert (bench.core.log.end_offset, bench.core.high_watermark) == (0, 0)


@pytest.mark.parametrize("bad", [batch(1, 1), batch(0, 9), Batch(0, 0, 1, b"")])
def test_a8_records_that_do_not_fit_are_refused(bad: Batch) -> None:
    """A gap, an epoch that the leader cannot have written, an empty batch: nothing is appended, and it asks again."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(bad)
    assert bench.core.log.end_offset == 0
    bench.wait(300)
    assert len(bench.sent(FetchRequest)) == 2


# --- Rule A10: snapshots ----------------------------------------------------------------------------------------------


def snapshot_log() -> LogSummary:
    return LogSummary(start=OffsetAndEpoch(10, 2), end_offset=12, epochs=((2, 10),), snapshot=OffsetAndEpoch(10, 2))


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 2), (10, 1), (11, 1)])
def test_a10_what_the_log_cannot_serve_or_judge_is_a_snapshot(offset: int, epoch: int) -> None:
    """Rule A10, KIP-630: below the log's start, or of an epoch before it."""
    bench = Bench(saved=ElectionState(2), log=snapshot_log())
    bench.lead()
    response = bench.fetch(2, offset, last_epoch=epoch)
    assert isinstance(response, FetchResponse)
    assert response.snapshot == OffsetAndEpoch(10, 2)


def test_a10_a_snapshot_fetch_counts_for_check_quorum_not_for_the_high_watermark() -> None:
    """Rule A10."""
    bench = Bench(saved=ElectionState(2), log=snapshot_log())
    bench.lead()
    assert bench.core.leading is not None
    for _ in range(5):
        bench.wait(2000)
        request = FetchSnapshotRequest(CLUSTER, key(2), bench.core.epoch, OffsetAndEpoch(10, 2), 3, 100)
        assert bench.ask(request) is not None
    reply = bench.outputs[-1].send[-1]
    assert isinstance(reply, Reply)
    assert reply.read == ReadSnapshot(OffsetAndEpoch(10, 2), 3, 100)
    assert bench.role is RoleKind.LEADER
    assert bench.core.leading.epoch_high_watermark is None


def pointed_to_snapshot() -> Bench:
    bench = Bench()
    bench.follow(2)
    bench.fetched(snapshot=OffsetAndEpoch(10, 1))
    return bench


def chunk(bench: Bench, position: int, data: bytes, *, size: int = 6, error: ErrorCode = ErrorCode.NONE) -> None:
    sent = bench.sent(FetchSnapshotRequest)[-1]
    response = FetchSnapshotResponse(error, 1, NodeId(2), OffsetAndEpoch(10, 1), size, position, data)
    bench.respond(sent, response)


def test_a10_a_snapshot_is_fetched_in_pieces_and_installed_whole() -> None:
    """Rule A10: positioned; installed only when complete; the log then starts at its end, all of it committed."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"abc")
    assert bench.core.log.end_offset == 0
    request = bench.sent(FetchSnapshotRequest)[-1].request
    assert isinstance(request, FetchSnapshotRequest)
    assert request.position == 3
    chunk(bench, 3, b"def")
    actions = [action for ready in bench.outputs for action in ready.log]
    assert actions == [
        StoreSnapshotChunk(OffsetAndEpoch(10, 1), 0, b"abc"),
        StoreSnapshotChunk(OffsetAndEpoch(10, 1), 3, b"def"),
        InstallSnapshot(OffsetAndEpoch(10, 1)),
    ]
    fetches = len(bench.sent(FetchRequest))
    bench.core.snapshot_installed(OffsetAndEpoch(10, 1), bench.now)
    assert len(bench.sent(FetchRequest)) == fetches + 1
    assert (bench.core.log.end, bench.core.high_watermark) == (OffsetAndEpoch(10, 1), 10)


def test_a10_a_snapshot_fetch_resumes_where_it_broke() -> None:
    """Rule A10: a lost answer costs one piece, not the whole."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"abc")
    bench.fail(bench.sent(FetchSnapshotRequest)[-1], broken=False)
    bench.wait(300)
    request = bench.sent(FetchSnapshotRequest)[-1].request
    assert isinstance(request, FetchSnapshotRequest)
    assert request.position == 3


def test_a10_a_snapshot_that_is_gone_sends_the_follower_back_to_fetch() -> None:
    """Rule A10: SNAPSHOT_NOT_FOUND."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"", error=ErrorCode.SNAPSHOT_NOT_FOUND)
    fetches = len(bench.sent(FetchRequest))
    bench.wait(300)
    assert len(bench.sent(FetchRequest)) == fetches + 1


def test_a10_a_damaged_snapshot_is_fetched_anew() -> None:
    """Rule A10, schedule 31: nothing of it is used; the log stays as it was."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"abcdef")
    bench.core.snapshot_refused(bench.now)
    fetches = len(bench.sent(FetchRequest))
    bench.wait(300)
    assert bench.core.log.end_offset == 0
    assert len(bench.sent(FetchRequest)) == fetches + 1


def test_a10_only_committed_data_goes_into_a_snapshot() -> None:
    """Rule A10."""
    bench = Bench(voters=1)
    bench.wait(1)
    bench.append()
    with pytest.raises(FatalError, match="CommittedSnapshot"):
        bench.core.snapshot_taken(OffsetAndEpoch(2, 1), OffsetAndEpoch(2, 1))
