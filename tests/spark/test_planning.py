"""Options and plans of a Spark read, without Spark: the words of Spark's Kafka source, and what each must do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.types import EpochEnd
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.spark.options import SourceOptions, parse_options
from strandline.spark.planner import DataLossError, LogEnd, OffsetRange, TopicShape, plan, split

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class FixedOffsets:
    """A cluster at rest: a [10, 110), a [0, 50), b empty at 7. Timestamps equal offsets."""

    earliest_offsets = {A0: 10, A1: 0, B0: 7}  # noqa: RUF012
    latest_offsets = {A0: 110, A1: 50, B0: 7}  # noqa: RUF012

    def topics(self) -> Mapping[str, TopicShape]:
        return {"a": TopicShape(2), "b": TopicShape(1)}

    def earliest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {p: self.earliest_offsets[p] for p in partitions}

    def latest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {p: self.latest_offsets[p] for p in partitions}

    def for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return {
            p: max(time, self.earliest_offsets[p]) if time < self.latest_offsets[p] else None
            for p, time in timestamps_ms.items()
        }

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return {p: LogEnd(self.latest_offsets[p], -1) for p in partitions}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        return dict.fromkeys(epochs, EpochEnd(-1, -1))

    def settled_end(self, partition: TopicPartition, at_least: int) -> int:
        return self.latest_offsets[partition]

    def bytes_per_offset(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, float]:
        return dict.fromkeys(ranges, 100.0)


def options(**given_options: object) -> SourceOptions:
    base: dict[str, object] = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    if not {"subscribe", "assign", "subscribePattern"} & given_options.keys():
        base["subscribe"] = "a"
    return parse_options({key: str(value) for key, value in (base | given_options).items()})


def planned(**given_options: object) -> list[OffsetRange]:
    return plan(options(**given_options), FixedOffsets())


def test_default_is_everything_committed() -> None:
    assert planned() == [OffsetRange(A0, 10, 110), OffsetRange(A1, 0, 50)]


def test_empty_partitions_cost_no_task() -> None:
    assert planned(subscribe="b, a,a") == [OffsetRange(A0, 10, 110), OffsetRange(A1, 0, 50)]


def test_pattern_is_found_in_names() -> None:
    assert [r.partition for r in planned(subscribePattern="a|b.+")] == [A0, A1]


def test_assign() -> None:
    assert planned(assign='{"a": [1]}') == [OffsetRange(A1, 0, 50)]


def test_offsets_by_json_with_earliest_and_latest() -> None:
    start, end = json.dumps({"a": {"0": 20, "1": -2}}), json.dumps({"a": {"0": -1, "1": 30}})
    assert planned(startingOffsets=start, endingOffsets=end) == [OffsetRange(A0, 20, 110), OffsetRange(A1, 0, 30)]


def test_one_timestamp_for_all_wins_over_the_others() -> None:
    assert planned(startingTimestamp=40, startingOffsets="earliest", endingTimestamp=45) == [
        OffsetRange(A0, 40, 45),
        OffsetRange(A1, 40, 45),
    ]


def test_timestamps_by_partition() -> None:
    start = json.dumps({"a": {"0": 0, "1": 5}})
    end = json.dumps({"a": {"0": 60, "1": 5000}})
    assert planned(startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=end) == [
        OffsetRange(A0, 10, 60),
        OffsetRange(A1, 5, 50),
    ]


def test_start_after_the_last_record_is_an_error_or_the_end() -> None:
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy"):
        planned(startingTimestamp=70)
    assert planned(startingTimestamp=70, startingOffsetsByTimestampStrategy="latest") == [OffsetRange(A0, 70, 110)]


@pytest.mark.parametrize("side", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("offset", [5, 200])
def test_what_no_longer_exists_fails_unless_loss_is_accepted(side: str, offset: int) -> None:
    text = json.dumps({"a": {"0": offset}})
    with pytest.raises(DataLossError, match="failOnDataLoss") as caught:
        planned(assign='{"a": [0]}', **{side: text})
    assert (caught.value.wanted, caught.value.earliest, caught.value.latest) == (offset, 10, 110)
    for part in planned(assign='{"a": [0]}', failOnDataLoss="false", **{side: text}):
        assert 10 <= part.start < part.end <= 110


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("startingOffset", "earliest", "did you mean startingOffsets"),
        ("startingOffsets", "latest", "not at 'latest'"),
        ("startingOffsets", '{"a": {"0": -1, "1": 0}}', "may not start at latest"),
        ("startingOffsets", '{"a": {"0": 1}}', "add a-1"),
        ("startingOffsets", '{"a": {"0": 1, "1": 1, "2": 1}}', "leave out a-2"),
        ("startingOffsets", "{", "JSON such as"),
        ("startingOffsets", '{"a": {"x": 1}}', "JSON such as"),
        ("endingOffsets", "earliest", "not at 'earliest'"),
        ("endingOffsets", '{"a": {"0": -2, "1": 0}}', "-1 for latest"),
        ("startingTimestamp", "soon", "milliseconds"),
        ("subscribe", " , ", "at least one topic"),
        ("subscribe", "nosuch", "strandline topic create nosuch"),
        ("subscribePattern", "(", "regular expression"),
        ("subscribePattern", " ", "every topic"),
        ("kafka.value.deserializer", "org.example.Json", "columns of bytes"),
        ("assign", '{"a": [7]}', "it has 2"),
        ("assign", "{}", "at least one partition"),
        ("minPartitions", "0", "whole number from 1"),
        ("includeHeaders", "yes", "true or false"),
        ("startingOffsetsByTimestampStrategy", "first", "error or latest"),
    ],
)
def test_wrong_values_say_key_value_and_what_is_allowed(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")) as caught:
        planned(**{key: value})
    assert caught.value.key == key or caught.value.key == key.lower()


@pytest.mark.parametrize(
    "given_options",
    [
        {"minOffsetsPerTrigger": 11, "maxOffsetsPerTrigger": 10},
        {"startingOffsets": '{"a": {"0": 50, "1": 0}}', "endingOffsets": '{"a": {"0": 49, "1": 1}}'},
        {"startingTimestamp": 40, "endingTimestamp": 39},
        {
            "startingOffsetsByTimestamp": '{"a": {"0": 1, "1": 31}}',
            "endingOffsetsByTimestamp": '{"a": {"0": 1, "1": 30}}',
        },
        # By what the words and times stand for: the log of a-0 is [10, 110), of a-1 [0, 50).
        {"startingOffsets": '{"a": {"0": 110, "1": 0}}', "endingTimestamp": 60},
        {"startingTimestamp": 40, "endingOffsets": '{"a": {"0": -1, "1": 39}}'},
    ],
)
def test_a_start_behind_its_end_is_a_mistake_and_no_empty_read(given_options: dict[str, object]) -> None:
    """As in Spark's own source since its 4.0; so are limits of a trigger that exclude one another."""
    with pytest.raises(ConfigError, match="at most"):
        planned(**given_options)


