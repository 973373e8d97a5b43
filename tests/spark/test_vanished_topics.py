"""A topic that is deleted, or created anew, between two questions of one plan: row S105, and `failOnDataLoss`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from strandline.client import Admin, metadata
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.spark.planner import DataLossError, Narrowing, OffsetRange, TopicShape, plan
from strandline.spark.stream_offsets import StreamOffset
from strandline.spark.stream_planner import StreamPlanner
from tests.acceptance.helpers import wait_gone
from tests.spark import test_planning
from tests.spark.test_stream_planning import A0, B0, HandClock, Log, options, through_json

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.spark.lookup import ClusterOffsets
from tests.spark.test_known_defects import batch, filled
from tests.spark.test_known_defects import offsets as read_offsets
from tests.spark.test_stream_reader import reader

BOTH = '{"a": {"0": %s}, "b": {"0": %s}}'


@dataclass
class Changing(Log):
    """A cluster in which something happens to topic `a` before the question of this number (from 0)."""

    at: int = -1
    happens: Callable[[Log], None] = lambda log: None
    asked: int = 0

    def _ask(self) -> None:
        if self.asked == self.at:
            self.happens(self)
        self.asked += 1

    def topics(self) -> Mapping[str, TopicShape]:
        self._ask()
        return super().topics()

    def earliest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._ask()
        return super().earliest([each for each in partitions if each in self.bounds])

    def latest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._ask()
        return super().latest([each for each in partitions if each in self.bounds])

    def for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        self._ask()
        return {each: time for each, time in timestamps_ms.items() if each in self.bounds}

    def settled_end(self, partition: TopicPartition, at_least: int) -> int | None:  # type: ignore[override]
        self._ask()
        return self.bounds[partition][1] if partition in self.bounds else None


def deleted(log: Log) -> None:
    del log.bounds[A0]


def created_anew(length: int) -> Callable[[Log], None]:
    def happens(log: Log) -> None:
        log.bounds[A0], log.ids["a"] = (0, length), "id-new"

    return happens


def changing(at: int, happens: Callable[[Log], None]) -> Changing:
    return Changing({A0: (0, 100), B0: (0, 10)}, at=at, happens=happens)


BATCHES: list[dict[str, object]] = [
    {},
    {"startingOffsets": BOTH % (5, 0), "endingOffsets": BOTH % (-1, 10)},
    {"startingTimestamp": 0, "endingTimestamp": 500},
    {"startingOffsetsByTimestamp": BOTH % (0, 0), "endingOffsetsByTimestamp": BOTH % (500, 500)},
]


@pytest.mark.parametrize("given", BATCHES)
def test_a_batch_reads_what_is_left_whenever_the_topic_goes(
    given: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    narrow = Narrowing(since_ms=0)
    for accepted in (False, True):
        asked = test_planning.options(subscribe="a,b", failOnDataLoss=str(not accepted).lower(), **given)
        quiet = changing(-1, deleted)
        assert {part.partition for part in plan(asked, quiet, narrow)} == {A0, B0}
        with pytest.raises(ConfigError, match="topic create a"):
            plan(asked, changing(0, deleted), narrow)
        for at in range(1, quiet.asked):
            caplog.clear()
            if accepted:
                assert plan(asked, changing(at, deleted), narrow) == [OffsetRange(B0, 0, 10, "id-b")]
                assert "a-0" in caplog.text
                assert "goes on with what is left" in caplog.text
            else:
                with pytest.raises(DataLossError, match="failOnDataLoss=false"):
                    plan(asked, changing(at, deleted), narrow)


def stream(log: Log, **more: object) -> StreamPlanner:
    return StreamPlanner(options(subscribePattern="^(a|b)$", failOnDataLoss="false", **more), log, HandClock())


def batches(planner: StreamPlanner, log: Log, offset: StreamOffset, seen: dict[str, list[int]]) -> StreamOffset:
    """Every batch there is. A task reads the very topic that its range names, as `RangeReader.expect` has it."""
    for _ in range(10):
        end = planner.next_end(offset, unlimited=True)
        if end is offset:
            return offset
        for part in planner.ranges(offset, end):
            if part.partition in log.bounds and log.ids[part.partition.topic] == part.topic_id:
                seen.setdefault(str(part.topic_id), []).extend(range(part.start, part.end))
        offset = through_json(end)
    raise AssertionError("the query finds no end")


@pytest.mark.parametrize("given", [{}, {"startingTimestamp": 0, "startingOffsetsByTimestampStrategy": "latest"}])
def test_a_stream_goes_on_with_the_others_whenever_the_topic_goes(
    given: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    quiet = changing(-1, deleted)
    planner = stream(quiet, **given)
    batches(planner, quiet, planner.initial(), {})
    for at in range(1, quiet.asked):
        caplog.clear()
        log, seen = changing(at, deleted), dict[str, list[int]]()
        planner = stream(log, **given)
        end = batches(planner, log, planner.initial(), seen)
        assert seen["id-b"] == list(range(10))
        assert end.offsets.keys() - {A0} == {B0}
        log.bounds[B0] = (0, 12)
        assert batches(planner, log, end, seen).offsets == {B0: 12}, "what is gone stays in the checkpoint"
        assert seen["id-b"] == list(range(12))
        assert "a-0" in caplog.text, at
        strict = StreamPlanner(options(subscribePattern="^(a|b)$", **given), changing(at, deleted), HandClock())
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            follow(strict)


def follow(strict: StreamPlanner) -> None:
    """As many questions as a query asks until it has found its end, and one batch more."""
    offset = strict.initial()
    for _ in range(3):
        end = strict.next_end(offset, unlimited=True)
        if end is not offset:
            strict.ranges(offset, end)
        offset = end


@pytest.mark.parametrize("length", [30, 100, 500])
def test_a_topic_created_anew_in_mid_plan_is_read_once_from_its_beginning(length: int) -> None:
    """The rule for topics that were created anew, whichever question it comes between: nothing under the old offsets,
    all of the new topic."""
    quiet = changing(-1, deleted)
    planner = stream(quiet)
    batches(planner, quiet, planner.initial(), {})
    for at in range(quiet.asked):
        log, seen = changing(at, created_anew(length)), dict[str, list[int]]()
        planner = stream(log)
        end = batches(planner, log, planner.initial(), seen)
        batches(planner, log, end, seen)
        assert seen["id-new"] == list(range(length)), at
        assert seen.get("id-a", list(range(100))) == list(range(100)), at
        assert seen["id-b"] == list(range(10))


def test_a_leader_that_is_waited_for_may_lose_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    log = Changing({A0: (0, 100), B0: (0, 10)})
    planner = stream(log)
    start = planner.next_end(planner.initial(), unlimited=True)
    log.bounds[A0] = (0, 90)  # a new leader that has not caught up
    log.at, log.happens = log.asked + 2, deleted
    assert planner.next_end(start, unlimited=True).offsets == {B0: 10}
    assert "a-0: offset 100" in caplog.text


# -- a real cluster -------------------------------------------------------------------------------------------------


def gone(cluster: DevCluster, topic: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topics([topic])
    wait_gone(cluster.bootstrap, topic)


def before(monkeypatch: pytest.MonkeyPatch, question: str, happens: Callable[[], None]) -> None:
    """Have this happen before the next question of this kind, once."""
    ask = getattr(ClusterOffsets, question)
    left = [happens]

    def asking(self: ClusterOffsets, *given: Any) -> Any:
        if left:
            left.pop()()
        return ask(self, *given)

    monkeypatch.setattr(ClusterOffsets, question, asking)


@pytest.mark.parametrize("question", ["earliest", "latest"])
def test_a_topic_deleted_under_the_plan_of_a_batch(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, question: str
) -> None:
    monkeypatch.setattr(metadata, "UNKNOWN_TOPIC_GRACE_MS", 200)
    stays = f"vanish-{question}-stays"
    filled(cluster, stays, 10)
    for accepted in (False, True):
        topic = f"vanish-{question}-{accepted}".lower()
        filled(cluster, topic, 20)
        before(monkeypatch, question, lambda topic=topic: gone(cluster, topic))  # type: ignore[misc]
        source = batch(cluster, f"{topic},{stays}", failOnDataLoss=str(not accepted).lower())
        if accepted:
            assert read_offsets(source, source.partitions()) == list(range(10))
            assert f"{topic}-0" in caplog.text
        else:
            with pytest.raises(DataLossError, match=f"{topic}-0.*failOnDataLoss=false"):
                source.partitions()


def test_a_topic_deleted_or_created_anew_under_the_plan_of_a_stream(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "UNKNOWN_TOPIC_GRACE_MS", 200)
    for name, count in (("goes", 20), ("anew", 30), ("stays", 10)):
        filled(cluster, f"vanish-stream-{name}", count)
    source = reader(cluster, subscribePattern="^vanish-stream-", failOnDataLoss="false")

    def change() -> None:
        gone(cluster, "vanish-stream-goes")
        gone(cluster, "vanish-stream-anew")
        filled(cluster, "vanish-stream-anew", 40)

    def read(start: dict[str, Any], end: dict[str, Any]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for part in source.partitions(start, end):
            for rows in source.read(part):
                for topic, offset in zip(rows.column("topic"), rows.column("offset"), strict=True):
                    found.setdefault(topic.as_py().removeprefix("vanish-stream-"), []).append(offset.as_py())
        return found

    try:
        start = source.initialOffset()
        first = source.latestOffset(start, ReadAllAvailable())
        before(monkeypatch, "earliest", change)
        assert read(start, first) == {"stays": list(range(10))}
        assert "vanish-stream-goes-0" in caplog.text
        second = source.latestOffset(first, ReadAllAvailable())
        assert read(first, second) == {"anew": list(range(40))}
        assert source.latestOffset(second, ReadAllAvailable()) is second
    finally:
        source.stop()


def test_the_sample_of_a_limit_by_bytes_does_without_what_is_gone(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "UNKNOWN_TOPIC_GRACE_MS", 200)
    caplog.set_level(logging.WARNING)
    partition = filled(cluster, "vanish-sample", 20)
    with ClusterOffsets(cluster.bootstrap, {}) as lookup:
        assert lookup.bytes_per_offset({partition: (0, 20)})[partition] > 1
        gone(cluster, "vanish-sample")
        assert lookup.bytes_per_offset({partition: (0, 20)}) == {partition: 0.0}
        assert lookup.latest([partition]) == {}
        assert lookup.settled_end(partition, 30) is None
