"""Where Spark looks: it imports every module named `pyspark_*` and registers its `DefaultSource` under its name.

A job imports this module before it makes its session: then Spark looks with the job's own interpreter.
"""

from strandline.spark.interpreter import use_this_python
from strandline.spark.source import StrandlineDataSource as DefaultSource

__all__ = ["DefaultSource"]

use_this_python()
