"""The recipes of docs/uses/recipes.md: they stand there as they are run, and do as the page says (rows S17, S70, S103,
S119)."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from strandline.client import Consumer, ConsumerRecord, Producer
from strandline.client.errors import DeserializationFailed
from strandline.cluster.node.dev import DevCluster
from strandline.tools.handling import handle
from tests.acceptance.foreign import java_class_path
from tests.acceptance.helpers import make_topic
from tests.acceptance.recipes import DOCS, RECIPES, load, start
from tests.acceptance.topics import create, drain

SHOWN = {".py": "python", ".proto": "proto", ".avsc": "json"}


@pytest.mark.parametrize(
    "recipe", sorted(path for path in RECIPES.iterdir() if path.suffix in SHOWN), ids=lambda path: path.name
)
def test_the_page_shows_what_is_run(recipe: Path) -> None:
    """Each file stands in the page as it is."""
    blocks = re.findall(
        rf"<!-- {re.escape(recipe.name)} -->\n```{SHOWN[recipe.suffix]}\n(.*?)```",
        (DOCS / "uses" / "recipes.md").read_text(),
        re.DOTALL,
    )
    assert [block.strip() for block in blocks] == [recipe.read_text().strip()]


# ---------------------------------------------------------------- Row S70


async def ask(port: int) -> dict[str, int]:
    """One HTTP request, as curl sends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: board\r\n\r\n")
    head, body = (await reader.read()).split(b"\r\n\r\n")
    writer.close()
    assert b" 200 OK" in head
    counts: dict[str, int] = json.loads(body)
    return counts


