"""(d) A bug is fixed: a second run from the beginning beside the first, and the switch (blue and green).

The log keeps what happened, so a wrong result is not repaired but computed anew:

1. Blue counts delays from the clock times of the plan and of the departure. It takes 05:59 and 06:03 for the numbers
   559 and 603: 44 minutes.
2. Green computes minutes, also past midnight. It starts at offset 0 with a checkpoint and a topic of its own, while
   blue goes on.
3. When green's offsets have reached blue's in every partition, a record in the topic `live` says that green is read
   from now on, and at which offsets. Who reads results looks there first. Blue can be stopped, or taken back.

Results are daily totals per airport in a compacted topic, keyed by airport and day: the last record of a key stands.
Days never close here, so nothing is late; the ids of all flights are kept for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.client import Consumer, Producer
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.json_text import read_json
from strandline.spark.pipelines import frames
from strandline.spark.pipelines.feed import ends, ensure_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLUE = "blue"
GREEN = "green"
RESULT = "origin STRING, day DATE, flights BIGINT, departed BIGINT, delay_minutes BIGINT"

EARLIEST_MINUTES = 60
"""Maximum minutes by which a flight leaves early (the earliest in the data: 43)."""


class NotCaughtUp(StrandlineError):
    """The version that should be read has not processed what the present one has."""


@dataclass(frozen=True)
class Live:
    """The version of the results that readers should use."""

    version: str
    offsets: Mapping[int, int]
    """Partition -> offset that the version had reached when it was chosen."""


def delay_of(version: str) -> Column:
    """Minutes between plan and departure as this version computes them; null for a cancelled flight."""
    from pyspark.sql import functions as f

    plan, left = f.col("sched_dep_time"), f.col("dep_time")
    if version == BLUE:
        return left - plan

    def minutes(clock: Column) -> Column:
        return f.floor(clock / 100) * 60 + clock % 100

    late = minutes(left) - minutes(plan)
    return f.pmod(late + EARLIEST_MINUTES, f.lit(24 * 60)) - EARLIEST_MINUTES


def daily(flights: DataFrame, version: str) -> DataFrame:
    """Totals per airport and scheduled day, of flights that are there once; the columns are `RESULT`'s."""
    from pyspark.sql import functions as f

    day = f.to_date("scheduled_hour").alias("day")
    return (
        flights.withColumn("minutes", delay_of(version))
        .groupBy("origin", day)
        .agg(
            f.count(f.lit(1)).alias("flights"),
            f.count("minutes").alias("departed"),
            f.coalesce(f.sum("minutes"), f.lit(0)).cast("bigint").alias("delay_minutes"),
        )
    )


def totals(records: DataFrame, version: str) -> DataFrame:
    """From the records of the topic to daily totals."""
    readable = frames.readable(frames.flights(records), "flights")
    return daily(readable.dropDuplicates(["id"]), version)


def start(records: DataFrame, version: str, bootstrap: str, topic: str, checkpoint: Path) -> Any:
    """The query of one version, up to the present end of the log."""
    return frames.start_revisions(totals(records, version), bootstrap, topic, checkpoint, "origin", "day")


def results(records: DataFrame) -> DataFrame:
    """Current results in a version's topic."""
    return frames.latest_by_key(records, RESULT, "origin", "day")


def switch(bootstrap: str, topic: str, to: str, reached: Mapping[int, int], needed: Mapping[int, int]) -> Live:
    """Say in the topic that another version is read from now on.

    Args:
        reached: how far that version has come, each partition's next offset.
        needed: how far the present version has come.

    Raises:
        NotCaughtUp: it is behind in some partition.
    """
    behind = {number: offset - reached.get(number, 0) for number, offset in needed.items()}
    behind = {number: records for number, records in behind.items() if records > 0}
    if behind:
        raise NotCaughtUp(f"{to} is behind by {sum(behind.values())} records, in partitions {sorted(behind)}")
    ensure_topic(bootstrap, topic, 1, **{"cleanup.policy": "compact"})
    value = {"version": to, "offsets": {str(number): offset for number, offset in sorted(reached.items())}}
    with Producer(bootstrap, acks="all") as producer:
        future = producer.send(topic, json.dumps(value).encode(), key=b"live")
        producer.flush()
        future.result()
    return Live(to, dict(reached))


def live(bootstrap: str, topic: str) -> Live | None:
    """The version that readers should use; None before the first switch."""
    [end] = ends(bootstrap, topic).values()
    if end == 0:
        return None
    partition = TopicPartition(topic, 0)
    with Consumer(bootstrap) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, end - 1)
        for record in consumer:
            value = read_json(record.value or b"{}")
            return Live(value["version"], {int(number): offset for number, offset in value["offsets"].items()})
    return None
