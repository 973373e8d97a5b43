"""Defects of offsets and of data loss that reviews found in another Python Kafka source, each held against this one.

The reviews: lakehq/sail, pull request 2267 (July and September 2026). Each test is named after what was wrong there;
docs/spark.md lists them. Below them, what Spark's own source got wrong once and had to mend.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client import Admin, Producer
from strandline.client.range_reader import AsyncRangeReader
from strandline.client.types import ListedOffset
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.spark import lookup
from strandline.spark.planner import DataLossError, OffsetRange, TopicShape, select_partitions
from strandline.spark.sink_options import LEDGER_TOPIC
from tests.acceptance.topics import create
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play
from tests.spark.test_planning import options, planned
from tests.spark.test_stream_planning import A0, A1, Log, planner, through_json, two
from tests.spark.test_stream_planning import options as stream_options

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from strandline.spark.options import parse_options
from strandline.spark.reader import RangePartition
from strandline.spark.source import BatchReader
from tests.spark.test_stream_reader import SCHEMA


def filled(cluster: DevCluster, topic: str, count: int) -> TopicPartition:
    """A topic of one partition that holds the numbers from 0 at their own offsets, in batches of about ten."""
    create(cluster.bootstrap, topic, 1, 3)
    with Producer(cluster.bootstrap, batch_size=160) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)
    return TopicPartition(topic, 0)


def trim(cluster: DevCluster, partition: TopicPartition, before: int) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records({partition: before})


def batch(cluster: DevCluster, topic: str, **more: object) -> BatchReader:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic} | more
    return BatchReader(parse_options({key: str(value) for key, value in given.items()}), SCHEMA)


def offsets(reader: BatchReader, tasks: Iterable[Any]) -> list[int]:
    """What tasks read, each on a copy of the reader as Spark sends it to the executors."""
    copy = pickle.loads(pickle.dumps(reader))
    found = [number for task in tasks for rows in copy.read(task) for number in rows.column("offset").to_pylist()]
    assert found == sorted(set(found)), "an offset twice, or out of order"
    return found


def task(partition: TopicPartition, start: int, end: int) -> RangePartition:
    return RangePartition(OffsetRange(partition, start, end))


# -- the reviews' findings --------------------------------------------------------------------------------------------


def test_an_accepted_loss_rewinds_the_read_and_repeats_rows(cluster: DevCluster) -> None:
    """There a read past the end began anew at the earliest record. Nothing outside of the range is ever read."""
    partition = filled(cluster, "defect-rewind", 40)
    lenient = batch(cluster, "defect-rewind", failOnDataLoss="false")
    assert offsets(lenient, [task(partition, 50, 60)]) == []
    with pytest.raises(DataLossError) as caught:
        offsets(batch(cluster, "defect-rewind"), [task(partition, 50, 60)])
    assert (caught.value.wanted, caught.value.earliest, caught.value.latest) == (50, 0, 40)
    trim(cluster, partition, 25)
    assert offsets(lenient, [task(partition, 5, 10)]) == []
    assert offsets(lenient, [task(partition, 5, 30)]) == list(range(25, 30))


def test_records_before_a_loss_are_dropped_with_it(cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found here on the way: rows that were fetched and not yet handed out went with the error behind them."""
    monkeypatch.setattr("strandline.client.range_reader._SHORT_LOG_GRACE_MS", 0)
    partition = filled(cluster, "defect-short", 40)
    lenient = batch(cluster, "defect-short", failOnDataLoss="false")
    assert offsets(lenient, [task(partition, 10, 60)]) == list(range(10, 40))
    with pytest.raises(DataLossError):
        offsets(batch(cluster, "defect-short"), [task(partition, 10, 60)])


