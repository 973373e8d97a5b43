"""Row S104: docs/uses/hub.md as it is run: every source and sink is killed at work, and the others go on."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strandline.client import Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, leader_of, wait_isr
from tests.acceptance.hub_programs import HUB, modules

pytestmark = pytest.mark.timeout(600)

TOPICS = {"departures": 4, "planes": 1}
NODES = {1, 2, 3}
REPEATS = 200
KILLS = 40
FLIGHTS = 60_000


@pytest.fixture
def own() -> Iterator[DevCluster]:
    with DevCluster(settings=QUICK) as running:
        yield running


def send_again(cluster: DevCluster) -> int:
    """The first records of each topic once more, as a source's last requests that arrive late; how many."""
    with Consumer(cluster.responsive, auto_offset_reset="earliest") as consumer, Producer(cluster.responsive) as sender:
        consumer.assign([(topic, part) for topic, parts in TOPICS.items() for part in range(parts)])
        acks = []
        while len(acks) < REPEATS:
            for record in consumer.poll(timeout_s=5, max_records=REPEATS - len(acks)):
                headers = record.headers
                acks.append(
                    sender.send(record.topic, record.value, key=record.key, partition=record.partition, headers=headers)
                )
        for ack in acks:
            ack.result(60)
    return len(acks)


def run(cluster: DevCluster, *arguments: str, at: dict[str, Callable[[], object]] | None = None) -> tuple[int, str]:
    """run.py as its users run it; `at`: what to do once a line with this first word is out. Exit code and output."""
    command = [sys.executable, str(HUB / "run.py"), cluster.bootstrap, *arguments]
    todo, lines = dict(at or {}), []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            for beginning in [each for each in todo if line.startswith(f"{each} ")]:
                todo.pop(beginning)()
        code = process.wait()
    finally:
        process.terminate()  # no effect once it has ended
        process.communicate()
    assert not todo, "".join(lines)
    return code, "".join(lines)


def test_every_program_and_a_leader_are_killed_and_all_is_complete(own: DevCluster, tmp_path: Path) -> None:
    """The command of the page, with Spark: while each program is down, the sinks that live get everything that the
    living sources have; then SQLite, the index and Parquet hold exactly what the inputs do. Meanwhile the leader of the
    planes is killed, and records arrive a second time."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
    dead: list[int] = []

    def kill_the_leader() -> None:
        dead.append(leader_of(own, "planes"))
        own.kill(dead[0])

    def start_it_again() -> None:
        own.start_node(dead[0])
        wait_isr(own, "planes", NODES)

    code, told = run(
        own, "--directory", str(tmp_path / "hub"), "--departures", "8000",
        at={"files": lambda: send_again(own), "table": kill_the_leader, "search": start_it_again},
    )  # fmt: skip
    assert code == 0, told
    killed = re.findall(r"^(\w+) +killed; without it (.*?) hold everything of (.*?);", told, re.MULTILINE)
    assert killed == [
        ("files", "sqlite, search, spark", "planes"),
        ("table", "sqlite, search, spark", "departures"),
        ("sqlite", "search, spark", "departures and planes"),
        ("search", "sqlite, spark", "departures and planes"),
        ("spark", "sqlite, search", "departures and planes"),
    ]
    counted = re.findall(r"(\d[\d,]*) (departures|planes)", told)
    in_the_topics = sum(int(number.replace(",", "")) for number, _ in counted[-2:])
    with modules("inputs", "held") as parts:
        inputs = parts.inputs.Inputs(tmp_path / "hub" / "inputs")
        made = sum(map(len, inputs.lines().values())) + len(inputs.changes())
        assert in_the_topics >= made + REPEATS, "the repeats are in the log"
        verdicts = parts.held.verdicts(tmp_path / "hub", inputs)
        assert [verdict.right for verdict in verdicts] == [True] * 7
        counts_as_spark_reads(tmp_path / "hub" / "lake", made)


def test_a_second_run_goes_on(own: DevCluster, tmp_path: Path) -> None:
    """In its directory with the flights that come next; a new directory is refused, for the topics hold records."""
    for departures in ("1200", "2400"):
        code, told = run(own, "--directory", str(tmp_path / "hub"), "--departures", departures, "--without-spark")
        assert code == 0, told
        assert told.startswith("1,200 flights to come")
    code, told = run(own, "--directory", str(tmp_path / "other"), "--departures", "1200", "--without-spark")
    assert code == 1
    assert "another run's departures and planes" in told


def counts_as_spark_reads(lake: Path, records: int) -> None:
    """Spark's own reader, in a session of its own, finds as many rows, no two of one origin and position."""
    program = (
        "import sys; from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', False).getOrCreate()\n"
        "rows = spark.read.parquet(sys.argv[1]).select('origin', 'position')\n"
        "print('rows', rows.count(), rows.distinct().count())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(lake / "records")], capture_output=True, encoding="utf-8", check=True
    )
    assert f"rows {records} {records}" in told.stdout


