"""Micro-batches planned without Spark: where they begin and end, what is lost, and what the checkpoint says."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.types import EpochEnd
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.spark import stream_planner
from strandline.spark.options import SourceOptions, parse_options
from strandline.spark.planner import DataLossError, LogEnd, OffsetRange, TopicShape
from strandline.spark.sink_options import LEDGER_TOPIC
from strandline.spark.stream_offsets import VERSION, StreamOffset
from strandline.spark.stream_planner import StreamPlanner

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@dataclass
class Log:
    """A cluster whose partitions a test moves by hand: [low, high) each."""

    bounds: dict[TopicPartition, tuple[int, int]]
    ids: dict[str, str] = field(default_factory=lambda: {"a": "id-a", "b": "id-b"})
    settled: dict[TopicPartition, int] = field(default_factory=dict)
    epochs: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    """(leader epoch, its first offset); without any it is not known, as of an old broker."""

    def topics(self) -> Mapping[str, TopicShape]:
        names = sorted({partition.topic for partition in self.bounds})
        count = {name: sum(partition.topic == name for partition in self.bounds) for name in names}
        return {name: TopicShape(count[name], self.ids.get(name)) for name in names}

    def earliest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self.bounds[partition][0] for partition in partitions}

    def latest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self.bounds[partition][1] for partition in partitions}

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        told = {partition: self.epochs.get(partition, [(-1, 0)])[-1][0] for partition in partitions}
        return {partition: LogEnd(end, told[partition]) for partition, end in self.latest(partitions).items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        found = {}
        for partition, asked in epochs.items():
            later = [first for epoch, first in self.epochs[partition] if epoch > asked]
            known = [epoch for epoch, _ in self.epochs[partition] if epoch <= asked]
            end = later[0] if later else self.bounds[partition][1]
            found[partition] = EpochEnd(max(known, default=asked), end)
        return found

    def settled_end(self, partition: TopicPartition, at_least: int) -> int:
        return self.settled.get(partition, self.bounds[partition][1])

    def for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return dict.fromkeys(timestamps_ms)

    def bytes_per_offset(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, float]:
        return dict.fromkeys(ranges, 100.0)


class HandClock:
    """A clock that a test moves."""

    now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)


def options(**given_options: object) -> SourceOptions:
    base: dict[str, object] = {"kafka.bootstrap.servers": "127.0.0.1:9092", "startingOffsets": "earliest"}
    if not {"assign", "subscribe", "subscribePattern"} & given_options.keys():
        base["subscribe"] = "a"
    return parse_options({key: str(value) for key, value in (base | given_options).items()}, streaming=True)


def planner(log: Log, **given_options: object) -> StreamPlanner:
    return StreamPlanner(options(**given_options), log, HandClock())


def through_json(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


def two(high0: int = 100, high1: int = 50) -> Log:
    return Log({A0: (0, high0), A1: (0, high1)})


def test_batches_follow_one_another_without_gap_or_overlap() -> None:
    log = two()
    plan = planner(log)
    start = plan.initial()
    end = plan.next_end(start, unlimited=True)
    assert plan.ranges(start, end) == [OffsetRange(A0, 0, 100, "id-a"), OffsetRange(A1, 0, 50, "id-a")]
    assert plan.next_end(end, unlimited=True) is end
    log.bounds[A0] = (0, 130)
    later = plan.next_end(through_json(end), unlimited=True)
    assert plan.ranges(end, later) == [OffsetRange(A0, 100, 130, "id-a")]


def test_a_stream_starts_at_latest_unless_told_otherwise() -> None:
    assert planner(two(), startingOffsets="latest").initial().offsets == {A0: 100, A1: 50}
    text = json.dumps({"a": {"0": -1, "1": 7}})
    assert planner(two(), startingOffsets=text).initial().offsets == {A0: 100, A1: 7}


def test_a_first_batch_repeated_after_a_restart_begins_where_it_did() -> None:
    """startingOffsets=latest: what came between the crash and the restart is in the batch, and nothing is lost."""
    log = two()
    before = planner(log, startingOffsets="latest")
    start = before.initial()
    log.bounds[A0] = (0, 120)
    end = through_json(before.next_end(through_json(start), unlimited=True))
    log.bounds[A0] = (0, 150)  # the query dies before its first commit, and more is written
    after = planner(log, startingOffsets="latest")
    assert after.initial().offsets[A0] == 150
    assert after.ranges(after.initial(), end) == [OffsetRange(A0, 100, 120, "id-a")]
    assert after.ranges(end, end) == []


def test_an_empty_first_batch_keeps_the_beginning() -> None:
    log = two()
    plan = planner(log, startingOffsets="latest")
    start = through_json(plan.initial())
    assert plan.next_end(start, unlimited=True) is start
    log.bounds[A1] = (0, 51)
    end = through_json(plan.next_end(start, unlimited=True))
    assert planner(log).ranges(planner(log).initial(), end) == [OffsetRange(A1, 50, 51, "id-a")]


def test_new_partitions_and_new_matching_topics_are_read_from_their_beginning() -> None:
    log = Log({A0: (0, 100)})
    plan = planner(log, subscribePattern="a|b")
    start = plan.next_end(plan.initial(), unlimited=True)
    log.bounds |= {A1: (0, 20), B0: (0, 5)}
    end = plan.next_end(start, unlimited=True)
    assert plan.ranges(start, end) == [OffsetRange(A1, 0, 20, "id-a"), OffsetRange(B0, 0, 5, "id-b")]


def test_a_new_partition_that_has_lost_its_first_records_is_a_loss() -> None:
    log = Log({A0: (0, 100)})
    plan = planner(log)
    start = plan.next_end(plan.initial(), unlimited=True)
    log.bounds[A1] = (8, 20)
    end = plan.next_end(start, unlimited=True)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        plan.ranges(start, end)
    assert planner(log, failOnDataLoss="false").ranges(start, end) == [OffsetRange(A1, 8, 20, "id-a", lost=8)]


def test_records_deleted_past_the_offset_are_a_loss() -> None:
    log = two()
    plan = planner(log)
    start = plan.initial()
    log.bounds[A0] = (30, 100)
    end = plan.next_end(start, unlimited=True)
    with pytest.raises(DataLossError) as caught:
        plan.ranges(start, end)
    assert (caught.value.partition, caught.value.wanted, caught.value.earliest) == (A0, 0, 30)
    lenient = planner(log, failOnDataLoss="false")
    left = OffsetRange(A0, 30, 100, "id-a", lost=30)
    assert lenient.ranges(start, end) == [left, OffsetRange(A1, 0, 50, "id-a")]


def test_a_topic_created_anew_is_a_loss_however_long_it_is() -> None:
    """Offsets alone cannot tell: the new topic may hold as many records as the old one."""
    log = two()
    plan = planner(log)
    start = plan.next_end(plan.initial(), unlimited=True)
    log.ids["a"] = "id-new"
    log.bounds = {A0: (0, 500), A1: (0, 500)}
    with pytest.raises(DataLossError):
        plan.next_end(start, unlimited=True)
    lenient = planner(log, failOnDataLoss="false")
    end = lenient.next_end(start, unlimited=True)
    assert lenient.ranges(start, end) == [OffsetRange(A0, 0, 500, "id-new"), OffsetRange(A1, 0, 500, "id-new")]


def test_a_topic_created_anew_after_the_plan_is_not_read_under_the_old_offsets() -> None:
    log = two()
    plan = planner(log)
    start = plan.initial()
    end = plan.next_end(start, unlimited=True)
    log.ids["a"] = "id-new"
    with pytest.raises(DataLossError):
        plan.ranges(start, end)
    assert [part.size for part in planner(log, failOnDataLoss="false").ranges(start, end)] == [0, 0]


def test_a_deleted_topic_is_a_loss_and_the_others_go_on_where_that_is_accepted() -> None:
    log = Log({A0: (0, 100), B0: (0, 10)})
    start = planner(log, subscribePattern="a|b").initial()
    del log.bounds[A0]
    with pytest.raises(DataLossError):
        planner(log, subscribePattern="a|b").next_end(start, unlimited=True)
    lenient = planner(log, subscribePattern="a|b", failOnDataLoss="false")
    end = lenient.next_end(start, unlimited=True)
    assert lenient.ranges(start, end) == [OffsetRange(B0, 0, 10, "id-b")]


def test_a_log_that_ends_before_the_checkpoint_is_a_loss_but_a_new_leader_may_be_late() -> None:
    """KAFKA-7703's kin: a new leader's high watermark lags for a moment. What was read is not read again."""
    log = two()
    plan = planner(log)
    start = plan.next_end(plan.initial(), unlimited=True)
    log.bounds[A0], log.settled = (0, 90), {A0: 105}
    end = plan.next_end(start, unlimited=True)
    assert end.offsets == {A0: 105, A1: 50}
    log.settled = {}
    with pytest.raises(DataLossError) as caught:
        plan.next_end(start, unlimited=True)
    assert (caught.value.wanted, caught.value.latest) == (100, 90)
    lenient = planner(log, failOnDataLoss="false")
    shorter = lenient.next_end(start, unlimited=True)
    assert lenient.ranges(start, shorter) == []
    log.bounds[A0] = (0, 95)
    assert lenient.ranges(shorter, lenient.next_end(shorter, unlimited=True)) == [OffsetRange(A0, 90, 95, "id-a")]


def cut_log(log: Log, at: int, end: int) -> None:
    """As a restore that has lost its newest leaves it (rule B36), once it has grown again."""
    log.bounds[A0] = (0, end)
    log.epochs[A0].append((log.epochs[A0][-1][0] + 65_536, at))


@pytest.mark.parametrize("regrown", [80, 95, 100, 130])
def test_a_log_that_was_cut_and_has_grown_again_is_a_loss(regrown: int) -> None:
    """It ends beyond the checkpoint, under the same topic id: the records from the cut on were passed over in silence.
    The epoch of the checkpoint tells (KIP-320). With failOnDataLoss=false they are read, each once."""
    log = two()
    log.epochs = {A0: [(3, 0)], A1: [(5, 0)]}
    plan = planner(log)
    start = through_json(plan.next_end(plan.initial(), unlimited=True))
    assert start.epochs == {A0: 3, A1: 5}
    cut_log(log, 80, regrown)
    for one in (plan, planner(log)):
        with pytest.raises(
            DataLossError, match=r"a-0: .* up to offset 100, but the log was cut at offset 80"
        ) as caught:
            one.next_end(start, unlimited=True)
        assert pickle.loads(pickle.dumps(caught.value)).parted == 80
    lenient = planner(log, failOnDataLoss="false")
    end = through_json(lenient.next_end(start, unlimited=True))
    assert lenient.ranges(start, end) == ([OffsetRange(A0, 80, regrown, "id-a")] if regrown > 80 else [])
    assert planner(log, failOnDataLoss="false").ranges(start, end) == lenient.ranges(start, end)
    log.bounds[A0] = (0, 140)
    later = lenient.next_end(end, unlimited=True)
    assert lenient.ranges(end, later) == [OffsetRange(A0, regrown, 140, "id-a")]


def test_a_new_leader_with_all_that_was_read_is_no_loss() -> None:
    """Also where its log seems to end before the checkpoint. A checkpoint without epochs is read as before."""
    log = two()
    log.epochs = {A0: [(3, 0)], A1: [(5, 0)]}
    plan = planner(log)
    start = through_json(plan.next_end(plan.initial(), unlimited=True))
    log.epochs[A0].append((4, 110))
    log.bounds[A0], log.settled = (0, 90), {A0: 120}
    end = through_json(plan.next_end(start, unlimited=True))
    assert (end.offsets[A0], end.epochs) == (120, {A1: 5})
    log.bounds[A0] = (0, 130)
    assert plan.ranges(end, plan.next_end(end, unlimited=True)) == [OffsetRange(A0, 120, 130, "id-a")]
    cut_log(log, 80, 130)
    old = StreamOffset.from_json({"a": {"0": 100, "1": 50}})
    assert plan.ranges(old, plan.next_end(old, unlimited=True)) == [OffsetRange(A0, 100, 130, "id-a")]


def test_available_now_stops_at_what_was_there_at_its_start() -> None:
    log = two()
    plan = planner(log, maxOffsetsPerTrigger=60, minOffsetsPerTrigger=60)
    plan.stop_at_present()
    offset = plan.initial()
    read = 0
    for _ in range(20):
        log.bounds = {partition: (low, high + 10) for partition, (low, high) in log.bounds.items()} | {B0: (0, 3)}
        end = plan.next_end(offset, unlimited=False)
        if end is offset:
            break
        read += sum(part.size for part in plan.ranges(offset, end))
        offset = end
    assert read == 150
    assert offset.offsets == {A0: 100, A1: 50}


def test_limits_share_a_batch_out_by_lag() -> None:
    plan = planner(two(), maxOffsetsPerTrigger=30)
    assert plan.next_end(plan.initial(), unlimited=False).offsets == {A0: 20, A1: 10}
    assert plan.next_end(plan.initial(), unlimited=True).offsets == {A0: 100, A1: 50}
    plan = planner(two(), maxBytesPerTrigger=3000)
    assert plan.next_end(plan.initial(), unlimited=False).offsets == {A0: 20, A1: 10}
    plan = planner(two(), maxBytesPerTrigger=1)
    assert plan.next_end(plan.initial(), unlimited=False).offsets == {A0: 1, A1: 1}


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 30}, {"maxBytesPerTrigger": 3000}])
def test_offsets_that_are_gone_take_no_share_of_a_limit(limit: dict[str, object]) -> None:
    """A query that retention has overtaken went through millions of offsets without a record, a limit at a time."""
    log = Log({A0: (0, 10**9), A1: (0, 50)})
    plan = planner(log, failOnDataLoss="false", **limit)
    start = plan.initial()
    log.bounds[A0] = (10**9 - 100, 10**9)
    end = plan.next_end(start, unlimited=False)
    assert end.offsets == {A0: 10**9 - 80, A1: 10}
    assert [(part.start, part.end) for part in plan.ranges(start, end)] == [(10**9 - 100, 10**9 - 80), (0, 10)]
    log.bounds[A0] = (10**9, 10**9)
    assert plan.next_end(end, unlimited=False).offsets[A0] == 10**9


def test_lag_is_what_no_planned_batch_holds() -> None:
    log = two()
    plan = planner(log, maxOffsetsPerTrigger=30)
    first = plan.next_end(plan.initial(), unlimited=False)
    assert (first.offsets, plan.lag) == ({A0: 20, A1: 10}, {A0: 80, A1: 40})
    plan.next_end(first, unlimited=True)
    assert plan.lag == {A0: 0, A1: 0}
    waits = planner(log, minOffsetsPerTrigger=100)
    all_of_it = waits.next_end(waits.initial(), unlimited=False)
    log.bounds[A0] = (0, 107)
    assert waits.next_end(all_of_it, unlimited=False) is all_of_it
    assert waits.lag == {A0: 7, A1: 0}


def test_min_offsets_wait_until_the_delay_is_over() -> None:
    log, clock = two(), HandClock()
    plan = StreamPlanner(options(minOffsetsPerTrigger=20, maxTriggerDelay="10s"), log, clock)
    first = plan.next_end(plan.initial(), unlimited=False)
    assert first.offsets == {A0: 100, A1: 50}
    log.bounds[A0] = (0, 110)
    assert plan.next_end(first, unlimited=False) is first
    log.bounds[A1] = (0, 60)
    second = plan.next_end(first, unlimited=False)
    assert second.offsets == {A0: 110, A1: 60}
    log.bounds[A0] = (0, 111)
    clock.now_ms = 9_999
    assert plan.next_end(second, unlimited=False) is second
    clock.now_ms = 10_001
    assert plan.next_end(second, unlimited=False).offsets == {A0: 111, A1: 60}


def test_one_partition_is_split_by_min_partitions() -> None:
    plan = planner(Log({A0: (0, 100)}), minPartitions=4)
    start = plan.initial()
    parts = plan.ranges(start, plan.next_end(start, unlimited=True))
    assert [(part.start, part.end) for part in parts] == [(0, 25), (25, 50), (50, 75), (75, 100)]


def cut(parts: Sequence[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(part.partition.partition, part.start, part.end) for part in parts]


def test_66_a_batch_is_cut_the_same_way_each_time() -> None:
    """Ranges are split as they were planned, and only then lose what is gone: no task takes another one's number."""
    log = Log({A0: (0, 100), A1: (0, 50)})
    first = planner(log, minPartitions=6, failOnDataLoss="false")
    start = through_json(first.initial())
    end = through_json(first.next_end(start, unlimited=True))
    assert cut(first.ranges(start, end)) == [
        (0, 0, 25),
        (0, 25, 50),
        (0, 50, 75),
        (0, 75, 100),
        (1, 0, 25),
        (1, 25, 50),
    ]
    log.bounds = {A0: (60, 100), A1: (50, 50)}
    for given_options in ({"minPartitions": 6}, {"maxRecordsPerPartition": 7}, {}):
        again = planner(log, failOnDataLoss="false", **given_options).ranges(start, end)
        assert cut(again) == [(0, 25, 25), (0, 50, 50), (0, 60, 75), (0, 75, 100), (1, 25, 25), (1, 50, 50)]
        assert [part.lost for part in again] == [25, 25, 10, 0, 25, 25]
    del log.bounds[A1]
    gone = planner(log, failOnDataLoss="false").ranges(start, end)
    assert cut(gone)[4:] == [(1, 25, 25), (1, 50, 50)]


