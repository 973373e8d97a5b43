"""The programs of docs/uses/patterns.md, killed in the midst of their work (rows S106, S107, S109, S113)."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from strandline.client import LATEST, Admin, Consumer, Producer, TopicPartition
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually, make_topic
from tests.acceptance.recipes import DOCS

PATTERNS = DOCS / "examples" / "patterns"

pytestmark = pytest.mark.timeout(600)


def test_the_page_shows_what_is_run() -> None:
    """Each block stands in its file as it is, and each program is shown."""
    page = (DOCS / "uses" / "patterns.md").read_text()
    blocks = re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", page, re.DOTALL)
    for name, block in blocks:
        assert block.strip() in (PATTERNS / name).read_text(), f"{name} has no such lines:\n{block}"
    assert {name for name, _ in blocks} >= {path.name for path in PATTERNS.glob("*.py")} - {"web.py"}


class Programs:
    """Programs of the page, each by a name; all of them are killed in the end."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, program: str, *arguments: object) -> None:
        command = [sys.executable, str(PATTERNS / f"{program}.py"), *map(str, arguments)]
        self._running[name] = subprocess.Popen(command, stderr=subprocess.PIPE)

    def kill(self, name: str) -> None:
        """SIGKILL; it must have been alive until now."""
        self.check(name)
        process = self._running.pop(name)
        process.kill()
        process.communicate()

    def check(self, name: str) -> None:
        process = self._running[name]
        if process.poll() is not None:
            raise ChildProcessError(f"{name} has ended: {process.communicate()[1].decode()}")

    def until(self, check: Callable[[], object], timeout_s: float = 120, pause_s: float = 0.05) -> Any:
        """Wait for something, while all of them live."""

        def look() -> object:
            for name in self._running:
                self.check(name)
            return check()

        return eventually(look, timeout_s, pause_s)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.communicate()


