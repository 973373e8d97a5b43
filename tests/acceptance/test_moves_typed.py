"""Moves of replicas as an operator types them, against four real nodes that are written to (row S88)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.client import Admin, Producer
from strandline.client.types import ConfigResource
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually, make_topic, read_all, wait_isr

THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@pytest.fixture(scope="module")
def four() -> Iterator[DevCluster]:
    with DevCluster(nodes=4, controllers=1, settings=QUICK) as cluster:
        yield cluster


def run(cluster: DevCluster, *words: str, expect: int = 0) -> Result:
    told = CliRunner().invoke(main, words, env={"STRANDLINE_BOOTSTRAP": cluster.responsive})
    assert told.exit_code == expect, (told.output, told.stderr, told.exception)
    return told


def replicas_of(cluster: DevCluster, topic: str) -> list[tuple[int, ...]]:
    with Admin(cluster.responsive) as admin:
        [described] = admin.describe_topics([topic])
    return [part.replicas for part in described.partitions]


@contextmanager
def load(cluster: DevCluster, topic: str) -> Iterator[list[bytes]]:
    """Records are sent meanwhile; those that were acknowledged."""
    acked: list[bytes] = []
    ended = threading.Event()

    def send() -> None:
        with Producer(cluster.responsive) as producer:
            number = 0
            while not ended.is_set():
                value = b"%d" % number
                producer.send(topic, value).result(60)
                acked.append(value)
                number += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield acked
    finally:
        ended.set()
        thread.join(90)
    assert not thread.is_alive()


def throttles(cluster: DevCluster, topic: str) -> set[str]:
    """What is set of throttles on the topic and on brokers."""
    with Admin(cluster.responsive) as admin:
        brokers = [str(node.node_id) for node in admin.describe_cluster().nodes]
        resources = [ConfigResource("topic", topic), *(ConfigResource("broker", name) for name in brokers)]
        found = admin.describe_configs(resources)
    return {
        f"{resource.name} {one.name}"
        for resource, entries in found.items()
        for one in entries
        if one.name in (*THROTTLES, *LISTS) and not one.is_default
    }


def test_a_broker_is_drained_under_load_and_taken_in_again(four: DevCluster) -> None:
    """No acknowledged record is lost; the throttle is gone afterwards; new topics pass over the broker."""
    make_topic(four, "t", partitions=6, replication=3)
    with load(four, "t") as acked:
        eventually(lambda: len(acked) > 200)
        dry = run(four, "broker", "drain", "3", "--dry-run").stdout
        assert "would move" in dry
        assert "off broker 3" in dry
        assert any(3 in replicas for replicas in replicas_of(four, "t"))
        told = run(four, "broker", "drain", "3", "--throttle", "50MB").stdout
        assert "50,000,000" not in told
        assert "a second and broker (the throttle)" in told
        assert not any(3 in replicas for replicas in replicas_of(four, "t"))
        assert throttles(four, "t") == set()
        listed = json.loads(run(four, "broker", "list", "-o", "json").stdout)
        [third] = [one for one in listed if one["node_id"] == 3]
        assert (third["cordoned"], third["leads"], third["replicas"]) == (True, 0, 0)
        make_topic(four, "new", partitions=8, replication=3)
        assert not any(3 in replicas for replicas in replicas_of(four, "new"))
        assert "nothing is to be moved" in run(four, "broker", "drain", "3").stdout
        before = len(acked)
        back = run(four, "broker", "recommission", "3").stdout
        assert "moved" in back
        assert sum(3 in replicas for replicas in replicas_of(four, "t")) >= 3
        eventually(lambda: len(acked) > before)
    read = [value for partition in range(6) for value in read_all(four, "t", partition)]
    assert sorted(read) == sorted(acked)
    assert "nothing is to be moved" in run(four, "cluster", "rebalance").stdout


def test_a_topic_gets_other_brokers_and_another_factor(four: DevCluster) -> None:
    make_topic(four, "m", partitions=2, replication=2)
    run(four, "topic", "move", "m", "--to", "1,2")
    assert replicas_of(four, "m") == [(1, 2), (2, 1)]
    told = json.loads(run(four, "topic", "move", "m:1", "--replication-factor", "3", "-o", "json").stdout)
    assert (told["moved"], told["left"], len(told["moves"])) == (1, [], 1)
    assert [len(replicas) for replicas in replicas_of(four, "m")] == [2, 3]
    run(four, "topic", "move", "m", "--off", "1")
    assert not any(1 in replicas for replicas in replicas_of(four, "m"))
    refused = run(four, "topic", "move", "m", "--replication-factor", "5", expect=1)
    assert "5 copies: 4 brokers may have one" in refused.stdout
    assert "none of these: m:7" in run(four, "topic", "move", "m:7", "--off", "1", expect=2).stderr
    assert "say one of --to" in run(four, "topic", "move", "m", expect=2).stderr


def test_a_broker_that_cannot_be_emptied_is_refused_with_numbers(four: DevCluster) -> None:
    make_topic(four, "wide", partitions=1, replication=4)
    try:
        refused = run(four, "broker", "drain", "2", expect=1).stderr
        assert "broker 2 cannot be emptied: 1 of its" in refused
        assert "4 copies, and 3 brokers that may have them" in refused
        listed = json.loads(run(four, "broker", "list", "-o", "json").stdout)
        assert not any(one["cordoned"] for one in listed)
    finally:
        run(four, "topic", "delete", "wide", "--yes")


def test_an_interrupted_drain_goes_on(four: DevCluster) -> None:
    """Ctrl-C leaves what was begun going, and says how to follow; the same command begins the rest, and the throttle
    goes with the last of them."""
    make_topic(four, "slow", partitions=6, replication=2)
    with Producer(four.responsive) as producer:
        for number in range(6 * 40):
            producer.send("slow", b"x" * 50_000, partition=number % 6)
    program = [sys.executable, "-c", "from strandline.cli.main import main; main()"]
    command = [*program, "broker", "drain", "4", "--throttle", "200KB", "--at-once", "1", "-b", four.responsive]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def under_way() -> bool:
        ended = process.poll()
        assert ended is None, (ended, process.communicate())
        told = json.loads(run(four, "broker", "drain", "4", "--status", "-o", "json").stdout)
        return any(one["topic"] == "slow" and one["lacks_bytes"] > 1_000_000 for one in told["under_way"])

    eventually(under_way)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "which the cluster goes on with" in said
    assert "strandline broker drain 4 --follow" in said
    assert throttles(four, "slow")
    status = json.loads(run(four, "broker", "drain", "4", "--status", "-o", "json").stdout)
    assert any("(throttle)" in why for one in status["under_way"] for why in one["waits_for"]), status
    cancelled = run(four, "broker", "drain", "4", "--cancel").stdout
    assert "cancelled" in cancelled
    eventually(lambda: throttles(four, "slow") == set())
    run(four, "broker", "drain", "4")
    assert not any(4 in replicas for replicas in replicas_of(four, "slow"))
    run(four, "broker", "uncordon", "4")
    assert "may have new replicas already" in run(four, "broker", "uncordon", "4").stdout


def test_a_dead_broker_is_decommissioned(four: DevCluster) -> None:
    """Its copies are made anew from the others, and it is unregistered; started again it is taken into use."""
    make_topic(four, "d", partitions=4, replication=3)
    four.kill(4)
    eventually(lambda: "fenced" in run(four, "broker", "list").stdout)
    assert "is down" in run(four, "broker", "cordon", "4", expect=2).stderr
    told = run(four, "broker", "decommission", "4").stdout
    assert "Broker 4 is taken out of the cluster" in told
    assert not any(4 in replicas for replicas in replicas_of(four, "d"))
    assert "is not registered" in run(four, "broker", "decommission", "4", expect=2).stderr
    four.start_node(4)
    eventually(lambda: json.loads(run(four, "broker", "list", "-o", "json").stdout)[-1]["alive"])
    run(four, "broker", "recommission", "4")
    assert sum(4 in replicas for replicas in replicas_of(four, "d")) >= 2
    wait_isr(four, "d", set(replicas_of(four, "d")[0]))
