"""Where Spark looks: it imports every module named `pyspark_*` and registers its `DefaultSource` under its name."""

from strandline.spark.source import StrandlineDataSource as DefaultSource

__all__ = ["DefaultSource"]
