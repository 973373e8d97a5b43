"""The Spark session that the commands run in: this machine, no web page, times in UTC."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.proto.errors import StrandlineError
from strandline.proto.extras import installing
from strandline.spark.interpreter import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"

SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Two cores: each shuffle partition of a stateful operator costs a task and a file in every batch.
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The progress of every batch is added up at the end, not of the last hundred alone.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}


class SparkMissing(StrandlineError):
    """Spark cannot run here; the message says what to install."""


def ensure_spark() -> None:
    """Make sure that PySpark, pyarrow and a Java are here.

    Raises:
        SparkMissing: says what to install.
    """
    for library in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(library) is None:
            raise SparkMissing(f"{library} is not installed: {installing('spark')}")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise SparkMissing("Java is not installed: apt-get install openjdk-17-jre-headless (any Java 17 or 21)")


def local_session(cores: int = 2) -> SparkSession:
    """A session on `cores` cores of this machine. Raises SparkMissing."""
    ensure_spark()
    # Pandas may be there for others; these pipelines do not use it.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    from pyspark.sql import SparkSession

    use_this_python()
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.master(f"local[{cores}]").appName("strandline pipelines")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