def test_a_storm_of_kills(own: DevCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forty times a program, any but Spark, is killed with work before it and started again, at no point in particular:
    SQLite and the index are complete, and the log has each origin's records in order, once its repeats are left out."""
    rng = random.Random(104)
    with modules("inputs", "held", "run", "hub") as parts:
        parts.run.create_topics(own.bootstrap, goes_on=False)
        inputs = parts.inputs.Inputs(tmp_path / "inputs")
        at_work: Counter[str] = Counter()
        with parts.run.Hub(own.bootstrap, tmp_path, inputs, ("sqlite", "search")) as hub:
            with writing(parts, tmp_path / "inputs"):
                for number in range(KILLS):
                    threading.Event().wait(rng.uniform(0.2, 1.0))
                    name = hub.programs[number % len(hub.programs)]
                    hub.kill(name)
                    at_work[name] += not caught_up(parts, hub, name)
                    hub.start(name)
            hub.wait(lambda: hub.lacking(hub.sinks, list(TOPICS)))
        assert min(at_work[name] for name in hub.programs) >= KILLS / len(hub.programs) / 2, at_work
        verdicts = [each for each in parts.held.verdicts(tmp_path, inputs) if each.sink != "spark"]
        assert all(verdict.right for verdict in verdicts), [(v.sink, v.what, v.missing, v.too_many) for v in verdicts]
        repeats = check_the_log(own, parts, inputs)
    with capsys.disabled():
        print(f"\nkilled with work before it: {dict(at_work)}; records that the log has twice: {repeats}")


@contextmanager
def writing(parts: Any, directory: Path) -> Iterator[None]:
    """Flights come all the time, some hundred to a thousand a second."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            inputs = parts.inputs.Inputs(directory)  # SQLite wants a connection for each thread
            flights = list(inputs.flights(FLIGHTS))
            for begin in range(0, FLIGHTS, 20):
                inputs.write(flights[begin : begin + 20])
                if stop.wait(0.02):
                    return
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
    assert not failures, failures


def caught_up(parts: Any, hub: Any, name: str) -> bool:
    """Whether a program has done all that there is to do."""
    if name in hub.sinks:
        return not hub.lacking([name], list(TOPICS))
    made = len(hub.inputs.changes()) if name == "table" else sum(map(len, hub.inputs.lines().values()))
    return bool(parts.run.records_of(hub._bootstrap, parts.run.SOURCES[name]) >= made)


def check_the_log(cluster: DevCluster, parts: Any, inputs: Any) -> int:
    """Each origin's records by the rule that sinks go by; how many are repeats."""
    values: dict[str, list[bytes]] = {}
    last: dict[str, int] = {}
    repeats = 0
    with Consumer(cluster.responsive, auto_offset_reset="earliest") as consumer:
        tops = [(topic, part) for topic, count in TOPICS.items() for part in range(count)]
        consumer.assign(tops)
        ends = consumer.end_offsets(tops)
        while any(consumer.position(part) < end for part, end in ends.items()):
            for record in consumer.poll(timeout_s=5):
                origin, position = parts.hub.origin_of(record)
                if position > last.get(origin, 0):
                    last[origin] = position
                    values.setdefault(origin, []).append(record.value)
                else:
                    repeats += 1
    assert values.pop("outbox") == [plane.encode() for _, _, plane in inputs.changes()]
    assert values == inputs.lines()
    assert all(json.loads(line)["id"] for lines in values.values() for line in lines)
    return repeats