def test_a_start_at_its_end_is_an_empty_read() -> None:
    at = '{"a": {"0": 50, "1": 50}}'
    assert planned(startingOffsets=at, endingOffsets=at) == []
    assert planned(startingOffsets='{"a": {"0": 110, "1": -2}}', endingOffsets='{"a": {"0": -1, "1": 0}}') == []


def test_a_table_of_the_catalog_is_refused_with_what_works() -> None:
    """What Spark 4.3 gives the source for CREATE TABLE t USING strandline OPTIONS (subscribe 'a')."""
    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
        options(provider="strandline", owner="root", **{"option.subscribe": "a"})


def test_an_internal_topic_is_read_by_its_name_and_matched_by_no_pattern() -> None:
    class WithInternal(FixedOffsets):
        earliest_offsets = FixedOffsets.earliest_offsets | {TopicPartition("__offsets", 0): 0}
        latest_offsets = FixedOffsets.latest_offsets | {TopicPartition("__offsets", 0): 3}

        def topics(self) -> Mapping[str, TopicShape]:
            return {**super().topics(), "__offsets": TopicShape(1, None, internal=True)}

    own = [OffsetRange(TopicPartition("__offsets", 0), 0, 3)]
    assert plan(options(subscribe="__offsets"), WithInternal()) == own
    assert plan(options(assign='{"__offsets": [0]}'), WithInternal()) == own
    assert plan(options(subscribePattern="off|b"), WithInternal()) == []