def test_a_board_serves_while_it_consumes(cluster: DevCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Row S70: consumer and HTTP server in one event loop: every request is answered while a backlog of 40,000 is read,
    and what one turn of the loop costs stays under 20 ms. It is CPU time that is measured, so that a busy machine does
    not count; all turns but one in a hundred, so that a collection of garbage does not."""
    module = load("board")
    make_topic(cluster, "dishes", partitions=3)
    with Producer(cluster.bootstrap, linger_ms=20, batch_size=65_536) as producer:
        for number in range(40_000):
            producer.send("dishes", b"dish %d" % (number % 7), partition=number % 3)
    turns: list[float] = []
    answers: list[dict[str, int]] = []

    async def measure() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            turns.append((now - before) * 1000)
            before = now

    async def main() -> None:
        board = module.Board()
        async with await asyncio.start_server(board.answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            tasks = [asyncio.create_task(board.follow(cluster.bootstrap)), asyncio.create_task(measure())]
            try:
                async with asyncio.timeout(60):
                    while not answers or sum(answers[-1].values()) < 40_000:
                        answers.append(await ask(port))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    reading = [sum(answer.values()) for answer in answers]
    assert sum(0 < count < 40_000 for count in reading) >= 3, "requests are answered while the backlog is read"
    turns.sort()
    with capsys.disabled():
        print(f"\na turn of the loop: p99 {turns[len(turns) * 99 // 100]:.1f} ms, longest {turns[-1]:.1f} ms of CPU")
    assert turns[len(turns) * 99 // 100] < 20
    assert answers[-1] == {f"dish {number}": len(range(number, 40_000, 7)) for number in range(7)}


def test_the_board_loads_the_client_before_its_loop_runs() -> None:
    """The client's classes are loaded when they are first named: in the loop that held every request for some 50 ms."""
    code = "import sys, board; print('strandline.client.aio.consumer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=RECIPES, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


# ---------------------------------------------------------------- Row S119

LOW_JOBS = 5_000
HIGH_JOBS = 20


def test_high_jobs_do_not_wait_for_low_ones(cluster: DevCluster) -> None:
    """Row S119: twenty urgent jobs, one after the other, are all done long before a backlog of 5,000 others is; an
    urgent one waits for a job or a few, not for the backlog. Everything is handled once.

    Jobs are done while an urgent one waits, not while the next one is sent: how long that takes is the machine's.
    """
    module = load("priorities")
    for topic in (module.HIGH, module.LOW):
        make_topic(cluster, topic)
    done: list[tuple[str, bytes]] = []
    handled = threading.Condition()
    work, over = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def wait_for(count: int, topic: str) -> None:
        with handled:
            assert handled.wait_for(lambda: [where for where, _ in done].count(topic) >= count, 60), (count, topic)

    def feed() -> None:
        try:
            with Producer(cluster.bootstrap, linger_ms=0) as producer:
                wait_for(1, module.LOW)
                for number in range(HIGH_JOBS):
                    work.clear()
                    producer.send(module.HIGH, b"%d" % number).result(30)
                    work.set()
                    wait_for(number + 1, module.HIGH)
        except BaseException as error:
            failures.append(error)
        finally:
            over.set()
            work.set()

    with Producer(cluster.bootstrap) as producer:
        for number in range(LOW_JOBS):
            producer.send(module.LOW, b"%d" % number)
    work.set()
    feeder = threading.Thread(target=feed)
    feeder.start()
    with module.Jobs(cluster.bootstrap) as jobs:
        while len(done) < LOW_JOBS + HIGH_JOBS:
            work.wait()
            job = jobs.take()
            assert not failures, failures
            if job is not None:
                with handled:
                    done.append((job.topic, job.value))
                    if not over.is_set():
                        handled.notify()
                if job.topic == module.LOW and not over.is_set():
                    over.wait(0.005)  # its work
    feeder.join(30)
    assert not failures, failures
    assert len(set(done)) == LOW_JOBS + HIGH_JOBS
    last = max(place for place, (topic, _) in enumerate(done) if topic == module.HIGH)
    assert last < LOW_JOBS / 2, f"the last urgent job was the {last}th"


# ---------------------------------------------------------------- Row S17


def test_paid_orders_without_cards(cluster: DevCluster) -> None:
    """Row S17: a filter and a map over a topic, repartitioned; in under twenty lines."""
    create(cluster.bootstrap, "sold", 3)
    orders = [{"paid": number % 3 > 0, "customer": f"c{number % 5}", "card": 42, "n": number} for number in range(300)]
    with Producer(cluster.bootstrap) as producer:
        for order in orders:
            producer.send("sold", json.dumps(order).encode(), key=str(order["customer"]).encode())
    ran = start("paid_orders", cluster.bootstrap, "sold", "sold.paid")
    _, told = ran.communicate(timeout=60)
    assert ran.returncode == 0, told
    expected = [{key: value for key, value in order.items() if key != "card"} for order in orders if order["paid"]]
    found: dict[str, list[dict[str, Any]]] = {}
    for record in drain(cluster.bootstrap, "sold.paid", 12):
        found.setdefault(record.key.decode(), []).append(json.loads(record.value))
    assert found == {
        f"c{number}": [order for order in expected if order["customer"] == f"c{number}"] for number in range(5)
    }
    lines = (RECIPES / "paid_orders.py").read_text().partition("import json")[2].splitlines()
    assert len(lines) < 20


# ---------------------------------------------------------------- Row S103

ORDERS: list[dict[str, Any]] = [
    {"table": 7, "dish": "soup", "extras": []},
    {"table": -(2**62), "dish": "crème brûlée 湯", "extras": ["spoon", ""]},
    {"table": 2**62, "dish": "", "extras": ["\u0000", "x" * 300]},
]


@pytest.fixture
def formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe's module, with its generated classes; their descriptor is in `tmp_path` / "order.pb"."""
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install '.[dev]'")
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}",
         f"--descriptor_set_out={tmp_path / 'order.pb'}", "order.proto"],
        cwd=RECIPES, check=True,
    )  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return load("formats")


@pytest.fixture(scope="module")
def orders_written() -> dict[str, bool]:
    """Whether the topics are filled: by the first test that needs them."""
    return {}


