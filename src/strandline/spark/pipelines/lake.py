"""(b) The log as a Parquet lake: exactly once by offset ranges, restartable, compacted.

The lake and its commits are those of `strandline.lake`: `strandline lake export` goes on where a query has ended, and a
query where an export has. The lake knows how far it is by itself: a batch that is run again after a crash writes only
the rows past that point, a query whose checkpoint is lost starts there.

Limits: a lake in a directory, and one query at a time (a second one fails at its commit).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.client import Admin
from strandline.lake.commits import DATA, Commit, LakeDamaged, State, topic_spans
from strandline.lake.commits import Lake as Commits
from strandline.log.object_store import ATTEMPTS
from strandline.spark.pipelines import frames
from strandline.spark.pipelines.checkpoints import Ranges, batch_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EARLIEST = -2
"""In startingOffsets: the first record there is."""

RECORD = (
    "topic", "partition", "offset", "timestamp", "key", "CAST(headers AS ARRAY<STRUCT<name: STRING, value: BINARY>>)",
    "value",
)  # fmt: skip
"""The columns of `strandline lake export`, of Spark's own."""


class Lake(Commits):
    """A lake in a directory, written and read by Spark.

    Args:
        topic_ids: topic -> its id, where it is known: a lake of another topic of that name is refused.
    """

    def __init__(self, directory: Path, topic_ids: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self.directory = directory
        self.data = directory / DATA
        self.topic_ids = dict(topic_ids or {})

    def append(
        self, rows: DataFrame, ranges: Ranges, attempt: int, before_commit: Callable[[], None] = lambda: None
    ) -> Commit | None:
        """Write the rows of these ranges that are past the lake's ends, and commit; None where all are there already.

        Args:
            rows: with columns topic, partition, offset, date.
            attempt: names the files.
            before_commit: called when the files are written and nothing is committed (tests crash here).

        Raises:
            LakeDamaged: the ranges begin past the lake's ends: what lies between would never come.
            LakeTaken: another writer was faster.
        """
        from pyspark.sql import functions as f

        state = self.state()
        fresh: dict[tuple[str, int], tuple[int, int]] = {}
        for (topic, partition), (start, end) in sorted(ranges.items()):
            known = state.ends.get((topic, partition), start)
            if start > known:
                raise LakeDamaged(
                    f"the query goes on at {topic}-{partition}@{start}, the lake ends at {known}: "
                    "delete the query's checkpoint, then the lake's own ends say where to begin"
                )
            if end > known:
                fresh[topic, partition] = (known, end)
            rows = rows.where(
                ~((f.col("topic") == topic) & (f.col("partition") == partition)) | (f.col("offset") >= known)
            )
        if not fresh:
            return None
        add = self._write(rows.repartition(2, "date"), f"{state.next_number:08d}-{attempt}")
        before_commit()
        return self.commit(Commit(-1, topic_spans(fresh), add, topic_ids=self.topic_ids), state)

    def read(self, spark: SparkSession) -> DataFrame:
        """Exactly the files that count."""
        reader = spark.read.option("basePath", str(self.data))
        return reader.parquet(*[str(self.data / name) for name in sorted(self.state().files)])

    def starting_offsets(self, topic: str, partitions: int) -> str:
        """Option startingOffsets for a query without a checkpoint."""
        ends = self.state().ends
        return json.dumps({topic: {str(number): ends.get((topic, number), EARLIEST) for number in range(partitions)}})

    def _write(self, rows: DataFrame, attempt: str) -> dict[str, int]:
        """Write the rows as Parquet into a directory of this attempt, then move the files to their dates."""
        from pyarrow import parquet

        staging = self.directory / ATTEMPTS / attempt
        rows.write.mode("overwrite").partitionBy("date").parquet(str(staging))
        added = {}
        for path in sorted(staging.rglob("*.parquet")):
            name = f"{path.parent.name}/{attempt}-{path.name.split('-')[1]}.parquet"
            target = self.data / name
            target.parent.mkdir(parents=True, exist_ok=True)
            added[name] = parquet.read_metadata(path).num_rows
            path.replace(target)
        shutil.rmtree(staging)
        return added


def start(lake: Lake, rows: DataFrame, checkpoint: Path, before_commit: Callable[[], None] = lambda: None) -> Any:
    """The query that brings the lake up to the topic's present end.

    Args:
        rows: of a stream, with `date`; without a checkpoint it has to begin at `lake.starting_offsets`.
    """

    def append(rows: DataFrame, batch: int) -> None:
        lake.append(rows, batch_ranges(checkpoint, batch), batch, before_commit)

    writer = rows.writeStream.foreachBatch(append).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def keep_topic(
    spark: SparkSession, bootstrap: str, topic: str, directory: Path, *, settings: Mapping[str, str], per_batch: int
) -> State:
    """Bring a lake of any topic up to its present end; what the lake has then. Nothing else is kept.

    Args:
        settings: of the clients, by Kafka's names.
        per_batch: records a micro-batch at most.

    Raises:
        LakeDamaged: the lake has another topic of that name.
        UnknownTopic, KafkaError, ClientTimeout.
    """
    with Admin(bootstrap, **{name.replace(".", "_"): value for name, value in settings.items()}) as admin:  # type: ignore[arg-type]
        [told] = admin.describe_topics([topic])
    lake = Lake(directory, {topic: str(told.topic_id)} if told.topic_id else {})
    lake.state().check_topics(lake.topic_ids)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as Arrow writes them, not INT96
    reader = spark.readStream.format("strandline").option("kafka.bootstrap.servers", bootstrap)
    for name, value in settings.items():
        reader = reader.option(f"kafka.{name}", value)
    starting = lake.starting_offsets(topic, len(told.partitions))
    reader = reader.option("subscribe", topic).option("startingOffsets", starting).option("includeHeaders", "true")
    records = reader.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", per_batch).load()
    with tempfile.TemporaryDirectory(prefix="strandline-lake-") as checkpoint:
        start(lake, of_any(records), Path(checkpoint)).awaitTermination()
    return lake.state()


def of_flights(records: DataFrame) -> DataFrame:
    """The rows of flights, by the day of departure, in UTC."""
    from pyspark.sql import functions as f

    return frames.flights(records).withColumn("date", f.coalesce(f.to_date("departed"), f.to_date("timestamp")))


def of_any(records: DataFrame) -> DataFrame:
    """The rows of any topic as an export has them, by the day of the record's time, in UTC."""
    return records.selectExpr(*RECORD).selectExpr("*", "to_date(timestamp) AS date")