def test_66_a_batch_of_another_number_of_tasks_than_it_was_planned_for_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Should another release cut otherwise, a batch that it finds half done is not cut anew."""
    plan = planner(two(), minPartitions=4)
    start = plan.initial()
    end = through_json(plan.next_end(start, unlimited=True))
    with monkeypatch.context() as other_release:
        other_release.setattr(stream_planner, "split", lambda ranges, least, most: list(ranges))
        with pytest.raises(
            ConfigError, match=r"a batch of 2 tasks.*5, as the checkpoint has it.*the release that planned"
        ):
            plan.ranges(start, end)
    assert len(plan.ranges(start, end)) == 5


def test_a_checkpoint_without_the_tasks_is_cut_by_the_options() -> None:
    """Of Spark's own source: no task of ours has begun to write then."""
    end = StreamOffset.from_json({"a": {"0": 100, "1": 50}})
    plan = planner(two(), minPartitions=4)
    assert len(plan.ranges(plan.initial(), end)) == 5


def test_a_partition_without_records_in_the_batch_is_no_loss_of_it() -> None:
    log = Log({A0: (0, 100), B0: (0, 10)})
    plan = planner(log, subscribePattern="a|b")
    first = plan.next_end(plan.initial(), unlimited=True)
    log.bounds[A0] = (0, 120)
    second = plan.next_end(first, unlimited=True)
    del log.bounds[B0]
    assert cut(plan.ranges(first, second)) == [(0, 100, 120)]