def write_orders(cluster: DevCluster, formats: Any, written: dict[str, bool]) -> None:
    for topic, write in formats.WRITE.items():
        if topic in written:
            continue
        written[topic] = True
        make_topic(cluster, topic)
        with Producer(cluster.bootstrap) as producer:
            for order in ORDERS:
                producer.send(topic, write(order), partition=0).result(30)


def test_what_one_wrote_the_other_reads(cluster: DevCluster, formats: Any, orders_written: dict[str, bool]) -> None:
    """Row S103: each format by its deserializer."""
    write_orders(cluster, formats, orders_written)
    for topic, deserializer in formats.READ.items():
        with Consumer(cluster.bootstrap, auto_offset_reset="earliest", value_deserializer=deserializer) as consumer:
            consumer.assign([(topic, 0)])
            assert [next(consumer).value for _ in ORDERS] == ORDERS


def test_java_reads_what_python_wrote(
    cluster: DevCluster, formats: Any, orders_written: dict[str, bool], tmp_path: Path
) -> None:
    """Row S103: JSON, Avro and Protobuf, read with Java's own libraries for them."""
    jars = java_class_path()
    pyspark = pytest.importorskip("pyspark", reason="Avro's Java library comes with PySpark, which is not installed")
    avro = f"{Path(pyspark.__file__).parent / 'jars'}/*"
    write_orders(cluster, formats, orders_written)
    told = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx200m", "-cp", f"{jars}:{avro}",
         str(Path(__file__).with_name("ReadOrders.java")), cluster.bootstrap, str(len(ORDERS)),
         str(RECIPES / "order.avsc"), str(tmp_path / "order.pb")],
        capture_output=True, timeout=150, check=False, encoding="utf-8",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    read: dict[str, list[list[Any]]] = {}
    for line in told.stdout.splitlines():
        topic, _, order = line.partition(" ")
        read.setdefault(topic, []).append(json.loads(order))
    expected = [[order["table"], order["dish"], *order["extras"]] for order in ORDERS]
    assert read == dict.fromkeys(formats.WRITE, expected)


def test_what_means_nothing_is_named_and_dies_with_its_bytes(cluster: DevCluster, formats: Any) -> None:
    """Rows S103, S118: a deserializer that fails names topic, partition and offset; `run` sends such a record to the
    dead letters as it was, and goes on."""
    topic = "orders.mixed"
    make_topic(cluster, topic)
    good, bad = formats.to_avro(ORDERS[0]), b"\xff\xff"
    with Producer(cluster.bootstrap) as producer:
        for value in (good, bad, good):
            producer.send(topic, value, key=b"k", partition=0).result(30)
    settings = {"auto_offset_reset": "earliest", "value_deserializer": formats.from_avro}
    with Consumer(cluster.bootstrap, **settings) as consumer:
        consumer.assign([(topic, 0)])
        assert next(consumer).value == ORDERS[0]
        with pytest.raises(DeserializationFailed) as failed:
            next(consumer)
        assert (failed.value.topic, failed.value.partition, failed.value.offset) == (topic, 0, 1)
    with Consumer(cluster.bootstrap, group_id="cooks", **settings) as consumer:
        consumer.subscribe(topic)
        handled: list[Any] = []

        def handler(record: ConsumerRecord) -> None:
            handled.append(record.value)
            if len(handled) == 2:
                consumer.stop()

        report = handle(consumer, handler, attempts=2, backoff_ms=10)
        assert consumer.lag() == {(topic, 0): 0}
    assert handled == [ORDERS[0]] * 2
    assert (report.handled, report.failures, report.dead_letters) == (2, 2, 1)
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(f"{topic}.dead", 0)])
        letter = next(consumer)
    assert (letter.key, letter.value) == (b"k", bad)
    assert dict(letter.headers)["dead-letter.error"].endswith(b"DeserializationFailed")
