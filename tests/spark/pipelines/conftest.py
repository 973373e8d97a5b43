"""One Spark session, and the whole data set as a log in files: partition and offset as a topic would give them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline.spark.pipelines import dataset
from strandline.spark.pipelines.feed import PARTITIONS, partition_of

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

BATCHES = 8

COLUMNS = "topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, value STRING"


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    from strandline.spark.pipelines.session import local_session

    session = local_session()
    yield session
    session.stop()


@dataclass(frozen=True)
class FileLog:
    """The events as files, one for each micro-batch: `format("json")` stands for the source alone."""

    directory: Path
    events: list[dataset.Event]

    def batch(self, spark: Any) -> Any:
        return self._records(spark.read.schema(COLUMNS).json(str(self.directory)))

    def stream(self, spark: Any) -> Any:
        return self._records(spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(self.directory)))

    def micro_batches(self) -> list[list[dataset.Event]]:
        size = -(-len(self.events) // BATCHES)
        return [self.events[at : at + size] for at in range(0, len(self.events), size)]

    @staticmethod
    def _records(rows: Any) -> Any:
        from pyspark.sql import functions as f

        timed = rows.withColumn("timestamp", f.timestamp_millis("timestamp_ms")).drop("timestamp_ms")
        return timed.withColumn("value", f.col("value").cast("binary"))


def _write(directory: Path, topic: str, log: FileLog) -> FileLog:
    directory.mkdir()
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    for number, events in enumerate(log.micro_batches()):
        path = directory / f"{number:02d}.json"
        with path.open("w") as out:
            for event in events:
                partition = partition_of(event.key, PARTITIONS)
                row = {
                    "topic": topic,
                    "partition": partition,
                    "offset": offsets[partition],
                    "timestamp_ms": event.arrival_ms,
                    "value": event.value.decode(),
                }
                offsets[partition] += 1
                out.write(json.dumps(row) + "\n")
        os.utime(path, (number + 1, number + 1))  # the order in which a file stream takes them
    return log


@pytest.fixture(scope="package")
def reports() -> list[dataset.Event]:
    return dataset.flight_events(dataset.data_directory())


@pytest.fixture(scope="package")
def flights(tmp_path_factory: pytest.TempPathFactory, reports: list[dataset.Event]) -> FileLog:
    directory = tmp_path_factory.mktemp("log") / "flights"
    return _write(directory, "flights", FileLog(directory, reports))


@pytest.fixture(scope="package")
def sky(tmp_path_factory: pytest.TempPathFactory) -> FileLog:
    directory = tmp_path_factory.mktemp("log") / "weather"
    return _write(directory, "weather", FileLog(directory, dataset.weather_events(dataset.data_directory())))
