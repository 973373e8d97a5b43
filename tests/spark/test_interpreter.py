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
    assert run(here, CHECK.format(before="")).stdout.split() == ["strandline-python", "None"]
    beside = str(Path(sys.executable).with_name("strandline-python"))
    assert run(elsewhere, CHECK.format(before="")).stdout.split() == [beside, "None"]


def test_an_import_that_comes_too_late_says_so(elsewhere: dict[str, str]) -> None:
    late = CHECK.format(before="import pyspark; pyspark.SparkContext._gateway = object()")
    done = run(elsewhere, late)
    assert done.stdout.split() == ["None", "None"]
    assert f"set PYSPARK_PYTHON={sys.executable}" in done.stderr


SCRIPT = Path(__file__).parents[2] / "src/strandline/spark/strandline-python"


def installed(prefix: Path) -> tuple[Path, str]:
    """An environment with the script and a pip-installed PySpark; Spark's home in it, and the path that Spark gives."""
    (prefix / "bin").mkdir(parents=True)
    shutil.copy(SCRIPT, prefix / "bin")
    (prefix / "bin/python3").symlink_to("/bin/sh")
    packages = prefix / "lib/python3.11/site-packages"
    for name in ("pyspark", "py4j"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    return packages / "pyspark", archives(packages / "pyspark")


def archives(home: Path) -> str:
    (home / "python/lib").mkdir(parents=True)
    names = (home / "python/lib/pyspark.zip", home / "python/lib/py4j-0.10.9.9-src.zip")
    for name in names:
        name.touch()
    return ":".join(map(str, (*names, home / "jars/spark-core_2.13-4.3.0.jar")))


def path_of(prefix: Path, given: str, **more: str) -> str:
    """The PYTHONPATH with which the script starts what lies beside it as `python3`: a shell that prints it."""
    command = [str(prefix / "bin/strandline-python"), "-c", 'printf %s "$PYTHONPATH"']
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": given} | more
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_script_takes_the_pyspark_that_lies_beside_its_archive(tmp_path: Path) -> None:
    _, spark = installed(tmp_path / "an env")
    assert path_of(tmp_path / "an env", spark) == ""
    assert path_of(tmp_path / "an env", f"{spark}:/mine:/also mine") == "/mine:/also mine"
    assert path_of(tmp_path / "an env", "/mine") == "/mine"


def test_the_script_keeps_the_archives_where_python_would_find_another_pyspark(tmp_path: Path) -> None:
    home, spark = installed(tmp_path / "one")
    other, its = installed(tmp_path / "other")
    assert path_of(tmp_path / "one", its) == its, "Spark's home is another environment's"
    first = f"{spark}:{other.parent}"
    assert path_of(tmp_path / "one", first) == first, "another one stands before this environment's"
    assert path_of(tmp_path / "one", f"{its}:{other.parent}") == f"{other.parent}"
    (home.parent / "py4j/__init__.py").unlink()
    assert path_of(tmp_path / "one", spark) == spark, "without py4j it would not run"


def test_the_script_takes_the_unpacked_pyspark_of_a_distribution(tmp_path: Path) -> None:
    installed(tmp_path / "env")
    home = tmp_path / "spark-4.3.0"
    given = archives(home)
    (home / "python/pyspark").mkdir()
    assert path_of(tmp_path / "env", given) == given
    (home / "python/pyspark/__init__.py").touch()
    py4j = home / "python/lib/py4j-0.10.9.9-src.zip"
    assert path_of(tmp_path / "env", f"{given}:/mine") == f"{home}/python:{py4j}:/mine"


def test_the_script_is_installed_beside_the_interpreter_and_is_python() -> None:
    ask = "import sys; print(sys.executable, sys.argv[1])"
    script = Path(sys.executable).with_name(SCRIPT.name)
    done = subprocess.run([script, "-c", ask, "a b"], capture_output=True, text=True, check=True)
    executable, *rest = done.stdout.split()
    assert Path(executable).parent == script.parent
    assert rest == ["a", "b"]
