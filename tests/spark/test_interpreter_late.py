"""DATA_SOURCE_NOT_FOUND, and that what is said about it helps: docs/spark.md, "The interpreter"."""

from __future__ import annotations

import shutil
import sys

import pytest

from strandline.cluster.node.dev import DevCluster
from tests.spark.test_interpreter import JOB, elsewhere, run, topic

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)

__all__ = ["elsewhere", "topic"]  # fixtures


def test_without_the_import_spark_finds_nothing_and_the_advice_helps(
    cluster: DevCluster, topic: str, elsewhere: dict[str, str]
) -> None:
    job = JOB.format(first="", then="import pyspark_strandline")
    done = run(elsewhere, job, cluster.bootstrap, topic)
    assert "DATA_SOURCE_NOT_FOUND" in done.stderr, done.stdout + done.stderr[-3000:]
    advice = f"set PYSPARK_PYTHON={sys.executable} in the environment"
    assert advice in done.stderr
    done = run(elsewhere | {"PYSPARK_PYTHON": sys.executable}, job, cluster.bootstrap, topic)
    assert "rows: 7" in done.stdout, done.stderr[-3000:]
