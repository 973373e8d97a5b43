"""What each of Spark's Python processes imports: a new one is started for every streaming query, and waited for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")

OPTIONS = "{'kafka.bootstrap.servers': '127.0.0.1:1', 'subscribe': 'a'}"

SCHEMA = f"""
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType, TimestampType
from pyspark_strandline import DefaultSource
source = DefaultSource({OPTIONS})
schema = StructType().add("key", BinaryType()).add("value", BinaryType()).add("topic", StringType())
schema = schema.add("partition", IntegerType()).add("offset", LongType()).add("timestamp", TimestampType())
assert source.schema().startswith("key binary, ")
source.streamReader(schema.add("timestampType", IntegerType()))
"""

PLAN = """
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.spark.lookup import ClusterOffsets
ClusterOffsets("127.0.0.1:1", {}).close()
schema.request(Api.API_VERSIONS, 3).encode({"client_software_name": "a", "client_software_version": "1"})
"""

TASK = """
from strandline.client.range_reader import RangeReader
from strandline.spark.reader import read_range
RangeReader("127.0.0.1:1").close()
"""

CLIENTS = " ".join(
    (
        "asyncio.events strandline.client.aio.admin strandline.client.range_reader",
        "strandline.client.aio.producer kio crc32c",
    )
)


def left_out(program: str, *names: str) -> None:
    """Run a program in a process of its own; it must not have imported these modules."""
    tell = f"import sys; print(sorted(set({names!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{tell}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_options_and_columns_need_no_client() -> None:
    left_out(SCHEMA, "strandline.spark.sink", "strandline.spark.lookup", *CLIENTS.split())


def test_a_plan_needs_no_records_and_no_producer() -> None:
    """Nor hypothesis, which kio would import wherever it is installed."""
    left_out(PLAN, "strandline.client.range_reader", "strandline.client.aio.producer", "crc32c", "hypothesis")


def test_a_task_needs_no_admin_and_no_producer() -> None:
    left_out(TASK, "strandline.client.aio.admin", "strandline.client.aio.producer")


def test_a_spark_that_is_too_old_is_told_so() -> None:
    """Part of the data source API is missing there: taken out here, for what is installed has it."""
    hidden = "from pyspark.sql.streaming import datasource as api; del api.ReadMaxRows\nimport pyspark_strandline"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs Spark 4.2 or later, and this is" in done.stderr.splitlines()[-1], done.stderr