@pytest.mark.parametrize("accepted", [False, True])
def test_retention_under_a_running_read_goes_unnoticed(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """There a gap was taken for compaction. A start of the log that has passed the read is told, or left out whole."""
    monkeypatch.setattr("strandline.spark.reader.ROWS_PER_ARROW_BATCH", 20)
    topic = f"defect-retention-{accepted}".lower()
    partition = filled(cluster, topic, 1000)
    more = {"kafka.max.partition.fetch.bytes": 400, "failOnDataLoss": str(not accepted).lower()}
    batches = pickle.loads(pickle.dumps(batch(cluster, topic, **more))).read(task(partition, 0, 1000))
    seen = next(batches).column("offset").to_pylist()
    trim(cluster, partition, 900)
    if accepted:
        seen += [number for rows in batches for number in rows.column("offset").to_pylist()]
        assert seen[-100:] == list(range(900, 1000))
        assert len(seen) < 1000
    else:
        with pytest.raises(DataLossError) as caught:
            seen.extend(number for rows in batches for number in rows.column("offset").to_pylist())
        assert (caught.value.earliest, caught.value.latest) == (900, 1000)
        assert seen == list(range(caught.value.wanted)), "what was fetched before the loss was handed out"
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(("level", "asked_so"), [("read_committed", True), ("read_uncommitted", False)])
def test_the_plan_ends_at_the_high_watermark_where_committed_data_alone_are_read(
    monkeypatch: pytest.MonkeyPatch, level: str, asked_so: bool
) -> None:
    """There the tasks waited for records of an open transaction. The plan asks as the tasks read; the real thing, with
    a transaction that stays open, stands in test_read_committed."""
    asked: list[bool] = []

    class Asked:
        def __init__(self, bootstrap: str, **settings: object) -> None:
            assert "isolation.level" not in settings

        def list_offsets(self, wanted: dict[Any, int], *, read_committed: bool) -> dict[Any, ListedOffset]:
            asked.append(read_committed)
            return dict.fromkeys(wanted, ListedOffset(7, -1, -1))

    monkeypatch.setattr(lookup, "Admin", Asked)
    offsets_of = lookup.ClusterOffsets("x:1", {"isolation.level": level})
    assert offsets_of.latest([A0]) == offsets_of.earliest([A0]) == offsets_of.for_timestamps({A0: 5}) == {A0: 7}
    assert asked == [asked_so] * 3


def test_an_end_seen_too_early_ends_the_read() -> None:
    """There the end of a partition as it once was ended the read of a range that went on behind it. A log that seems
    to end before the range is asked again for longer than a leader may wait for a silent follower (30 s)."""
    where = TopicPartition("t", 0)

    async def scenario(scripted: ScriptedCluster, ports: Ports) -> None:
        from tests.client.test_consumer_faults import fill

        await fill(ports, 100)
        reader = AsyncRangeReader(BOOTSTRAP, clock=ports.clock, rng=ports.rng)
        seen: list[int] = []

        async def read() -> None:
            async for batches in reader.answers(where, 0, 120):
                seen.extend(batch.next_offset for batch in batches)

        under_way = asyncio.get_running_loop().create_task(read())
        await asyncio.sleep(31)
        assert not under_way.done()
        assert seen[-1] == 100
        await fill(ports, 20)
        await under_way
        assert seen[-1] == 120
        await reader.close()

    play(scenario, {"t": 1})


def test_ranges_of_a_split_partition_are_inverted_by_retention(cluster: DevCluster) -> None:
    """There tasks whose whole range was deleted failed on a start past their end. They are empty, or say what is gone;
    the others are whole."""
    partition = filled(cluster, "defect-split", 40)
    lenient = batch(cluster, "defect-split", maxRecordsPerPartition=10, failOnDataLoss="false")
    tasks = lenient.partitions()
    strict = batch(cluster, "defect-split", maxRecordsPerPartition=10)
    assert len(tasks) == len(strict.partitions()) == 4
    trim(cluster, partition, 25)
    assert [len(offsets(lenient, [each])) for each in tasks] == [0, 0, 5, 10]
    for each in tasks[:3]:
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            offsets(strict, [each])
    assert offsets(strict, tasks[3:]) == list(range(30, 40))


def test_a_read_that_stalls_ends_without_its_rows() -> None:
    """There silence ended a read, or held it for ever. It ends with an error that names the time and the address."""
    client = {"kafka.default.api.timeout.ms": "400", "kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    reader = BatchReader(parse_options(client | {"failOnDataLoss": "false"}), SCHEMA)
    with pytest.raises(StrandlineError, match=r"127\.0\.0\.1:1"):
        offsets(reader, [task(TopicPartition("t", 0), 0, 10)])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("minPartitions", 2**31),
        ("maxRecordsPerPartition", 2**63),
        ("maxOffsetsPerTrigger", 2**63),
        ("startingOffsets", '{"a": {"0": 9223372036854775808, "1": 0}}'),
        ("startingOffsets", '{"a": {"0": 1.5, "1": 0}}'),
        ("startingTimestamp", 2**63),
    ],
)
def test_numbers_wider_than_the_wire_are_taken(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(**{key: value})
    assert caught.value.key == key


def test_many_partitions_asked_for_make_no_task_without_records() -> None:
    assert len(planned(minPartitions=2**31 - 1)) == 150


def test_a_pattern_must_match_the_whole_name() -> None:
    """Spark finds it anywhere in the name: who comes from Spark's own source would miss topics without a word."""
    shapes = dict.fromkeys(("orders", "orders-eu", "my-orders", "other", LEDGER_TOPIC), TopicShape(1))

    def chosen(pattern: str) -> list[str]:
        return [partition.topic for partition in select_partitions(options(subscribePattern=pattern), shapes)]

    assert chosen("orders") == ["my-orders", "orders", "orders-eu"]
    assert chosen("^orders$") == ["orders"]
    assert chosen("^(orders|other)$") == ["orders", "other"]
    assert LEDGER_TOPIC not in chosen(".*"), "a query that writes would read its own ledger for ever"


@pytest.mark.parametrize("assignment", ["{}", '{"a": []}', '{"a": [-1]}', '{"a": [7]}', '{"nosuch": [0]}'])
def test_an_assignment_of_nothing_reads_nothing(assignment: str) -> None:
    """Spark reads an empty frame then; here it is an error in either mode, as is each partition that is not there."""
    with pytest.raises(ConfigError):
        planned(assign=assignment)
    with pytest.raises(ConfigError):
        planner(two(), assign=assignment).initial()


@pytest.mark.parametrize("key", ["auto.offset.reset", "enable.auto.commit", "auto_offset_reset"])
def test_settings_of_the_consumer_set_the_plan_aside(key: str) -> None:
    """There kafka.auto.offset.reset moved a planned start, and enable.auto.commit moved a group's offsets."""
    for parse in (options, stream_options):
        with pytest.raises(ConfigError, match="nothing here") as caught:
            parse(**{f"kafka.{key}": "earliest"})
        assert caught.value.key == f"kafka.{key}"


def test_a_setting_that_does_not_exist_fails_on_the_driver() -> None:
    with pytest.raises(ConfigError, match=r"did you mean fetch\.max\.bytes"):
        options(**{"kafka.fetch.max.byte": 1})


@pytest.mark.parametrize("key", ["startingOffsets", "startingOffsetsByTimestamp"])
@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ('{"a": {"0": 20}}', "add a-1"),
        ('{"a": {"0": 20, "1": 20, "2": 20}}', "leave out a-2"),
        ('{"a": {"0": 20, "1": 20}, "b": {"0": 7}}', "leave out b-0"),
        ('{"a": {"0": 20, "0": 30, "1": 20}}', "each partition once"),
        ('{"a": {"0": 20, "00": 30, "1": 20}}', "each partition once"),
    ],
)
def test_offsets_of_other_partitions_are_passed_over(key: str, numbers: str, says: str) -> None:
    """There a partition that was left out was read from a watermark, and one too many was dropped."""
    with pytest.raises(ConfigError, match=says):
        planned(**{key: numbers})
    with pytest.raises(ConfigError, match=says):
        planned(**{key.replace("starting", "ending"): numbers})
    with pytest.raises(ConfigError, match=says):
        planner(two(), **{key: numbers}).initial()


