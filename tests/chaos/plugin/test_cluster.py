"""`strandline_cluster` and `strandline_session_cluster` as a user has them, in a pytest of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest_plugins = ["pytester"]

FAULTS = """
import pytest
from strandline.client import Admin, Producer

def write(cluster, values, topic="t", **settings):
    with Producer(cluster.bootstrap, linger_ms=0, delivery_timeout_ms=30_000, **settings) as producer:
        return [producer.send(topic, value).result().offset for value in values]

def test_kill_and_start(strandline_session_cluster):
    cluster = strandline_session_cluster
    cluster.create_topic("t", configs={"min.insync.replicas": "2"})
    leader = cluster.leader("t")
    assert write(cluster, [b"a"]) == [0]
    cluster.kill(leader)
    assert cluster.state(leader) == "down"
    with pytest.raises(Exception, match="is down"):
        cluster.kill(leader)
    assert write(cluster, [b"b"]) == [1]
    assert cluster.leader("t") != leader
    cluster.wait_isr("t", members=set(cluster.node_ids) - {leader})
    cluster.start(leader)
    cluster.wait_isr("t")

def test_errors_are_answered_and_counted(strandline_session_cluster):
    cluster = strandline_session_cluster
    assert cluster.story == []  # what befell it in the test before is over
    fault = cluster.fail_next("PRODUCE", "NOT_ENOUGH_REPLICAS", times=2, node=cluster.leader("t"))
    with pytest.raises(AssertionError, match="was met 0 times"):
        cluster.assert_fault_met(fault)
    assert write(cluster, [b"c"], retry_backoff_ms=5) == [2]
    assert fault.met == 2
    cluster.assert_fault_met(fault, times=2)
    with pytest.raises(ValueError, match="one of "):
        cluster.fail_next("Produse", "NOT_ENOUGH_REPLICAS")

def test_a_slow_disk_and_a_pause(strandline_session_cluster):
    cluster = strandline_session_cluster
    leader = cluster.leader("t")
    slow = cluster.slow_disk(leader, 100)
    assert write(cluster, [b"d"]) == [3]
    assert slow.met >= 1
    cluster.pause(leader)
    assert cluster.state(leader) == "paused"
    assert cluster.leader("t") != leader
    assert write(cluster, [b"e"]) == [4]

def test_the_next_finds_it_whole(strandline_session_cluster):
    cluster = strandline_session_cluster
    assert [cluster.state(node) for node in cluster.node_ids] == ["running"] * 3
    cluster.wait_isr("t")

def test_a_partition_that_is_noticed(strandline_session_cluster):
    cluster = strandline_session_cluster
    cluster.create_topic("cut")  # its leadership is where it belongs: that of "t" may just be going back there
    leader = cluster.leader("cut")
    with Admin(cluster.bootstrap) as admin:
        controller = admin.describe_quorum().leader_id
    # A leader that is cut off from the active controller is fenced itself, and its follower stays in sync.
    follower = next(node for node in cluster.node_ids if node not in (leader, controller))
    cut = cluster.partition(leader, follower)
    write(cluster, [b"f"], topic="cut")
    cluster.wait_isr("cut", members=set(cluster.node_ids) - {follower})
    assert cut.met >= 1
    cluster.heal()
    cluster.wait_isr("cut")
"""


def test_the_faults_of_a_session_cluster(pytester: pytest.Pytester) -> None:
    """Each fault does what it says, is counted, and is over when the test is."""
    pytester.makepyfile(FAULTS)
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"passed": 5}, result.stdout.str()


def test_a_fault_that_never_struck_fails_the_test_and_failures_show_the_nodes_logs(pytester: pytest.Pytester) -> None:
    """A sentence; `required=False` excuses; the report has the story and the end of each node's log; data are gone."""
    pytester.makepyfile(
        """
import pytest
pytestmark = pytest.mark.strandline(nodes=1, settings={"log.retention.ms": "12345"})

def test_unmet(strandline_cluster):
    strandline_cluster.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER", times=3)

def test_excused(strandline_cluster):
    strandline_cluster.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER", required=False)
    strandline_cluster.slow_disk(1, 10)
    strandline_cluster.create_topic("t")
    strandline_cluster.slow_disk(1, 0)  # undoes a fault, and is none
    strandline_cluster.assert_fault_met()
"""
    )
    result = pytester.runpytest_subprocess("--basetemp=base")
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}, result.stdout.str()
    text = result.stdout.str()
    assert "asked for, but never struck: fail_next(Fetch, NOT_LEADER_OR_FOLLOWER, 3) at each node" in text
    assert re.search(r"-- strandline: faults --+\n +\d\.\d+ s  fail_next\(Fetch", text)
    assert re.search(r"-- strandline: node 1, running --+\n.*fault injection is on", text)
    assert not list(Path("base").glob("strandline*/*"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_nothing_is_left_when_pytest_dies(pytester: pytest.Pytester, how: signal.Signals) -> None:
    """SIGKILL of pytest, or Ctrl-C, with one node paused: all nodes end, the paused one too."""
    pytester.makepyfile(
        """
import time

def test_it(strandline_cluster):
    strandline_cluster.pause(2)
    print("PIDS", *strandline_cluster._live.pids().values(), flush=True)
    time.sleep(60)
"""
    )
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background do not hear Ctrl-C
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    line = next(line for line in process.stdout if "PIDS" in line)
    nodes = [psutil.Process(int(pid)) for pid in line.partition("PIDS")[2].split()]
    assert len(nodes) == 3
    os.kill(process.pid, how)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(node.is_running() and node.status() != psutil.STATUS_ZOMBIE for node in nodes):
        assert time.monotonic() < deadline, nodes
        time.sleep(0.05)
