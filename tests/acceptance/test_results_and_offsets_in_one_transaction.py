"""Row S67: results and offsets in one transaction of the application's own database, killed a hundred times."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest

from strandline.client import Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually, make_topic
from tests.acceptance.recipes import load, start

pytestmark = pytest.mark.timeout(900)

KILLS = 100
TRANSFERS = 10_000
PARTITIONS = 3
BOOKING_S_MAX = 0.008


def booked(path: Path) -> int:
    """How many transfers the database says are done."""
    database = sqlite3.connect(path)
    try:
        return int(database.execute("select coalesce(sum(next), 0) from position").fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # no table yet
    finally:
        database.close()


def alive(process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, process.stderr.read().decode()  # type: ignore[union-attr]
    return True


def test_every_transfer_counts_once(cluster: DevCluster, tmp_path: Path) -> None:
    """SIGKILL in the midst of a backlog, a hundred times; in the end the balances are right to the cent."""
    module = load("ledger")
    make_topic(cluster, module.TOPIC, PARTITIONS)
    path = tmp_path / "ledger.db"
    rng = random.Random(67)
    expected: dict[str, int] = {}
    sent = 0

    def send_more() -> int:
        """So many that nothing that is killed now has seen their end; how many in all."""
        with Producer(cluster.bootstrap, linger_ms=20) as producer:
            for number in range(sent, sent + TRANSFERS):
                account, cents = f"account {rng.randrange(9)}", rng.randint(-500, 500)
                expected[account] = expected.get(account, 0) + cents
                producer.send(module.TOPIC, b"%d" % cents, key=account.encode(), partition=number % PARTITIONS)
        return sent + TRANSFERS

    for _ in range(KILLS):
        if sent - booked(path) < TRANSFERS / 2:
            sent = send_more()
        goal = booked(path) + rng.randint(1, 60)
        process = start("ledger", cluster.bootstrap, str(path))
        try:
            eventually(lambda: alive(process) and booked(path) >= goal, 60, 0.001)  # noqa: B023
            threading.Event().wait(rng.uniform(0, BOOKING_S_MAX))  # anywhere within the booking that is under way
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert booked(path) < sent, "it was killed with nothing left to do"
    process = start("ledger", cluster.bootstrap, str(path))
    try:
        eventually(lambda: alive(process) and booked(path) >= sent, 120)
    finally:
        process.kill()
        process.communicate()
    database = sqlite3.connect(path)
    assert dict(database.execute("select account, cents from balance")) == expected
    assert booked(path) == sent
    database.close()
