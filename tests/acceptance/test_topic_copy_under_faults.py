"""Row S17 among faults: the copy is killed, paused, and loses a leader; the copy is equal in the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strandline.client import LATEST, Admin
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.copies import STRANDLINE, check, make_source
from tests.acceptance.foreign import apache_kafka
from tests.acceptance.helpers import eventually, leader_of

RECORDS = 60_000
SIZE = 400
PARTITIONS = 6
KILLS = 6


def command(bootstrap: str, source: str, *more: str) -> list[str]:
    return [sys.executable, "-m", STRANDLINE, "topic", "copy", source, f"{source}.copy",
            "--partitions", str(PARTITIONS), "--bootstrap", bootstrap, "-o", "json", *more]  # fmt: skip


@contextmanager
def copying(bootstrap: str, source: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process, at the latest killed in the end."""
    process = subprocess.Popen(command(bootstrap, source), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def wait_written(bootstrap: str, topic: str, count: int, process: subprocess.Popen[str]) -> None:
    """Return once so many records are in the target; the copy must be at work still."""
    with Admin(bootstrap) as admin:
        eventually(lambda: topic in admin.list_topics() or process.poll() is not None, 60, pause_s=0.01)

        def written() -> bool:
            ends = admin.list_offsets({(topic, number): LATEST for number in range(PARTITIONS)})
            return sum(end.offset for end in ends.values()) >= count or process.poll() is not None

        eventually(written, 60, pause_s=0.005)
    assert process.poll() is None, process.communicate()


@pytest.fixture(scope="module")
def lasting() -> Iterator[DevCluster]:
    """A cluster of its own: one of its brokers is killed."""
    with DevCluster() as cluster:
        yield cluster


def kill_again_and_again(bootstrap: str) -> None:
    """SIGKILL at six points of the way; the last run finishes what the others began, and nothing is twice."""
    make_source(bootstrap, "killed", RECORDS, size=SIZE)
    for number in range(KILLS):
        with copying(bootstrap, "killed") as process:
            wait_written(bootstrap, "killed.copy", RECORDS * number // (KILLS + 1) + 1, process)
            process.kill()
            process.wait()
            assert process.returncode == -signal.SIGKILL
    done = subprocess.run(command(bootstrap, "killed"), capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["already"] + told["written"] == told["records"]
    check(bootstrap, "killed", "killed.copy", PARTITIONS)


def test_s17_a_copy_that_is_killed_again_and_again_is_equal(lasting: DevCluster) -> None:
    """Row S17, here."""
    kill_again_and_again(lasting.bootstrap)


def test_s17_a_copy_on_apache_kafka_is_equal_too() -> None:
    """The two rules that keep a killed copy from doing harm are Apache Kafka's as well."""
    with apache_kafka() as bootstrap:
        kill_again_and_again(bootstrap)


def test_s17_a_copy_that_wakes_up_does_no_harm(lasting: DevCluster) -> None:
    """One is stopped in the midst of a round, another one finishes, the first wakes up, its requests half sent: it ends
    with an error that names the other one, or with nothing left to do."""
    make_source(lasting.bootstrap, "paused", RECORDS, size=SIZE)
    with copying(lasting.bootstrap, "paused") as process:
        wait_written(lasting.responsive, "paused.copy", RECORDS // 3, process)
        process.send_signal(signal.SIGSTOP)
        done = subprocess.run(command(lasting.bootstrap, "paused"), capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        process.send_signal(signal.SIGCONT)
        _, told = process.communicate(timeout=60)
        if process.returncode:  # else it has found that nothing is left to do
            assert "another copy was started" in told, told
    check(lasting.bootstrap, "paused", "paused.copy", PARTITIONS)


def test_s17_a_copy_outlives_a_leader(lasting: DevCluster) -> None:
    """SIGKILL of a leader of the target, which leads a part of the source too, in the midst of it."""
    make_source(lasting.bootstrap, "lasting", RECORDS, size=SIZE)
    with copying(lasting.bootstrap, "lasting") as process:
        wait_written(lasting.responsive, "lasting.copy", RECORDS // 4, process)
        leader = leader_of(lasting, "lasting.copy")
        lasting.kill(leader)
        out, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert json.loads(out)["records"] == RECORDS
    lasting.start_node(leader)
    check(lasting.bootstrap, "lasting", "lasting.copy", PARTITIONS)