@pytest.fixture
def programs() -> Iterator[Programs]:
    started = Programs()
    try:
        yield started
    finally:
        started.close()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def ask(port: int, path: str, body: object = None, method: str = "GET") -> tuple[int, Any]:
    """Status and answer; status 0: there is nobody."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
    except (OSError, urllib.error.URLError):
        return 0, None


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as database:
        yield database


# ---------------------------------------------------------------- Row S106


def test_s106_replicas_of_a_state_machine_agree(cluster: DevCluster, programs: Programs, tmp_path: Path) -> None:
    """Row S106: three replicas apply one partition, each is killed in turn while commands come, one loses its disk.
    Wherever two of them have stood at the same offset, their states had the same hash; in the end, at the last one."""
    make_topic(cluster, "key-values")
    ports = {name: free_port() for name in ("one", "two", "three")}

    def start(name: str) -> None:
        programs.start(name, "key_values", cluster.bootstrap, ports[name], tmp_path / f"{name}.db")
        programs.until(lambda: ask(ports[name], "/state")[0] == 200)

    for name in ports:
        start(name)
    rng = random.Random(106)
    done = 0

    def command(name: str) -> int:
        """A value is set, deleted, or exchanged for another one if it is still what it was."""
        key = f"key-{rng.randrange(40)}"
        asked: dict[str, str | None] = {"value": rng.choice([None, *(f"value-{number}" for number in range(9))])}
        if rng.random() < 0.3:
            asked["expected"] = ask(ports[name], f"/keys/{key}")[1].get("value")
        return ask(ports[name], f"/keys/{key}", asked, "PUT")[0]

    for dead in (*ports, "two"):
        living = [name for name in ports if name != dead]
        programs.kill(dead)
        for _ in range(120):
            done += command(rng.choice(living)) == 200
        if dead == "three":
            for path in tmp_path.glob("three.db*"):
                path.unlink()  # its disk, too
        start(dead)
    assert done == 480, "while two of three live, every command is done"
    states = programs.until(lambda: _equal([ask(port, "/state")[1] for port in ports.values()]))
    assert states["next"] >= done
    marks = [ask(port, "/marks")[1] for port in ports.values()]
    common = set.intersection(*(set(each) for each in marks))
    assert {str(offset) for offset in range(100, done + 1, 100)} <= common
    assert all(len({each[offset] for each in marks}) == 1 for offset in common)
    entries = []
    for name in ports:
        with reading(tmp_path / f"{name}.db") as database:
            entries.append(database.execute("select * from entry order by key").fetchall())
    assert entries[0]
    assert entries[0] == entries[1] == entries[2]


def _equal(states: list[Any]) -> Any:
    return states[0] if all(state == states[0] for state in states) else None


# ---------------------------------------------------------------- Row S107


def balances(cluster: DevCluster, *arguments: object) -> dict[str, int]:
    command = [sys.executable, str(PATTERNS / "accounts.py"), "balances", cluster.bootstrap, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_s107_balances_are_what_the_events_say(cluster: DevCluster, programs: Programs, tmp_path: Path) -> None:
    """Row S107: the decider is killed again and again, and each booking becomes one event, decided as in one run
    without a kill. Balances without their state are the same again; balances as of an offset are those of then."""
    for topic in ("bookings", "events"):
        make_topic(cluster, topic)
    rng = random.Random(107)
    bookings = []
    for number in range(6000):
        payer, payee = rng.sample([f"account-{each}" for each in range(12)], 2)
        cents = rng.randint(1, 400)
        changes = {payee: cents} if rng.random() < 0.2 else {payer: -cents, payee: cents}
        bookings.append({"id": number, "changes": changes})
    with Producer(cluster.bootstrap, linger_ms=20) as producer:
        for booking in bookings:
            producer.send("bookings", json.dumps(booking).encode(), partition=0)

    def decided() -> list[tuple[int, dict[str, Any]]]:
        with Consumer(cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0)])
            [end] = consumer.end_offsets([("events", 0)]).values()
            found = []
            while consumer.position(("events", 0)) < end:
                found += [(record.offset, json.loads(record.value)) for record in consumer.poll(1)]
            return found

    def end() -> int:
        """About so many events, and the markers of their transactions."""
        with Admin(cluster.bootstrap) as admin:
            return admin.list_offsets({("events", 0): LATEST})[TopicPartition("events", 0)].offset

    state = tmp_path / "balances.json"
    for goal in (1, 1000, 2500, 4000):
        programs.start("decider", "accounts", "decide", cluster.bootstrap)
        programs.until(lambda: end() >= goal, pause_s=0.001)  # noqa: B023
        programs.kill("decider")
        assert end() < len(bookings), "it was killed with nothing left to do"
        assert balances(cluster, "--state", state) == balances(cluster)
    programs.start("decider", "accounts", "decide", cluster.bootstrap)
    programs.until(lambda: len(decided()) >= len(bookings))
    events = decided()

    model: Counter[str] = Counter()
    then = {}
    for (offset, event), booking in zip(events, bookings, strict=True):
        then[offset] = dict(model)
        short = [name for name, cents in booking["changes"].items() if cents < 0 and model[name] + cents < 0]
        assert (event["booking"], event["kind"]) == (booking["id"], "refused" if short else "booked")
        if not short:
            for name, cents in booking["changes"].items():
                model[name] += cents
        assert min(model.values(), default=0) >= 0
    assert balances(cluster, "--state", state) == dict(model)
    state.unlink()
    assert balances(cluster, "--state", state) == dict(model) == balances(cluster)
    for offset in rng.sample(sorted(then), 4):
        shown = balances(cluster, "--as-of", offset)
        assert {name: cents for name, cents in shown.items() if cents} == {
            name: cents for name, cents in then[offset].items() if cents
        }


# ---------------------------------------------------------------- Row S109


def test_s109_a_copy_serves_once_it_is_complete(cluster: DevCluster, programs: Programs, tmp_path: Path) -> None:
    """Row S109: from an empty disk, killed on the way: it goes on where it was, says 503 until it has what the log held
    at the start, and then serves every row. Its disk may be lost."""
    make_topic(cluster, "products", 3, cleanup_policy="compact")
    rng = random.Random(109)
    rows: dict[str, str] = {}

    def change(producer: Producer, number: int) -> None:
        key = f"product-{rng.randrange(20_000)}"
        if rng.random() < 0.1:
            rows.pop(key, None)
            producer.send("products", None, key=key.encode())
        else:
            rows[key] = f"price {number}"
            producer.send("products", rows[key].encode(), key=key.encode())

    with Producer(cluster.bootstrap, linger_ms=20) as producer:
        for number in range(80_000):
            change(producer, number)
    path, port = tmp_path / "copy.db", free_port()

    def behind(where: tuple[int, Any]) -> int | None:
        return where[1]["behind"] if where[0] == 503 else None

    seen: list[int] = []
    for goal in (70_000, 50_000, 30_000):
        programs.start("copy", "read_copy", cluster.bootstrap, port, path)
        now = programs.until(
            lambda: (left := behind(ask(port, "/readyz"))) is not None and left <= goal and left,  # noqa: B023
            pause_s=0.001,
        )
        assert ask(port, "/rows/product-1")[0] == 503
        programs.kill("copy")
        seen.append(now)
    assert seen == sorted(seen, reverse=True), "it went on where it was"
    for _ in range(2):
        programs.start("copy", "read_copy", cluster.bootstrap, port, path)
        programs.until(lambda: ask(port, "/readyz") == (200, {"ready": True, "behind": 0}))
        for number in rng.sample(range(20_000), 200):
            status, answer = ask(port, f"/rows/product-{number}")
            value = rows.get(f"product-{number}")
            assert (status, answer) == ((404, {"error": "no such row"}) if value is None else (200, {"value": value}))
        with Producer(cluster.bootstrap) as producer:
            producer.send("products", b"sold out", key=b"product-7").result(30)
            rows["product-7"] = "sold out"
        programs.until(lambda: ask(port, "/rows/product-7") == (200, {"value": "sold out"}))
        with reading(path) as database:
            assert dict(database.execute("select * from row")) == rows
        programs.kill("copy")
        for file in tmp_path.glob("copy.db*"):
            file.unlink()  # an empty disk


# ---------------------------------------------------------------- Row S113

CONNECTIONS = 50


async def burst(port: int, orders: list[dict[str, str]]) -> list[float]:
    """Send orders over a number of connections, each again until it is taken; ms of each reply that took it."""
    left, times = iter(orders), []

    async def connection() -> None:
        reader = writer = None
        for order in left:
            body = json.dumps(order).encode()
            request = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            while True:
                start = time.monotonic()
                try:
                    if writer is None or reader is None:
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0]))
                except (OSError, asyncio.IncompleteReadError):
                    reader = writer = None
                    await asyncio.sleep(0.05)
                    continue
                if head.startswith(b"HTTP/1.1 202 "):
                    times.append((time.monotonic() - start) * 1000)
                    break
        if writer is not None:
            writer.close()

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    return sorted(times)


def test_s113_orders_are_taken_now_and_fulfilled_later(
    cluster: DevCluster, programs: Programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row S113: 10,000 orders in a burst, at most five a user accepted; meanwhile one that decides is killed, and the
    payments; then the front itself, whose callers send again what got no answer. Each accepted order is paid and mailed
    once, and no other."""
    for topic in ("orders.placed", "orders.decided"):
        make_topic(cluster, topic, 4)
    port, rng, ids = free_port(), random.Random(113), count()

    def start(name: str) -> None:
        if name == "front":
            programs.start(name, "intake_front", cluster.bootstrap, port)
            programs.until(lambda: ask(port, "/orders", {}, "POST")[0] == 400)
        elif name.startswith("accept"):
            programs.start(name, "intake_accept", cluster.bootstrap)
        else:
            programs.start(name, "intake_worker", cluster.bootstrap, name, tmp_path / f"{name}.db")

    def orders(number: int) -> list[dict[str, str]]:
        return [
            {"id": f"order-{next(ids)}", "user": f"user-{int(rng.triangular(0, 3000, 0))}", "item": "soup"}
            for _ in range(number)
        ]

    def done(name: str) -> int:
        if not (tmp_path / f"{name}.db").exists():
            return 0
        with reading(tmp_path / f"{name}.db") as database:
            return int(database.execute("select count(*) from done").fetchone()[0])

    for name in ("front", "accept-1", "accept-2", "payments", "emails"):
        start(name)
    first, second, third = orders(10_000), orders(1_000), orders(1_000)
    times = asyncio.run(burst(port, first))
    assert len(times) == 10_000
    with capsys.disabled():
        p99 = times[len(times) * 99 // 100]
        print(f"\n10,000 orders on {CONNECTIONS} connections: reply p50 {times[5000]:.1f} ms, p99 {p99:.1f} ms")
    programs.until(lambda: done("payments") > 500)
    for name in ("accept-1", "payments"):
        programs.kill(name)
    for name in ("accept-1", "payments"):
        start(name)

    with ThreadPoolExecutor() as threads:
        taking = threads.submit(asyncio.run, burst(port, second))
        programs.until(lambda: ask(port, "/orders", {}, "POST")[0] == 400, pause_s=0)
        programs.kill("front")
        start("front")
        taking.result(120)
    asyncio.run(burst(port, third + first[:500]))  # orders that came before, once more
    placed = {order["id"]: order["user"] for order in first + second + third}

    def decisions() -> dict[str, list[tuple[str, bool]]]:
        every = [("orders.decided", number) for number in range(4)]
        by_user: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        with Consumer(cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign(every)
            ends = consumer.end_offsets(every)
            while any(consumer.position(part) < end for part, end in ends.items()):
                for record in consumer.poll(1):
                    order = json.loads(record.value)
                    by_user[order["user"]].append((order["id"], order["accepted"]))
        return by_user

    def all_decided() -> dict[str, list[tuple[str, bool]]] | None:
        found = decisions()
        return found if {name for each in found.values() for name, _ in each} == set(placed) else None

    found = programs.until(all_decided, pause_s=0.5)
    accepted = {name for each in found.values() for name, yes in each if yes}
    wanted = Counter(placed.values())
    assert Counter(placed[name] for name in accepted) == {user: min(5, number) for user, number in wanted.items()}
    assert not accepted & {name for each in found.values() for name, yes in each if not yes}, "one answer an order"
    for work in ("payments", "emails"):
        programs.until(lambda: done(work) >= len(accepted))  # noqa: B023
        with reading(tmp_path / f"{work}.db") as database:
            assert Counter(database.execute("select id from done")) == Counter((name,) for name in accepted)
