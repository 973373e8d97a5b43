"""Row S108: a database elsewhere is rebuilt from a snapshot and the log of its changes, whatever is killed
meanwhile."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.client import Admin, Producer, TopicPartition
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually, leader_of, make_topic
from tests.acceptance.shop import TOPIC, TOTAL_CENTS, Shop, ask, content, load, start

pytestmark = pytest.mark.timeout(380)

KILLS = 12
SENT = "select sent from capture_place"
LAST = "select max(number) from capture_change"
APPLIED = "select change from follower_place"


class Program:
    """One that is killed and started again."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._arguments = (name, *arguments)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = start(*self._arguments)

    def alive(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            assert self._process.stderr is not None
            raise RuntimeError(f"{self._arguments[0]} has ended: {self._process.stderr.read().decode()}")
        return True

    def kill(self) -> None:
        """SIGKILL, unless it never began or has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()

    def said(self) -> str:
        """The next line of its stderr."""
        assert self._process is not None
        assert self._process.stderr is not None
        return self._process.stderr.readline().decode()

    def ended(self) -> str:
        """Wait until it fails; what it said."""
        assert self._process is not None
        _, told = self._process.communicate(timeout=60)
        assert self._process.returncode == 1
        return told.decode()


@contextmanager
def open_for_business(path: Path) -> Iterator[Callable[[], None]]:
    """Transactions all the time, until what is yielded is called."""
    closed = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        shop = Shop(path, 108)
        try:
            while not closed.wait(0.01):
                shop.transact()
        except BaseException as error:
            failures.append(error)
        finally:
            shop.close()

    worker = threading.Thread(target=work)
    worker.start()

    def close() -> None:
        closed.set()
        worker.join(60)
        assert not failures, failures

    try:
        yield close
    finally:
        closed.set()
        worker.join(60)


def test_a_copy_ends_equal_whatever_is_killed(tmp_path: Path) -> None:
    """While a shop works: capture and follower killed -9 by turns, the topic's leader once, two captures at the end. A
    second copy begins at a snapshot from the middle, and the log before that is gone. No copy is ever seen within a
    transaction."""
    shop_db, copy_db, late_db = (tmp_path / name for name in ("shop.db", "copy.db", "late.db"))
    shop = Shop(shop_db, 107)
    shop.create()
    shop.close()
    rng = random.Random(108)
    with DevCluster() as own:
        make_topic(own, TOPIC)
        make_snapshot = load("snapshot").snapshot
        assert make_snapshot(own.bootstrap, str(shop_db), TOPIC, str(copy_db)) == (0, 0)
        capture = Program("capture", own.bootstrap, str(shop_db), TOPIC)
        follower = Program("follower", own.bootstrap, TOPIC, str(copy_db))
        second = Program("capture", own.bootstrap, str(shop_db), TOPIC)
        late = Program("follower", own.bootstrap, TOPIC, str(late_db))
        try:
            capture.start()
            follower.start()
            with open_for_business(shop_db) as close:
                for turn in range(KILLS):
                    goal = ask(copy_db, APPLIED) + rng.randint(1, 40)
                    eventually(lambda: followed(copy_db, goal, capture, follower), 60, 0.01)  # noqa: B023
                    if turn == KILLS // 3:
                        victim = leader_of(own, TOPIC)
                        own.kill(victim)
                    elif turn == KILLS // 2:
                        own.start_node(victim)
                        offset, change = make_snapshot(own.bootstrap, str(shop_db), TOPIC, str(late_db))
                    elif turn == KILLS * 2 // 3:
                        second.start()  # somebody's mistake
                    killed = (capture, follower)[turn % 2]
                    killed.kill()
                    killed.start()
                close()
            last = ask(shop_db, LAST)
            eventually(lambda: followed(copy_db, last, capture, follower))
            assert content(copy_db) == content(shop_db)
            eventually(lambda: ask(shop_db, SENT) == last)

            assert 0 < change < last, "the snapshot is from the middle"
            with Admin(own.bootstrap) as admin:
                admin.delete_records({TopicPartition(TOPIC, 0): offset})
            late.start()
            eventually(lambda: followed(late_db, last, capture, late))
            assert content(late_db) == content(shop_db)
        finally:
            for program in (capture, second, follower, late):
                program.kill()


def followed(path: Path, change: int, *programs: Program) -> bool:
    """Whether the copy has this change; meanwhile the programs live, and no money is under way."""
    assert all(program.alive() for program in programs)
    assert ask(path, "select sum(cents) from account") == TOTAL_CENTS
    return ask(path, APPLIED) >= change


@pytest.fixture
def shop_db(tmp_path: Path) -> Path:
    """A shop with some changes that are captured and not sent; copy.db beside it is from before them."""
    path = tmp_path / "shop.db"
    shop = Shop(path, 109)
    shop.create()
    source = load("capture").Source(str(path))
    source.install()
    source.close()
    assert load("snapshot").copy(str(path), str(tmp_path / "copy.db"), 0) == 0
    while ask(path, f"select coalesce(({LAST}), 0)") < 5:
        shop.transact()
    shop.close()
    return path


def test_a_follower_behind_the_log_ends(cluster: DevCluster, shop_db: Path, tmp_path: Path) -> None:
    """Changes that are gone before it could read them: it says so, and touches nothing."""
    topic, copy_db = f"{TOPIC}-cut", tmp_path / "copy.db"
    make_topic(cluster, topic)
    before = content(copy_db)
    source = load("capture").Source(str(shop_db))
    with Producer(cluster.bootstrap) as producer:
        assert load("capture").send_new(source, producer, topic)
        assert not load("capture").send_new(source, producer, topic)
    source.close()
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 2})
    follower = Program("follower", cluster.bootstrap, topic, str(copy_db))
    follower.start()
    assert f"offset 0 of {topic}-0 is out of range" in follower.ended()
    assert content(copy_db) == before


def test_a_change_that_is_due_is_waited_for(cluster: DevCluster, shop_db: Path, tmp_path: Path) -> None:
    """A batch that has failed, and later ones that have not: the follower says what it waits for, and goes on when the
    capture has sent again what it does not know to be in the log."""
    topic, copy_db = f"{TOPIC}-late", tmp_path / "copy.db"
    make_topic(cluster, topic)
    source = load("capture").Source(str(shop_db))
    follower = Program("follower", cluster.bootstrap, topic, str(copy_db))
    try:
        with Producer(cluster.bootstrap) as producer:
            headers = [("change", b"2"), ("until", b"2")]
            producer.send(topic, b"{}", key=b"[]", partition=0, headers=headers).result(30)
            follower.start()
            assert follower.said().startswith("change 2 at offset 0, where 1 is due")
            load("capture").send_new(source, producer, topic)
        eventually(lambda: followed(copy_db, source.last(), follower))
        assert content(copy_db) == content(shop_db)
    finally:
        source.close()
        follower.kill()


def test_a_topic_of_several_partitions_is_refused(cluster: DevCluster, shop_db: Path) -> None:
    """It has no order that could be the database's."""
    topic = f"{TOPIC}-wide"
    make_topic(cluster, topic, 2)
    capture = Program("capture", cluster.bootstrap, str(shop_db), topic)
    capture.start()
    assert capture.ended().strip() == f"{topic} has 2 partitions; the order of a database needs a topic of one"
