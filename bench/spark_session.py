"""One Spark (local[2]) that reads and writes at a word: a process of its own, so that two can take turns.

It is given, as JSON, the source or sink, the brokers, and how many rows there are of each size. A few queries warm the
JVM and the Python workers up, then it says "ready"; for each line of its input it does one round, and prints the
seconds of each query as a line of JSON: {"read batch 100": 0.7, ...}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from bench.spark import SMALL, topic_of

SOCKETS = ("spark.python.unix.domain.socket.enabled", "true")
"""What docs/spark.md advises for short tasks."""

_PARTITIONS = 6


class Session:
    """The queries of one source and sink."""

    def __init__(self, source: str, bootstrap: str, jars: str, counts: list[tuple[int, int]], folder: str) -> None:
        self._source = source
        self._bootstrap = bootstrap
        self._counts = {0: SMALL, **dict(counts)}
        self._spark = _session(jars)
        self._rows = Path(folder)

    def prepare(self) -> None:
        """Warm up; rows to write lie in Parquet files. Raises ValueError: a read did not see every row."""
        self.read_batch(0)
        self.read_stream(0)
        for size, count in self._counts.items():
            found = self._load(self._spark.read, size).count()
            if found != count:
                raise ValueError(f"a batch of {self._source} has {found} of {count} rows")
            self._make_rows(size, count)
        self.write_batch(0)
        self.write_stream(0)

    def round(self, what: str) -> dict[str, float]:
        """Seconds of each query of "read" or "write", once. Raises ValueError: a stream has not seen every row."""
        seconds = {}
        for size in self._counts:
            for how in ("batch", "stream"):
                began = time.perf_counter()
                getattr(self, f"{what}_{how}")(size)
                seconds[f"{what} {how} {size}"] = time.perf_counter() - began
        return seconds

    def read_batch(self, size: int) -> None:
        """Every row, thrown away."""
        self._load(self._spark.read, size).write.format("noop").mode("overwrite").save()

    def read_stream(self, size: int) -> None:
        """The same in a query with Trigger.AvailableNow."""
        self._run(self._load(self._spark.readStream, size).writeStream.format("noop"), size)

    def write_batch(self, size: int) -> None:
        """Every row of the files, into a topic."""
        self._into(self._frame(self._spark.read, size).write.mode("append"), size).save()

    def write_stream(self, size: int) -> None:
        """The same in a query with Trigger.AvailableNow."""
        self._run(self._into(self._frame(self._spark.readStream, size).writeStream, size), size)

    def close(self) -> None:
        """End the JVM."""
        self._spark.stop()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _load(self, reader: Any, size: int) -> Any:
        named = reader.format(self._source).option("kafka.bootstrap.servers", self._bootstrap)
        return named.option("subscribe", topic_of(size)).option("startingOffsets", "earliest").load()

    def _run(self, writer: Any, size: int) -> None:
        with tempfile.TemporaryDirectory(prefix="strandline-bench-spark-") as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            found = sum(progress.numInputRows for progress in query.recentProgress)
        if found != self._counts[size]:
            raise ValueError(f"a stream of {self._source} has {found} of {self._counts[size]} rows")

    def _make_rows(self, size: int, count: int) -> None:
        if self._folder(size).exists():
            return
        number = f.lpad(f.hex("id"), 16, "0")
        value = f.unhex(f.concat(number, f.lit("5a" * max(0, size - 8))))
        rows = self._spark.range(0, count, 1, _PARTITIONS).select(value.alias("value"))
        rows.write.parquet(str(self._folder(size)))

    def _frame(self, reader: Any, size: int) -> Any:
        return reader.schema("value binary").parquet(str(self._folder(size)))

    def _folder(self, size: int) -> Path:
        return self._rows / str(size)

    def _into(self, writer: Any, size: int) -> Any:
        named = writer.format(self._source).option("kafka.bootstrap.servers", self._bootstrap)
        return named.option("topic", f"{topic_of(size)}-written")


def _session(jars: str) -> Any:
    from pyspark.sql import SparkSession

    import pyspark_strandline  # noqa: F401 (Spark's Python processes are started as docs/spark.md says)
    from strandline.spark.pipelines.session import SETTINGS

    builder = SparkSession.builder.master("local[2]").appName("strandline bench").config(*SOCKETS)
    settings = {**SETTINGS, **({"spark.jars": jars} if jars else {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    """Prepare, then a round for each line of the input."""
    session = Session(**json.loads(sys.argv[1]))
    session.prepare()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(session.round(line.strip())), flush=True)
    session.close()


if __name__ == "__main__":
    main()
