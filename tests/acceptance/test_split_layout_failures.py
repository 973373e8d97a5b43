"""Rows S45 to S48, S50 and S100 with controllers and brokers in processes of their own: what holds when a side is
lost."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future

import pytest

from strandline.chaos.checkers.anomalies import judge
from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status
from strandline.chaos.live.cluster import LiveCluster
from strandline.client import Ack, Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import KafkaError, StrandlineError
from tests.acceptance.helpers import (
    QUICK,
    describe,
    eventually,
    leader_of,
    make_topic,
    others,
    read_all,
    send_all,
    wait_isr,
    wait_led,
)

pytestmark = pytest.mark.timeout(180)

ONE_TRY = {"enable_idempotence": False, "retries": 0, "request_timeout_ms": 2000, "delivery_timeout_ms": 3000}
"""A producer that asks one broker, once: it must not find the other side of a cut."""


def values(count: int, prefix: str = "v") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def wait_whole(cluster: DevCluster, topic: str) -> None:
    wait_isr(cluster, topic, set(cluster.broker_ids))


def test_s45_five_controllers_survive_two() -> None:
    """Row S45: with two of five controllers dead topics are made; with three dead they are not, and nothing half-made
    remains; one back, they are again."""
    with DevCluster(nodes=1, controllers=5, settings=QUICK) as cluster:
        for node in cluster.controller_ids[:2]:
            cluster.kill(node)
        eventually(lambda: make_topic(cluster, "two-down", replication=1) is None)
        assert send_all(cluster, "two-down", [b"x"]) == [0]
        cluster.kill(cluster.controller_ids[2])
        with (
            Admin(cluster.bootstrap, default_api_timeout_ms=3000, request_timeout_ms=2000) as admin,
            pytest.raises((KafkaError, TimeoutError)),
        ):
            admin.create_topics([NewTopic("three-down", 1, 1)])
        cluster.start_node(cluster.controller_ids[2])
        eventually(lambda: make_topic(cluster, "back", replication=1) is None)
        with Admin(cluster.bootstrap) as admin:
            assert {"two-down", "back"} <= set(admin.list_topics())
            # What was refused may have been carried out later, but never by half.
            for topic in admin.describe_topics(admin.list_topics()):
                assert all(part.leader == 1 for part in topic.partitions)


def test_s46_lost_leaders_are_replaced_by_those_who_have_everything(split: LiveCluster) -> None:
    """Row S46: leader after leader is killed, of the partition and of the quorum: each successor was in sync, and has
    every acknowledged record and topic."""
    make_topic(split, "s46")
    wait_whole(split, "s46")
    sent: list[bytes] = []
    for number in range(3):
        batch = values(50, f"round-{number}-")
        assert send_all(split, "s46", batch) == list(range(len(sent), len(sent) + 50))
        sent += batch
        before = describe(split, "s46")
        leader, controller = leader_of(split, "s46"), split.controller()
        assert controller is not None
        split.kill(leader)
        split.kill(controller)
        successor = eventually(lambda was=leader: _leader_but(split, "s46", was))
        assert successor in before.isr
        assert read_all(split, "s46") == sent
        make_topic(split, f"s46-{number}", replication=2)
        split.revive()
        wait_whole(split, "s46")
    with Admin(split.bootstrap) as admin:
        assert {"s46-0", "s46-1", "s46-2"} <= set(admin.list_topics())


def _leader_but(cluster: DevCluster, topic: str, was: int) -> int | None:
    leader = describe(cluster, topic).leader
    return leader if leader != was else None


def test_s47_s100_every_process_killed_at_once_and_nothing_acked_is_lost(split: LiveCluster) -> None:
    """Rows S47, S100: SIGKILL of brokers and controllers together, under load; started again they have every acked
    record at its offset, once, and the producer that was under way ends without a gap."""
    make_topic(split, "s100", partitions=3)
    acked: dict[bytes, Ack] = {}

    def note(value: bytes, future: Future[Ack]) -> None:
        if future.exception() is None:
            acked[value] = future.result()

    producer = Producer(split.bootstrap, linger_ms=1, delivery_timeout_ms=60_000, request_timeout_ms=3000)
    for number, value in enumerate(values(3000)):
        future = producer.send("s100", value, partition=number % 3)
        future.add_done_callback(lambda future, value=value: note(value, future))
        if number == 2500:
            eventually(lambda: len(acked) > 500)
            for node in split.node_ids:
                split.kill(node)
    before_restart = dict(acked)
    assert before_restart
    began = time.monotonic()
    split.revive()
    producer.flush(60)
    producer.close()
    print(f"all six processes back and everything acknowledged {time.monotonic() - began:.1f} s after their start")
    assert len(acked) == 3000
    found = {partition: read_all(split, "s100", partition, timeout_s=60) for partition in range(3)}
    for value, ack in {**acked, **before_restart}.items():
        assert found[ack.partition][ack.offset] == value
    assert sum(map(len, found.values())) == 3000
    wait_whole(split, "s100")


def test_s48_consistent_a_minority_refuses(split: LiveCluster) -> None:
    """Row S48: factor 3, min.insync.replicas 2, unclean off: a leader left alone refuses writes; nothing is lost."""
    make_topic(split, "s48-consistent", min_insync_replicas="2", unclean_leader_election_enable="false")
    wait_whole(split, "s48-consistent")
    send_all(split, "s48-consistent", [b"kept"])
    leader = leader_of(split, "s48-consistent")
    for node in others(split, leader):
        split.kill(node)
    wait_isr(split, "s48-consistent", {leader})
    with Producer(split.client(leader), **ONE_TRY) as producer, pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
        producer.send("s48-consistent", b"refused").result(10)
    assert read_all(split, "s48-consistent") == [b"kept"]
    split.revive()
    wait_whole(split, "s48-consistent")
    assert read_all(split, "s48-consistent") == [b"kept"]


def test_s48_available_a_minority_writes_and_may_lose(split: LiveCluster) -> None:
    """Row S48: min.insync.replicas 1, unclean on: whoever is left is written to, and what only the dead one had is
    lost."""
    make_topic(split, "s48-available", min_insync_replicas="1", unclean_leader_election_enable="true")
    wait_whole(split, "s48-available")
    send_all(split, "s48-available", [b"everywhere"])
    leader = leader_of(split, "s48-available")
    stale = others(split, leader)
    for node in stale:
        split.kill(node)
    wait_isr(split, "s48-available", {leader})
    assert send_all(split, "s48-available", [b"acknowledged, and here alone"]) == [1]
    split.kill(leader)
    split.start_node(stale[0])
    wait_led(split.client(stale[0]), "s48-available", lambda parts: parts[0].leader == stale[0])
    assert send_all(split, "s48-available", [b"still writable"], request_timeout_ms=2000) == [1]
    split.revive()
    wait_whole(split, "s48-available")
    assert read_all(split, "s48-available") == [b"everywhere", b"still writable"]


def test_s50_a_minority_side_takes_no_writes(split: LiveCluster) -> None:
    """Row S50: a leader is cut off from everybody but its clients: acks=all there never succeeds; the others elect and
    go on; healed, it truncates what it took under acks=1, and the histories agree."""
    make_topic(split, "s50")
    wait_whole(split, "s50")
    history, numbers = History(), itertools.count()

    def send(producer: Producer, acks: int = -1) -> bool:
        value = f"v{next(numbers)}"
        sent = history.send(Send(f"p{value}", Partition("s50", 0), value, acks=acks, invoked_ms=_now_ms()))
        try:
            sent.offset = producer.send("s50", value.encode()).result(30).offset
            sent.status = Status.OK
        except (StrandlineError, TimeoutError):
            sent.status = Status.INFO
        sent.completed_ms = _now_ms()
        return sent.status is Status.OK

    minority = leader_of(split, "s50")
    majority = others(split, minority)

    def send_alone(acks: str = "all") -> bool:
        """By a new producer each time: one that has met silence asks the others who leads."""
        with Producer(split.client(minority), **ONE_TRY | {"acks": acks}) as producer:
            return send(producer, acks=1 if acks == "1" else -1)

    assert send_alone()
    split.isolate(minority)
    assert not send_alone()
    assert send_alone("1")
    wait_led(",".join(map(split.client, majority)), "s50", lambda parts: parts[0].leader in majority)
    with Producer(",".join(map(split.client, majority)), request_timeout_ms=2000) as together:
        assert all(send(together) for _ in range(20))
    assert not send_alone()
    split.heal()
    wait_whole(split, "s50")
    with Consumer(split.bootstrap) as consumer:
        consumer.assign([("s50", 0)])
        consumer.seek_to_beginning()
        [end] = consumer.end_offsets([("s50", 0)]).values()
        while consumer.position(("s50", 0)) < end:
            records = [(Partition("s50", 0), one.offset, (one.value or b"").decode()) for one in consumer.poll(1)]
            history.poll(Poll("final", records, completed_ms=_now_ms(), final=True))
    assert judge(history) == []
    assert sum(len(poll.records) for poll in history.polls) >= 21
    assert len({split.digest(node, "s50", 0, end) for node in split.broker_ids}) == 1


def _now_ms() -> float:
    return time.monotonic() * 1000
