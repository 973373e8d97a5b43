"""Row S88: partitions move to other brokers under load, with other numbers of copies, while brokers are killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strandline.client import Admin, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from tests.acceptance.helpers import QUICK, describe, eventually, leader_of, make_topic, read_all

PARTITIONS = 4


@contextmanager
def load(cluster: DevCluster, topic: str) -> Iterator[dict[int, list[bytes]]]:
    """Records go to every partition all the while; what was acknowledged of each, in order, once it is over."""
    acked: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    over = threading.Event()
    failed: list[BaseException] = []

    def send() -> None:
        try:
            with Producer(cluster.bootstrap, delivery_timeout_ms=120_000) as producer:
                count = 0
                while not over.is_set():
                    sent = [
                        (
                            number,
                            b"%d-%d" % (number, count),
                            producer.send(topic, b"%d-%d" % (number, count), partition=number),
                        )
                        for number in range(PARTITIONS)
                    ]
                    for number, value, future in sent:
                        future.result(120)
                        acked[number].append(value)
                    count += 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        eventually(lambda: failed or len(acked[0]) > 20)
        yield acked
        reached = len(acked[0])
        eventually(lambda: failed or len(acked[0]) > reached + 20)
    finally:
        over.set()
        thread.join()
    assert failed == []


def move(cluster: DevCluster, moves: dict[tuple[str, int], list[int] | None]) -> None:
    """Ask until every one has begun: a controller may be dying."""

    def begun() -> bool:
        with Admin(cluster.responsive, default_api_timeout_ms=20_000) as admin:
            outcomes = admin.alter_partition_reassignments(moves)
        allowed = (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return all(one.error in allowed for one in outcomes)

    eventually(begun)


def wait_over(cluster: DevCluster, topic: str, replicas: dict[int, list[int]]) -> None:
    """Return once nothing moves, and the partitions are where they were to be, all in sync."""

    def over() -> bool:
        with Admin(cluster.responsive) as admin:
            [found] = admin.describe_topics([topic])
            if admin.list_partition_reassignments():
                return False
        parts = {one.partition: one for one in found.partitions}
        return all(
            list(parts[number].replicas) == wanted and {*parts[number].isr} == {*wanted}
            for number, wanted in replicas.items()
        )

    eventually(over)


def check(cluster: DevCluster, topic: str, acked: dict[int, list[bytes]]) -> None:
    """Every acknowledged record is there, once and in order."""
    for number, values in acked.items():
        found = read_all(cluster, topic, number)
        assert len(found) == len({*found}), f"partition {number}: repeated records"
        kept = {*values}
        assert [value for value in found if value in kept] == values, f"partition {number}"


def test_one_copy_becomes_three_and_moves_under_load() -> None:
    """Row S88: the same call takes one replica to three, and half of the partitions elsewhere; nothing is lost, nothing
    is there twice, and no directory of a replica that went stays."""
    with DevCluster(nodes=3, controllers=3, settings=QUICK) as cluster:
        make_topic(cluster, "s88", PARTITIONS, 1)
        homes = {number: describe(cluster, "s88", number).replicas[0] for number in range(PARTITIONS)}
        three = {number: [home, *(node for node in (1, 2, 3) if node != home)] for number, home in homes.items()}
        with load(cluster, "s88") as acked:
            move(cluster, {("s88", number): replicas for number, replicas in three.items()})
            wait_over(cluster, "s88", three)
            half = {number: replicas[1:] if number % 2 else replicas for number, replicas in three.items()}
            move(cluster, {("s88", number): replicas for number, replicas in half.items()})
            wait_over(cluster, "s88", half)
            one = {number: [home % 3 + 1] for number, home in homes.items()}
            move(cluster, {("s88", number): replicas for number, replicas in one.items()})
            wait_over(cluster, "s88", one)
        check(cluster, "s88", acked)
        [gone] = [node for node in (1, 2, 3) if node not in (homes[0], one[0][0])]

        def kept() -> set[int]:
            with Admin(cluster.responsive) as admin:
                told = admin.describe_log_dirs()
            place = TopicPartition("s88", 0)
            return {node for node, dirs in told.items() if any(place in one.replicas for one in dirs)}

        eventually(lambda: kept() == {one[0][0]})
        assert gone not in kept()


@pytest.mark.parametrize("victim", ["leader", "target", "source"])
def test_a_broker_is_killed_in_the_middle_of_a_move(victim: str) -> None:
    """Schedule 145, on real processes: kill -9 of the leader, of the broker that gets the replica, of the one that
    loses it; the move ends by itself, a cancelled one leaves all as it was, and no record is lost or repeated."""
    with DevCluster(nodes=4, controllers=3, settings=QUICK) as cluster:
        make_topic(cluster, "kills", PARTITIONS, 3)
        before = {number: list(describe(cluster, "kills", number).replicas) for number in range(PARTITIONS)}
        target, wanted = {}, {}
        for number, replicas in before.items():
            [free] = [node for node in cluster.broker_ids if node not in replicas]
            target[number] = free
            wanted[number] = [free, *replicas[1:]]
        killed = {"leader": leader_of(cluster, "kills"), "target": target[0], "source": before[0][0]}[victim]
        with load(cluster, "kills") as acked:
            move(cluster, {("kills", number): replicas for number, replicas in wanted.items()})
            cluster.kill(killed)
            move(cluster, {("kills", number): None for number in (2, 3)})
            cluster.start_node(killed)
            move(cluster, {("kills", number): replicas for number, replicas in wanted.items()})
            wait_over(cluster, "kills", wanted)
        check(cluster, "kills", acked)
