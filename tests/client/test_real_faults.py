"""The client while brokers die, pause and come back (rows S10, S25, S31, S34, S35, S38)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from strandline.client import Ack, Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.cluster.node.dev import DevCluster


@pytest.fixture(scope="module")
def fragile() -> Iterator[DevCluster]:
    """Three nodes that tests may kill; each test leaves all of them running."""
    with DevCluster() as running:
        yield running


def test_a_killed_leader_costs_no_record_and_no_order(fragile: DevCluster) -> None:
    """Rows S10, S31, S38: threads send on while the leader is killed; each value once, in order, at the acked
    offset."""
    with Admin(fragile.bootstrap) as admin:
        admin.create_topics([NewTopic("killed", 1, 3)])
        [described] = admin.describe_topics(["killed"])
    leader = described.partitions[0].leader
    assert leader is not None
    acks: list[list[Ack]] = [[] for _ in range(4)]
    ack_times: list[float] = []
    stop = threading.Event()
    with Producer(fragile.bootstrap, batch_size=1_000) as producer:
        producer.send("killed", b"warm").result(30)

        def work(number: int) -> None:
            futures = []
            while not stop.is_set() or len(futures) < 100:
                future = producer.send("killed", b"%d:%d" % (number, len(futures)))
                future.add_done_callback(lambda _: ack_times.append(time.monotonic()))
                futures.append(future)
                stop.wait(0.002)
            acks[number] = [future.result(60) for future in futures]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        stop.wait(0.5)
        killed_at = time.monotonic()
        fragile.kill(leader)
        while not any(at > killed_at + 0.05 for at in ack_times):
            assert time.monotonic() - killed_at < 30, "no ack in 30 s after the kill"
            stop.wait(0.01)
        stop.set()
        for thread in threads:
            thread.join()
    fragile.start_node(leader)
    sent = {b"%d:%d" % (number, n): ack.offset for number, mine in enumerate(acks) for n, ack in enumerate(mine)}
    where = TopicPartition("killed", 0)
    with Consumer(fragile.bootstrap, max_poll_records=5_000) as consumer:
        consumer.assign([where])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([where])[where]
        records = []
        while consumer.position(where) < end:
            records += consumer.poll(5.0)
    stored = {record.value: record.offset for record in records if record.value != b"warm"}
    assert len(stored) == len(records) - 1, "a value is there twice"
    assert stored == sent
    for number, mine in enumerate(acks):
        offsets = [stored[b"%d:%d" % (number, n)] for n in range(len(mine))]
        assert offsets == sorted(offsets)


def test_any_one_node_will_do_and_may_die(fragile: DevCluster) -> None:
    """Row S34: bootstrap from one node, which then dies: the others are known."""
    with Admin(fragile.bootstrap) as admin:
        admin.create_topics([NewTopic("others", 3, 3)])
    with Producer(fragile.client(2)) as producer:
        producer.send("others", b"x", partition=0).result(30)
        fragile.kill(2)
        try:
            for partition in range(3):
                assert producer.send("others", b"y", partition=partition).result(30).partition == partition
        finally:
            fragile.start_node(2)


def test_new_partitions_are_found_by_age(fragile: DevCluster) -> None:
    """Row S35: metadata.max.age.ms 1 s, an idle producer, no error: it uses the new partitions, by age alone."""
    with Admin(fragile.bootstrap) as admin:
        admin.create_topics([NewTopic("grows", 1, 3)])
        with Producer(fragile.bootstrap, metadata_max_age_ms=1_000) as producer:
            producer.send("grows", b"x").result(30)
            admin.create_partitions({"grows": 4})
            deadline = time.monotonic() + 10
            while producer.partitions_for("grows") < 4:
                assert time.monotonic() < deadline
                threading.Event().wait(0.05)
            assert producer.send("grows", b"x", partition=3).result(30).partition == 3


def test_connections_are_few(fragile: DevCluster) -> None:
    """Row S33: 10,000 sends open at most one data connection per broker."""
    with Admin(fragile.bootstrap) as admin:
        admin.create_topics([NewTopic("few", 6, 3)])
    with Producer(fragile.bootstrap) as producer:
        for number in range(10_000):
            producer.send("few", b"x", partition=number % 6)
        producer.flush(60)
        assert producer._running is not None
        opened = producer._running.thread.call(lambda: list(producer._running.core._session.network._open))  # type: ignore[union-attr]
    data = [key.endpoint for key in opened if key.purpose == "data"]
    assert len(data) == len(set(data)) == 3