def test_columns_hang_on_no_setting_of_sparks_and_no_schema_of_ones_own() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from strandline.spark.arrow import check_schema, read_schema

    assert "timestamp timestamp_ltz," in read_schema(True)  # whatever spark.sql.timestampType makes of TIMESTAMP
    schema = types.StructType()
    for name, kind in zip(
        ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
        ["Binary", "Binary", "String", "Integer", "Long", "Timestamp", "Integer"],
        strict=True,
    ):
        with pytest.raises(ConfigError, match="select from the columns"):
            check_schema(schema, False)
        schema = schema.add(name, getattr(types, f"{kind}Type")())
    check_schema(schema, False)
    with pytest.raises(ConfigError, match="headers array"):
        check_schema(schema, True)


def test_a_pattern_has_blanks_trimmed() -> None:
    assert [part.partition for part in planned(subscribePattern=" a ")] == [A0, A1]


def test_bootstrap_and_one_strategy_are_required() -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9092"):
        parse_options({"subscribe": "a"})
    with pytest.raises(ConfigError, match="exactly one"):
        parse_options({"kafka.bootstrap.servers": "x:1"})
    with pytest.raises(ConfigError, match="exactly one"):
        options(subscribe="a", assign='{"a": [0]}')


sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=6)


@given(sizes, st.integers(1, 40) | st.none(), st.integers(1, 5000) | st.none())
def test_splitting_covers_every_offset_once(
    lengths: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [OffsetRange(TopicPartition("t", i), 3, 3 + length) for i, length in enumerate(lengths)]
    parts = split(ranges, min_partitions, max_records)
    for whole in ranges:
        pieces = [part for part in parts if part.partition == whole.partition]
        assert [pieces[0].start, *(p.end for p in pieces)] == [*(p.start for p in pieces), whole.end]
        assert pieces[0].start == whole.start
    assert all(part.size > 0 for part in parts)
    if max_records is not None:
        assert max(part.size for part in parts) <= max_records


def test_min_partitions_splits_in_proportion() -> None:
    parts = planned(minPartitions=6)
    assert [part.partition for part in parts] == [A0] * 4 + [A1] * 2


def test_filters_shorten_the_plan_and_never_too_much() -> None:
    """Lower bounds of the time alone: timestamps need not rise. Another column's filters change nothing."""
    spark = pytest.importorskip("pyspark.sql.datasource")
    from strandline.spark.filters import narrowing

    def left(*filters: object) -> list[OffsetRange]:
        return plan(options(), FixedOffsets(), narrowing(filters))  # type: ignore[arg-type]

    def time(milliseconds: int) -> datetime:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)

    everything = [OffsetRange(A0, 10, 110), OffsetRange(A1, 0, 50)]
    assert left() == everything
    assert left(spark.EqualTo(("partition",), 1)) == [OffsetRange(A1, 0, 50)]
    assert left(spark.In(("partition",), (0, 7)), spark.EqualTo(("topic",), "a")) == [OffsetRange(A0, 10, 110)]
    assert left(spark.EqualTo(("topic",), "b")) == []
    assert left(spark.GreaterThan(("offset",), 40), spark.LessThanOrEqual(("offset",), 60)) == [
        OffsetRange(A0, 41, 61),
        OffsetRange(A1, 41, 50),
    ]
    assert left(spark.EqualTo(("offset",), 60)) == [OffsetRange(A0, 60, 61)]
    assert left(spark.GreaterThanOrEqual(("timestamp",), time(45))) == [
        OffsetRange(A0, 45, 110),
        OffsetRange(A1, 45, 50),
    ]
    assert left(spark.GreaterThan(("timestamp",), time(70))) == [OffsetRange(A0, 70, 110)]
    # -1 and -2 are words of the protocol, for the end and the start of the log; every record is later than 1969.
    assert narrowing([spark.GreaterThan(("timestamp",), time(-1)), spark.EqualTo(("partition",), 0)]).since_ms is None
    assert left(spark.LessThan(("timestamp",), time(20)), spark.EqualTo(("key",), b"x")) == everything
    assert left(spark.Not(spark.EqualTo(("partition",), 1))) == everything
