"""The core's picture of the log against a naive model: a list of (offset, epoch), one a record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.controller.raft.log_summary import EMPTY, LogSummary
from strandline.controller.raft.messages import Batch, OffsetAndEpoch
from strandline.replica.core import Verdict, judge_fetch, truncation_offset


class Model:
    """One epoch a record, from a start on."""

    def __init__(self) -> None:
        self.start = EMPTY
        self.epochs: dict[int, int] = {}

    @property
    def end(self) -> int:
        return self.start.offset + len(self.epochs)

    def epoch_before(self, offset: int) -> int:
        return self.epochs.get(offset - 1, self.start.epoch)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        known = [e for e in self.epochs.values() if e <= epoch]
        if not known:
            return self.start
        largest = max(known)
        return OffsetAndEpoch(max(o for o, e in self.epochs.items() if e == largest) + 1, largest)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("snapshot"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("reset"), st.integers(0, 10), st.integers(0, 2)),
        st.tuples(st.just("flush"), st.integers(0, 40), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_summary_is_the_log(actions: list[tuple[str, int, int]]) -> None:
    """Rules A7, A8 rest on it: where epochs end, what a fetcher may hold, what a truncation leaves."""
    log, model, epoch = LogSummary(), Model(), 1
    for kind, a, b in actions:
        if kind == "append":
            epoch = max(epoch, model.epoch_before(model.end)) + a
            log.append(Batch(model.end, model.end + b, epoch, b""))
            for _ in range(b):
                model.epochs[model.end] = epoch
        elif kind == "truncate":
            offset = min(model.end, model.start.offset + a)
            log.truncate_to(offset)
            model.epochs = {o: e for o, e in model.epochs.items() if o < offset}
        elif kind == "snapshot":
            offset = min(model.end, model.start.offset + a)
            if offset == 0:
                continue
            if log.snapshot is not None and offset < log.snapshot.offset:
                continue
            point = OffsetAndEpoch(offset, model.epoch_before(offset))
            log.snapshot_taken(point)
            log.advance_start(point)
            model.start = point
            model.epochs = {o: e for o, e in model.epochs.items() if o >= offset}
        elif kind == "reset":
            epoch = model.epoch_before(model.end) + b + 1
            model.start, model.epochs = OffsetAndEpoch(model.end + a + 1, epoch), {}
            log.reset_to(model.start)
        else:
            log.flushed(a)
            assert log.durable_offset <= log.end_offset
        if log.snapshot is not None and log.snapshot.offset > log.end_offset:
            return  # truncated below a snapshot: the core forbids that (it is committed)
        log.check()
        assert log.end == OffsetAndEpoch(model.end, model.epoch_before(model.end))
        for asked in range(epoch + 3):
            assert log.end_offset_for_epoch(asked) == model.end_offset_for_epoch(asked)
        for offset in range(model.start.offset, model.end + 1):
            assert log.epoch_before(offset) == model.epoch_before(offset)


elections = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=8)


def histories(shape: list[tuple[int, int, int]]) -> list[list[int]]:
    """Logs (an epoch a record) as elections leave them: each leader goes on from a prefix of some log before it."""
    logs: list[list[int]] = [[]]
    for epoch, (parent, length, count) in enumerate(shape, start=1):
        base = logs[parent % len(logs)]
        logs.append(base[: length % (len(base) + 1)] + [epoch] * count)
    return logs


def summary(epochs: list[int]) -> LogSummary:
    log = LogSummary()
    for epoch in epochs:
        log.append(Batch(log.end_offset, log.end_offset + 1, epoch, b""))
    return log


@settings(max_examples=200, deadline=None)
@given(elections, st.integers(0, 10), st.integers(0, 10))
def test_truncation_converges_on_a_common_prefix(shape: list[tuple[int, int, int]], one: int, other: int) -> None:
    """Schedules 1, 2: diverging answers and truncations end at a point from which both logs agree, record by record."""
    logs = histories(shape)
    ours, theirs = logs[one % len(logs)], list(logs[other % len(logs)])
    leader, follower = summary(ours), summary(theirs)
    for _ in range(20):
        diverging = leader.diverges(follower.end_offset, follower.last_epoch)
        if diverging is None:
            break
        point = follower.truncation_point(diverging)
        assert point < follower.end_offset, "no progress"
        follower.truncate_to(point)
        del theirs[point:]
    else:
        raise AssertionError("it never agrees")
    assert ours[: len(theirs)] == theirs


@settings(max_examples=200, deadline=None)
@given(elections, st.integers(0, 10), st.integers(0, 10))
def test_logs_of_the_quorum_and_of_partitions_part_at_one_offset(
    shape: list[tuple[int, int, int]], one: int, other: int
) -> None:
    """Rules A7, A8 and B8 are one algorithm: the same two logs get the same answer, and the same cut."""
    logs = histories(shape)
    leader, follower = summary(logs[one % len(logs)]), summary(logs[other % len(logs)])
    if not follower.end_offset:
        return  # a partition's follower without records says that it has no epoch; a voter says 0
    said = leader.diverges(follower.end_offset, follower.last_epoch)
    judged = judge_fetch(_History(leader), 0, leader.end_offset, follower.end_offset, follower.last_epoch)
    assert (judged.verdict is Verdict.VALID) == (said is None)
    if said is not None:
        assert judged.end_offset == said.offset
        cut = truncation_offset(_History(follower), 0, follower.end_offset, said.epoch, said.offset)
        assert cut == follower.truncation_point(said)


class _History:
    """A quorum's log as a partition's is asked."""

    def __init__(self, log: LogSummary) -> None:
        self._log = log

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        end = self._log.end_offset_for_epoch(epoch)
        return (end.epoch, end.offset) if end.epoch else (-1, -1)
