"""Crash of all three nodes, on real processes and disks, with default settings: who leads, and that nothing is lost
(docs/correctness.md, "After a crash: who may lead"; schedules 45, 46, 48 and 53)."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.cluster.node.dev import DevCluster
from strandline.log.checkpoints import RECOVERY_POINTS
from tests.acceptance.helpers import (
    describe,
    eventually,
    leader_of,
    make_topic,
    read_all,
    send_all,
    wait_isr,
    wait_leaderless,
)

SENT = [b"record %d" % number for number in range(50)]
MORE = [b"after the crash"]
PATIENT = {"delivery_timeout_ms": 60_000}


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    """Three combined nodes; each test kills all of them."""
    with DevCluster() as running:
        yield running


def strandline(cluster: DevCluster, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--bootstrap", cluster.responsive])


def directory(cluster: DevCluster, node: int, topic: str) -> Path:
    return Path(cluster.data_dir(node)) / f"{topic}-0"


def kill_all(cluster: DevCluster) -> None:
    for node in cluster.node_ids:
        cluster.kill(node)


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


def segment(cluster: DevCluster, node: int, topic: str) -> Path:
    return directory(cluster, node, topic) / f"{0:020d}.log"


def end_of(path: Path) -> int:
    """Where the preallocated zeros begin."""
    return len(path.read_bytes().rstrip(b"\0"))


def written(cluster: DevCluster, topic: str) -> int:
    """A topic with records that every replica has synced; the leader."""
    make_topic(cluster, topic)
    wait_isr(cluster, topic, {1, 2, 3})
    for value in (SENT[:-1], SENT[-1:]):  # the newest batch is one record
        send_all(cluster, topic, value)
    return leader_of(cluster, topic)


def nothing_is_lost(cluster: DevCluster, topic: str) -> None:
    """Everything acknowledged is read, in order, and every replica comes back to the same log."""
    assert send_all(cluster, topic, MORE, **PATIENT) == [len(SENT)]
    assert read_all(cluster, topic) == SENT + MORE
    wait_isr(cluster, topic, {1, 2, 3})
    eventually(lambda: len({end_of(segment(cluster, node, topic)) for node in (1, 2, 3)}) == 1)


def test_45_a_bit_rots_in_the_newest_batch_of_the_last_leader(cluster: DevCluster) -> None:
    """kill -9 of all three; the former leader starts last, and cuts the batch like a torn tail: it follows, and fetches
    what it lost from the others, which cut nothing."""
    leader = written(cluster, "rots")
    kill_all(cluster)
    path = segment(cluster, leader, "rots")
    before = end_of(path)
    flip(path, before - 1)
    for node in {1, 2, 3} - {leader}:
        cluster.start_node(node, wait=False)
    eventually(lambda: describe(cluster, "rots", via=sorted({1, 2, 3} - {leader})).leader not in (None, leader))
    cluster.start_node(leader)
    nothing_is_lost(cluster, "rots")
    assert "it is fetched again" not in Path(cluster.log_path(leader)).read_text(), "it looks like a torn tail"


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_53_one_machine_stays_dead(cluster: DevCluster, dead: int) -> None:
    """kill -9 of all three; each choice of the one that does not come back: the others acknowledge again, at once."""
    written(cluster, "dead")
    kill_all(cluster)
    alive = sorted({1, 2, 3} - {dead})
    began = time.monotonic()
    for node in alive:
        cluster.start_node(node, wait=False)
    assert send_all(cluster, "dead", MORE, **PATIENT) == [len(SENT)]
    took_s = time.monotonic() - began
    print(f"acks again {took_s:.1f} s after the kill of all, {dead} dead")
    assert took_s < 60, "it took no operator"
    assert read_all(cluster, "dead") == SENT + MORE


def test_48_the_leaders_directory_is_removed_after_an_orderly_stop(cluster: DevCluster) -> None:
    """Every node is stopped in order, the leader last; its copy is gone when it starts: full replicas lead."""
    leader = written(cluster, "removed")
    others = sorted({1, 2, 3} - {leader})
    for node in (*others, leader):
        cluster.stop_node(node)
    shutil.rmtree(directory(cluster, leader, "removed"))
    cluster.start_node(leader, wait=False)
    for node in others:
        cluster.start_node(node, wait=False)
    cluster.wait_ready()
    assert leader_of(cluster, "removed") in others
    with urllib.request.urlopen(f"http://{cluster.http(leader)}/metrics") as answer:
        assert 'strandline_recovered_logs{found="lacking"} 1.0' in answer.read().decode()
    nothing_is_lost(cluster, "removed")
    told = Path(cluster.log_path(leader)).read_text()
    assert re.search(r"lacks what was durable here.*removed-0", told), told[-2000:]


def test_46_the_printed_advice_is_followed_on_the_leader(cluster: DevCluster) -> None:
    """Rot below the recovery point: the node says file, byte and what to do where no other replica leads. The other one
    is not up yet here (once it leads, the node does it itself). Done so, it fetches the partition again."""
    make_topic(cluster, "advice", replication=2)
    leader = leader_of(cluster, "advice")
    [other] = set(describe(cluster, "advice").replicas) - {leader}
    wait_isr(cluster, "advice", {leader, other})
    assert send_all(cluster, "advice", SENT) == list(range(len(SENT)))
    checkpoint = Path(cluster.data_dir(leader)) / RECOVERY_POINTS
    eventually(lambda: checkpoint.exists() and f"advice 0 {len(SENT)}" in checkpoint.read_text())
    kill_all(cluster)
    flip(segment(cluster, leader, "advice"), 100)
    up = sorted({1, 2, 3} - {other})
    for node in up:
        cluster.start_node(node, wait=False)
    cluster.wait_ready(up)
    assert "move its directory away and restart" in Path(cluster.log_path(leader)).read_text()
    cluster.kill(leader)
    directory(cluster, leader, "advice").rename(cluster.root / "moved away")
    for node in (leader, other):
        cluster.start_node(node)
    assert send_all(cluster, "advice", MORE, **PATIENT) == [len(SENT)]
    assert read_all(cluster, "advice") == SENT + MORE
    wait_isr(cluster, "advice", {leader, other})
    eventually(lambda: len({end_of(segment(cluster, node, "advice")) for node in (leader, other)}) == 1)


def test_only_a_log_in_doubt_is_left_and_the_operator_decides(cluster: DevCluster) -> None:
    """Of the two that were in sync last one stays dead, and the other one had to cut its log: nobody leads. Describe
    says where to ask, the preview says why; what it prints is what an operator does."""
    make_topic(cluster, "doubt")
    wait_isr(cluster, "doubt", {1, 2, 3})
    leader = leader_of(cluster, "doubt")
    send_all(cluster, "doubt", SENT[:-2])
    stale = next(node for node in (1, 2, 3) if node != leader)
    gone = next(node for node in (1, 2, 3) if node not in (leader, stale))
    cluster.kill(stale)
    wait_isr(cluster, "doubt", {leader, gone})
    for value in SENT[-2:]:
        send_all(cluster, "doubt", [value])
    cluster.kill(gone)
    cluster.kill(leader)
    path = segment(cluster, leader, "doubt")
    flip(path, end_of(path) - 1)
    for node in (stale, leader):
        cluster.start_node(node, wait=False)
    cluster.wait_ready([stale, leader])
    eventually(lambda: leader in (describe(cluster, "doubt", via=[stale]).last_known_elr or ()))
    wait_leaderless(cluster, "doubt", [stale, leader])

    shown = strandline(cluster, "topic", "describe", "doubt")
    assert shown.exit_code == 0, shown.stderr
    [advice] = [line for line in shown.stdout.splitlines() if "has no leader" in line]
    command = advice.partition("holds: strandline ")[2].split()
    assert command == ["topic", "elect", "doubt", "--partition", "0", "--unclean", "--dry-run"]
    told = strandline(cluster, *command, "--output", "json")
    assert told.exit_code == 0, told.stderr
    [preview] = json.loads(told.stdout)
    assert f"Broker {leader} would lead" in preview["message"], preview
    why = f"Nobody leads: broker {gone}, which had all that was acknowledged, is away."
    assert why in preview["message"], preview
    assert f"The log of broker {leader} was cut when it was recovered: acknowledged records may be lost" in told.stdout
    assert f"broker {leader} (up, in doubt, log end {len(SENT) - 1} " in preview["message"]

    held = strandline(cluster, *command[:-1], "--yes")
    assert held.exit_code == 0, held.stderr
    assert read_all(cluster, "doubt") == SENT[:-1]