def test_a_pattern_that_matches_nothing_yet_waits() -> None:
    log = Log({})
    plan = planner(log, subscribePattern="a")
    start = through_json(plan.initial())
    assert plan.next_end(start, unlimited=True) is start
    log.bounds[A0] = (0, 5)
    end = plan.next_end(start, unlimited=True)
    assert cut(plan.ranges(start, through_json(end))) == [(0, 0, 5)]


def test_a_ledger_is_no_input_of_a_pattern_and_told_of_where_it_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Whichever it is: a query that writes would feed itself."""
    names = (LEDGER_TOPIC, f"{LEDGER_TOPIC}-mine", f"{LEDGER_TOPIC}s")
    log = Log({TopicPartition(name, 0): (0, 10) for name in names})
    found = planner(log, subscribePattern=".*").initial()
    assert [partition.topic for partition in found.offsets] == [f"{LEDGER_TOPIC}s"]
    assert caplog.text == ""
    named = {"subscribe": names[1]}, {"assign": json.dumps({names[0]: [0]})}
    for given_options in named:
        caplog.clear()
        assert len(planner(log, **given_options).initial().offsets) == 1
        assert "without end" in caplog.text


def test_the_checkpoint_of_sparks_own_source_is_read() -> None:
    assert StreamOffset.from_json({"a": {"0": 23, "1": 7}}) == StreamOffset({A0: 23, A1: 7})


def test_the_first_version_stays_readable() -> None:
    """A checkpoint as release 0.1 wrote it; later ones must read it."""
    text = '{"version": 1, "topics": {"a": {"offsets": {"0": 5}, "id": "x"}}, "since": {"a": {"offsets": {"0": 2}}}}'
    assert StreamOffset.from_json(json.loads(text)) == StreamOffset({A0: 5}, {"a": "x"}, StreamOffset({A0: 2}))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"version": VERSION + 1, "topics": {}}, "newer release"),
        ({"version": 1}, "damaged"),
        ({"version": 1, "topics": {"a": {}}}, "damaged"),
        ({"version": 1, "topics": {"a": {"offsets": {"0": -1}}}}, "damaged"),
        ({"version": 1, "topics": {"a": {"offsets": {"x": 1}}}}, "damaged"),
        ({"seconds": 7}, "another source"),
        ({"version": 1, "topics": {}, "tasks": 7}, "damaged"),
        ({"version": 1, "topics": {}, "tasks": {"minPartitions": 7}}, "damaged"),
        ({"version": 1, "topics": {}, "tasks": {"count": -1}}, "damaged"),
        ({"version": 1, "topics": {}, "tasks": {"count": "1"}}, "damaged"),
        ({"version": 1, "topics": {}, "tasks": {"count": 1, "minPartitions": 0}}, "damaged"),
        ([], "another source"),
    ],
)
def test_a_damaged_or_foreign_checkpoint_says_so(document: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StreamOffset.from_json(document)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match="a stream has none"):
        options(endingOffsets="latest")
    with pytest.raises(ConfigError, match="15m"):
        options(maxTriggerDelay="soon")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.booleans()), max_size=12), st.integers(1, 25))
@settings(max_examples=60, deadline=None)
def test_every_offset_is_read_once_whatever_is_written_and_restarted(
    steps: list[tuple[int, int, bool]], limit: int
) -> None:
    """Batches of any limit, restarts between the plan and the commit: each range is read once, in order."""
    log = Log({A0: (0, 3), A1: (0, 0)})
    plan = planner(log, maxOffsetsPerTrigger=limit)
    offset = plan.initial()
    seen: dict[TopicPartition, list[tuple[int, int]]] = {A0: [], A1: []}
    for number, more, restart in [*steps, *[(0, 0, False)] * 60]:
        partition = (A0, A1)[number]
        log.bounds[partition] = (0, log.bounds[partition][1] + more)
        end = plan.next_end(offset, unlimited=False)
        if end is offset:
            continue
        end = through_json(end)
        if restart:
            plan = planner(log, maxOffsetsPerTrigger=limit)
        for part in plan.ranges(offset, end):
            seen[part.partition].append((part.start, part.end))
        offset = end
    for partition, (_, high) in log.bounds.items():
        edges = [0, *(end for _, end in seen[partition])]
        assert edges == [*(start for start, _ in seen[partition]), min(high, edges[-1])]
