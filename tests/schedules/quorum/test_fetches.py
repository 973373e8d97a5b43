"""Rules A7 and A8 where no other test breaks down without them: what a fetch is worth, and what an answer is."""

from __future__ import annotations

from raft_bench import Bench, batch

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import FetchRequest, FetchResponse, OffsetAndEpoch
from strandline.controller.raft.ready import ElectionState
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from tests.schedules.quorum.test_elections import elected


def test_a7_a_fetch_answered_by_a_snapshot_counts_for_nothing() -> None:
    """Rule A7: only VALID updates replica state; a fetcher from before the log's start holds who knows what."""
    log = LogSummary(start=OffsetAndEpoch(10, 2), end_offset=12, epochs=((2, 10),), snapshot=OffsetAndEpoch(10, 2))
    bench = Bench(saved=ElectionState(2), log=log)
    bench.lead()
    assert bench.core.leading is not None
    response = bench.fetch(2, 11, last_epoch=1)
    assert isinstance(response, FetchResponse)
    assert response.snapshot == OffsetAndEpoch(10, 2)
    assert bench.core.leading.voters[NodeId(2)].end_offset == -1


def test_a7_a_fetch_beyond_its_epochs_end_diverges() -> None:
    """Rule A7: a fetcher with more of an epoch than the leader has holds records that were never committed."""
    bench = Bench(saved=ElectionState(3), log=LogSummary(end_offset=4, epochs=((1, 0), (3, 2))))
    bench.lead()
    response = bench.fetch(2, 3, last_epoch=1)
    assert isinstance(response, FetchResponse)
    assert response.diverging == OffsetAndEpoch(2, 1)


def test_a7_a_diverging_tail_is_cut() -> None:
    """Rules A7, A8: what an old leader wrote and nobody got goes when it follows; its log is the leader's again."""
    world, old, others = elected()
    world.isolate(old.id)
    for value in ("lost 1", "lost 2"):
        old.append(value)
    assert world.run(20_000, until=lambda: any(node is not old for node in world.leaders()))
    world.run(100)
    new = next(node for node in others if node.core and node.core.leading)
    new.append("kept")
    world.heal()
    world.run(5000)
    assert old.written.batches == new.written.batches
    assert "kept" in [value for _, _, value in old.applied]


def test_a8_the_smaller_end_of_the_epoch() -> None:
    """Rule A8: the leader has more of an epoch than this node: nothing beyond the own end can be cut."""
    log = LogSummary(end_offset=8, epochs=((1, 0), (2, 6)))
    assert log.truncation_point(OffsetAndEpoch(7, 1)) == 6
    bench = Bench(saved=ElectionState(2), log=log)
    bench.follow(2, epoch=3)
    bench.fetched(diverging=OffsetAndEpoch(7, 1))
    assert bench.core.log.end == OffsetAndEpoch(6, 1)


def test_a8_an_answer_given_up_is_ignored() -> None:
    """Rule A8, schedule 7 in the quorum: a fetch was given up, for what the one before it had brought found no room on
    the disk, and asked again; when its answer comes at last the log has moved on, and cutting by it would take away
    what has been acknowledged since."""
    bench = Bench(saved=ElectionState(1), log=LogSummary(end_offset=3, epochs=((1, 0),)))
    bench.follow(2, epoch=2)
    given_up = bench.sent(FetchRequest)[-1]
    bench.core.append_failed(3, bench.now)
    bench.wait(bench.core.node.config.retry_backoff_ms + 1)
    assert bench.sent(FetchRequest)[-1] is not given_up
    verdict = FetchResponse(ErrorCode.NONE, 2, NodeId(2), -1, 0, diverging=OffsetAndEpoch(2, 1))
    bench.respond(bench.sent(FetchRequest)[-1], verdict)
    bench.flush()
    bench.fetched(batch(2, 2))
    bench.flush()
    assert bench.core.log.end == OffsetAndEpoch(3, 2)
    assert bench.sent(FetchRequest)[-1].request.fetch_offset == 3, "acknowledged"  # type: ignore[union-attr]
    bench.respond(given_up, verdict)
    assert bench.core.log.end == OffsetAndEpoch(3, 2)