# -- what Spark's own source had to mend ------------------------------------------------------------------------------


def test_available_now_cannot_repeat_a_batch_once_partitions_came() -> None:
    """SPARK-53560: a batch that was planned before partitions came is repeated as planned, and the next takes them."""
    log = Log({A0: (0, 100)})
    first = planner(log)
    start = first.initial()
    end = through_json(first.next_end(start, unlimited=True))
    log.bounds[A1] = (0, 5)  # between the plan and its commit; the driver is gone
    again = planner(log)
    again.stop_at_present()
    assert again.ranges(start, end) == [OffsetRange(A0, 0, 100, "id-a")]
    last = again.next_end(end, unlimited=True)
    assert again.ranges(end, last) == [OffsetRange(A1, 0, 5, "id-a")]
    assert again.next_end(last, unlimited=True) is last


def test_available_now_reads_what_comes_after_its_start() -> None:
    """Nor partitions and topics that come while it runs: it would not end on a topic that grows."""
    log = two()
    running = planner(log)
    running.stop_at_present()
    start = running.initial()
    log.bounds |= {A0: (0, 130), TopicPartition("a", 2): (0, 9)}
    end = running.next_end(start, unlimited=True)
    assert end.offsets == {A0: 100, A1: 50}
    assert running.next_end(end, unlimited=True) is end


def test_a_checkpoint_loses_precision_in_json() -> None:
    """Offsets past 2**53 stay what they are on the way through the checkpoint."""
    log = Log({A0: (2**60, 2**60 + 3)})
    plan = planner(log)
    start = through_json(plan.initial())
    end = through_json(plan.next_end(start, unlimited=True))
    assert plan.ranges(start, end) == [OffsetRange(A0, 2**60, 2**60 + 3, "id-a")]


def unread(parts: Sequence[OffsetRange], whole: Sequence[OffsetRange]) -> int:
    return sum(each.size for each in whole) - sum(each.size for each in parts)


@pytest.mark.parametrize("pieces", [2, 3, 7, 11, 83])
def test_splitting_drops_offsets_by_rounding(pieces: int) -> None:
    """SPARK-28489; test_planning has it for any sizes."""
    log = Log({A0: (0, 255), A1: (3, 10_000_000_000_000_001)})
    whole = planner(log)
    start = whole.initial()
    end = whole.next_end(start, unlimited=True)
    assert unread(planner(log, minPartitions=pieces).ranges(start, end), whole.ranges(start, end)) == 0
    assert json.loads(json.dumps(end.to_json())) == end.to_json()
