"""A job with faults: copies a topic to another one by a streaming query, and ends where the log ends now.

python -m tests.spark.faulty_job BOOTSTRAP SOURCE TARGET CHECKPOINT COUNT AT WAY [master and other settings as k=v]
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.conftest import SETTINGS
from tests.spark.faulty import FORMAT, FaultyDataSource


def main() -> None:
    bootstrap, source, target, checkpoint, count, at, way, *more = sys.argv[1:]
    given = dict(pair.split("=", 1) for pair in more)
    settings = SETTINGS | {key: value for key, value in given.items() if key.startswith("spark.")}
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FaultyDataSource)
    reader = spark.readStream.format("strandline").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
    for key, value in given.items():
        if key.startswith("source."):
            reader = reader.option(key.removeprefix("source."), value)
    frame = reader.load().select("key", "value")
    if "repartition" in given:
        frame = frame.repartition(int(given["repartition"]), "value")
    if "slow" in given:
        frame = frame.mapInArrow(slowly(given["slow"]), frame.schema)
    writer = frame.writeStream.format(FORMAT).option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer = writer.option("checkpointLocation", checkpoint)
    for name, value in (("count", count), ("at", at), ("way", way), ("driver", str(os.getpgid(0)))):
        writer = writer.option(f"fault.{name}", value)
    for key, value in given.items():
        if key.startswith("sink."):
            writer = writer.option(key.removeprefix("sink."), value)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


def slowly(directory: str) -> Any:
    """The first attempt at task 0 waits in the middle of its rows until the test lets it go."""

    def pass_on(batches: Any) -> Any:
        from pathlib import Path
        from threading import Event

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        slow = context.partitionId() == 0 and context.attemptNumber() == 0
        passed = 0
        for batch in batches:
            for first in range(0, batch.num_rows, 5):
                if slow and passed == 60:
                    Path(directory, "waits").touch()
                    while not Path(directory, "go").exists():
                        Event().wait(0.1)
                yield batch.slice(first, 5)  # the last one stays in a buffer of this process
                passed += 5

    return pass_on


if __name__ == "__main__":
    main()
