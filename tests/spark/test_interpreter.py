"""A job that is run as `venv/bin/python job.py`, without `activate`: `python3` on the path is another interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.client import Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.topics import create

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")

pytestmark = pytest.mark.timeout(400)

JOB = """
import sys
{first}
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
spark = builder.getOrCreate()
{then}
frame = spark.read.format("strandline").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
print("rows:", frame.load().count())
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `python3` is one that has nothing installed."""
    other = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other / "env")], check=True)
    java = shutil.which("java")
    if java is not None:
        (other / "env/bin/java").symlink_to(java)
    left = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "PYTHON", "SPARK_"))}
    return left | {"PATH": f"{other}/env/bin:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}


def run(elsewhere: dict[str, str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=elsewhere, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def topic(cluster: DevCluster) -> str:
    create(cluster.bootstrap, "interpreter", 1, 3)
    with Producer(cluster.bootstrap) as producer:
        for number in range(7):
            producer.send("interpreter", b"%d" % number)
    return "interpreter"


java = pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")


@java
def test_a_job_finds_the_format_with_its_own_interpreter(
    cluster: DevCluster, topic: str, elsewhere: dict[str, str]
) -> None:
    job = JOB.format(first="import pyspark_strandline", then="")
    done = run(elsewhere, job, cluster.bootstrap, topic)
    assert "rows: 7" in done.stdout, done.stderr[-3000:]


CHECK = """
import os
{before}
import pyspark_strandline
print(os.environ.get("PYSPARK_PYTHON"), os.environ.get("PYSPARK_DRIVER_PYTHON"))
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [("PYSPARK_PYTHON", "python9"), ("PYSPARK_DRIVER_PYTHON", "python9"), ("PYSPARK_GATEWAY_PORT", "1")],
)
def test_what_the_environment_says_stands(elsewhere: dict[str, str], name: str, value: str) -> None:
    done = run(elsewhere | {name: value}, CHECK.format(before=""))
    said = {"PYSPARK_PYTHON": "None", "PYSPARK_DRIVER_PYTHON": "None"} | {name: value}
    assert done.stdout.split() == [said["PYSPARK_PYTHON"], said["PYSPARK_DRIVER_PYTHON"]], done.stderr


def test_a_python3_on_the_path_that_is_this_one_stays_a_name(elsewhere: dict[str, str]) -> None:
    """Executors on other machines have a python3 too, but not at this path."""
    here = elsewhere | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    assert run(here, CHECK.format(before="")).stdout.split() == ["None", "None"]
    assert run(elsewhere, CHECK.format(before="")).stdout.split() == [sys.executable, "None"]


def test_an_import_that_comes_too_late_says_so(elsewhere: dict[str, str]) -> None:
    late = CHECK.format(before="import pyspark; pyspark.SparkContext._gateway = object()")
    done = run(elsewhere, late)
    assert done.stdout.split() == ["None", "None"]
    assert f"set PYSPARK_PYTHON={sys.executable}" in done.stderr
