"""Rows S21 to S31, S33 to S35: what a producer may rely on, on clusters of real processes."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet

import psutil
import pytest
from click.testing import CliRunner

from strandline.cli.bench import bench
from strandline.client import LATEST, Ack, Admin, Consumer, Producer
from strandline.client.config import ProducerConfig
from strandline.client.errors import BufferExhausted, DeliveryTimeout
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import ConfigError
from tests.acceptance.faults import FaultyCluster
from tests.acceptance.foreign import kcat, needs_kcat, stored_batches
from tests.acceptance.helpers import eventually, wait_led
from tests.acceptance.proxy import PRODUCE
from tests.acceptance.topics import create, drain

# Acknowledgements


def warm(producer: Producer, topic: str, partition: int = 0) -> None:
    """One acknowledged record: connections, metadata and producer id are there."""
    producer.send(topic, b"first", partition=partition).result(30)


def test_send_is_asynchronous(faulty: FaultyCluster) -> None:
    """Row S21: with the leader paused, send() returns in under 1 ms; the result comes once it goes on."""
    create(faulty.bootstrap, "s21", replicas=[[1, 2, 3]])
    with Producer(faulty.bootstrap) as producer:
        warm(producer, "s21")
        faulty.nodes.pause(1)
        times, futures = [], []
        for number in range(100):
            began = time.perf_counter()
            futures.append(producer.send("s21", b"%d" % number))
            times.append(time.perf_counter() - began)
        assert sorted(times)[50] < 0.001, sorted(times)
        with pytest.raises(NotYet):
            futures[0].result(0.3)
        faulty.nodes.resume(1)
        acks = [future.result(30) for future in futures]
    assert [ack.offset for ack in acks] == list(range(1, 101))
    assert all(set(ack.replicas or ()) == {1, 2, 3} for ack in acks)


def test_acks_0_is_fire_and_forget(faulty: FaultyCluster) -> None:
    """Row S22: with the leader paused the send completes with offset -1; the leader dies, the record is gone, no retry.

    Left out: a table of rates and losses of acks 0 and 1.
    """
    create(faulty.bootstrap, "s22", replicas=[[1, 2, 3]])
    with Producer(faulty.bootstrap, acks=0, linger_ms=0) as producer:
        producer.send("s22", b"first").result(10)
        eventually(lambda: all(len(stored_batches(faulty.nodes.data_dir(node), "s22")) == 1 for node in (2, 3)))
        before = faulty.produce_requests()
        faulty.nodes.pause(1)
        ack = producer.send("s22", b"second").result(3)
        assert (ack.offset, ack.replicas) == (-1, ())
        eventually(lambda: faulty.produce_requests() == before + 1)
        faulty.nodes.kill(1)
        # Both: who is sent a record with acks=0 and does not know yet that it leads can only drop it. The metadata name
        # a leader before it leads; what can be read from it shows that it does.
        wait_led(faulty.address_of(2, 3), "s22", lambda parts: parts[0].leader in (2, 3))
        eventually(lambda: len(drain(faulty.bootstrap, "s22", 1)) == 1)
        assert producer.send("s22", b"third").result(10).offset == -1
        eventually(lambda: len(drain(faulty.bootstrap, "s22", 1)) == 2)
        assert faulty.produce_requests() == before + 2
    assert [record.value for record in drain(faulty.bootstrap, "s22", 1)] == [b"first", b"third"]


def test_acks_1_has_a_window_of_loss(faulty: FaultyCluster) -> None:
    """Row S23: no follower hears the leader: acks=1 returns and names the leader alone; it dies, nobody sees the
    record.

    The network is cut, for followers that are only paused find the record in their sockets later, and keep it.
    """
    create(faulty.bootstrap, "s23", replicas=[[1, 2, 3]])
    with (
        Producer(faulty.bootstrap, acks=1) as producer,
        Consumer(faulty.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        warm(producer, "s23")
        consumer.assign([("s23", 0)])
        seen = [record.value for record in eventually(lambda: consumer.poll(1))]
        eventually(lambda: all(len(stored_batches(faulty.nodes.data_dir(node), "s23")) == 1 for node in (2, 3)))
        faulty.cable.mute = True
        ack = producer.send("s23", b"lost").result(10)
        assert (ack.offset, ack.replicas) == (1, (1,))
        assert len(stored_batches(faulty.nodes.data_dir(1), "s23")) == 2
        seen += [record.value for record in consumer.poll(1)]
        assert seen == [b"first"]
    faulty.nodes.kill(1)
    with Admin(faulty.bootstrap) as admin:
        eventually(lambda: admin.describe_topics(["s23"])[0].partitions[0].leader in (2, 3))
    assert [record.value for record in drain(faulty.bootstrap, "s23", 1)] == [b"first"]
    faulty.heal()
    assert [record.value for record in drain(faulty.bootstrap, "s23", 1)] == [b"first"]
    with Producer(faulty.bootstrap) as producer:
        assert producer.send("s23", b"kept").result(10).offset == 1
    assert [record.value for record in drain(faulty.bootstrap, "s23", 1)] == [b"first", b"kept"]


def test_acks_all_waits_for_every_replica_in_sync(faulty: FaultyCluster) -> None:
    """Row S24: no ack while both followers of the ISR are paused; it comes when they go on, and outlives the leader."""
    create(faulty.bootstrap, "s24", replicas=[[1, 2, 3]])
    with Producer(faulty.bootstrap) as producer:
        warm(producer, "s24")
        for node in (2, 3):
            faulty.nodes.pause(node)
        future = producer.send("s24", b"second")
        eventually(lambda: len(stored_batches(faulty.nodes.data_dir(1), "s24")) == 2)
        with pytest.raises(NotYet):
            future.result(0.5)
        for node in (2, 3):
            faulty.nodes.resume(node)
        ack = future.result(20)
        assert ack.offset == 1
        assert set(ack.replicas or ()) == {1, 2, 3}
    faulty.nodes.kill(1)
    assert [record.value for record in drain(faulty.bootstrap, "s24", 1)] == [b"first", b"second"]


def test_acks_all_waits_no_longer_for_who_left(faulty: FaultyCluster) -> None:
    """Row S24: or until the silent follower has left the ISR; then the ack names the two that have the record."""
    create(faulty.bootstrap, "s24-left", replicas=[[1, 2, 3]])
    with Producer(faulty.bootstrap) as producer:
        warm(producer, "s24-left")
        faulty.nodes.pause(3)
        future = producer.send("s24-left", b"second")
        with pytest.raises(NotYet):
            future.result(0.5)
        assert set(future.result(20).replicas or ()) == {1, 2}
        with Admin(faulty.proxies[1].address) as admin:
            assert set(admin.describe_topics(["s24-left"])[0].partitions[0].isr) == {1, 2}


def test_retry_until_acknowledged(faulty: FaultyCluster) -> None:
    """Row S25: the reply is lost six times (about 3 s): one record in the log, one ack, no code of the user's."""
    create(faulty.bootstrap, "s25", replicas=[[1, 2, 3]])
    proxy = faulty.proxies[1]
    with Producer(faulty.bootstrap) as producer:
        warm(producer, "s25")
        proxy.lose_reply = lambda api_key: api_key == PRODUCE and proxy.lost < 6
        assert producer.send("s25", b"once").result(30).offset == 1
    assert proxy.lost == 6
    assert [record.value for record in drain(faulty.bootstrap, "s25", 1)] == [b"first", b"once"]


# Batches


def test_batch_size_closes_a_batch(faulty: FaultyCluster) -> None:
    """Row S26: 17 KB of small records make a request before the linger ends; the default is 16384."""
    assert ProducerConfig({}).batch_size == 16_384
    create(faulty.bootstrap, "s26", replicas=[[1, 2, 3]])
    producer = Producer(faulty.bootstrap, linger_ms=20_000)
    producer.partitions_for("s26")
    futures = [producer.send("s26", bytes(90)) for _ in range(190)]
    eventually(lambda: faulty.produce_requests() == 1)
    [frame] = faulty.proxies[1].frames
    assert 15_000 < len(frame) < 16_384 + 200
    assert futures[0].result(10).offset == 0
    assert not futures[-1].done()  # the rest lingers
    producer.close()
    assert futures[-1].result(0).offset == 189


def test_linger_waits_for_company(faulty: FaultyCluster) -> None:
    """Row S27: 100 sends within the linger make one request; without linger a lone record does not wait.

    Linger is 1000 ms here, not 50, for machines that are busy with more than this test.
    """
    create(faulty.bootstrap, "s27", replicas=[[1, 2, 3]])
    with Producer(faulty.bootstrap, linger_ms=1000) as producer:
        warm(producer, "s27")
        before = faulty.produce_requests()
        began = time.monotonic()
        futures = [producer.send("s27", b"%d" % number) for number in range(100)]
        assert futures[-1].result(10).offset == 100
        assert time.monotonic() - began >= 1.0
        assert faulty.produce_requests() == before + 1
    with Producer(faulty.bootstrap, linger_ms=0) as producer:
        warm(producer, "s27")
        times = []
        for _ in range(20):
            began = time.monotonic()
            producer.send("s27", b"alone").result(10)
            times.append(time.monotonic() - began)
    assert sorted(times)[10] < 0.5, times


def test_one_command_prints_both_ends_of_linger(cluster: DevCluster) -> None:
    """Row S27: `strandline bench` tells p50 and p99 at linger 0, and records/s at linger 20 with batches of 256 KB."""
    told = CliRunner().invoke(
        bench, ["-b", cluster.bootstrap, "-n", "3000", "--latency-records", "40", "--topic", "s27-bench", "-o", "json"]
    )
    assert told.exit_code == 0, told.output
    figures = json.loads(told.stdout)
    assert 0 < figures["ack_p50_ms"] <= figures["ack_p99_ms"]
    assert figures["produce_records_per_s"] > 0


def test_flush_waits_for_everything(faulty: FaultyCluster) -> None:
    """Row S28: with a linger of 10 s, flush() of 100 records returns in under 1 s, and the end offset is 100."""
    create(faulty.bootstrap, "s28", replicas=[[1, 2, 3]])
    with Producer(faulty.bootstrap, linger_ms=10_000) as producer:
        producer.partitions_for("s28")
        futures = [producer.send("s28", b"%d" % number) for number in range(100)]
        began = time.monotonic()
        producer.flush()
        assert time.monotonic() - began < 5  # 1 s is the claim on a machine of one's own
        assert all(future.done() for future in futures)
    with Admin(faulty.bootstrap) as admin:
        [listed] = admin.list_offsets({("s28", 0): LATEST}).values()
    assert listed.offset == 100


def test_buffer_memory_bounds_the_client(faulty: FaultyCluster) -> None:
    """Row S29: no broker answers, 1 MB of buffer: a send blocks 0.5 s, then raises BufferExhausted; memory is
    bounded."""
    create(faulty.bootstrap, "s29", replicas=[[1, 2, 3]])
    with Producer(faulty.bootstrap, buffer_memory=1_000_000, max_block_ms=500) as producer:
        warm(producer, "s29")
        for proxy in faulty.proxies.values():
            proxy.shut()
        resident = psutil.Process().memory_info().rss
        futures: list[Future[Ack]] = []
        began = 0.0

        def fill() -> None:
            nonlocal began
            while len(futures) < 2000:
                began = time.monotonic()
                futures.append(producer.send("s29", bytes(1000)))

        for _ in range(3):
            with pytest.raises(BufferExhausted, match=r"buffer\.memory=1000000"):
                fill()
            assert 0.45 < time.monotonic() - began < 3
        assert 900 < len(futures) < 1000
        assert psutil.Process().memory_info().rss - resident < 20_000_000
        for proxy in faulty.proxies.values():
            proxy.open()
        assert sorted(future.result(30).offset for future in futures) == list(range(1, len(futures) + 1))


# Order and duplicates


@pytest.mark.parametrize("in_flight", [5, 1])
def test_pipelining_without_idempotence(faulty: FaultyCluster, in_flight: int) -> None:
    """Row S30: the first of 5 requests fails once: with 5 in flight it comes last, with 1 in flight order is kept.

    Left out: that `doctor` says so; it looks at brokers, and this is a client's setting.
    """
    topic = f"s30-{in_flight}"
    create(faulty.bootstrap, topic, replicas=[[1, 2, 3]])
    proxy = faulty.proxies[1]
    damaged = threading.Event()

    def damage(api_key: int, frame: bytearray) -> None:
        place = frame.find(b"record-0")
        if api_key == PRODUCE and place >= 0 and not damaged.is_set():
            damaged.set()
            frame[place] ^= 0xFF  # the broker will say CORRUPT_MESSAGE, which may be tried again

    settings = {"enable_idempotence": False, "max_in_flight_requests_per_connection": in_flight}
    with Producer(faulty.bootstrap, linger_ms=0, batch_size=1, **settings) as producer:
        warm(producer, topic)
        proxy.damage_request = damage
        proxy.hold_replies()
        before = proxy.requests[PRODUCE]
        futures = [producer.send(topic, b"record-%d" % number) for number in range(5)]
        eventually(lambda: proxy.requests[PRODUCE] == before + in_flight)
        proxy.release_replies()
        for future in futures:
            future.result(20)
    assert damaged.is_set()
    values = [record.value for record in drain(faulty.bootstrap, topic, 1)]
    order = [1, 2, 3, 4, 0] if in_flight == 5 else [0, 1, 2, 3, 4]
    assert values == [b"first", *(b"record-%d" % number for number in order)]


def test_idempotence_keeps_each_record_once_and_in_order(faulty: FaultyCluster) -> None:
    """Row S31: replies lost at random in 10,000 sends with 5 in flight, two leaders killed: each value once, in
    order."""
    with pytest.raises(ConfigError, match=r"at most 5 with enable\.idempotence"):
        Producer(faulty.bootstrap, max_in_flight_requests_per_connection=6)
    create(faulty.bootstrap, "s31", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    rng = random.Random(31)
    with Producer(faulty.bootstrap, batch_size=500, linger_ms=1) as producer, Admin(faulty.bootstrap) as admin:
        warm(producer, "s31")
        for proxy in faulty.proxies.values():
            proxy.lose_reply = lambda api_key: api_key == PRODUCE and rng.random() < 0.1
        futures: list[Future[Ack]] = []
        for part, victim in ((range(3000), 1), (range(3000, 6000), 2), (range(6000, 10_000), None)):
            futures += [producer.send("s31", b"%d" % number, partition=number % 3) for number in part]
            futures[-2000].result(60)
            if victim is not None:
                faulty.nodes.kill(victim)
                faulty.nodes.start_node(victim)
                eventually(lambda: all(len(one.isr) == 3 for one in admin.describe_topics(["s31"])[0].partitions))
        acks = [future.result(60) for future in futures]
    assert sum(proxy.lost for proxy in faulty.proxies.values()) > 10
    by_partition: dict[int, list[bytes | None]] = defaultdict(list)
    for record in drain(faulty.bootstrap, "s31", 3):
        by_partition[record.partition].append(record.value)
    by_partition[0].remove(b"first")
    for partition in range(3):
        assert by_partition[partition] == [b"%d" % number for number in range(partition, 10_000, 3)]
    assert len({(ack.partition, ack.offset) for ack in acks if ack.offset >= 0}) == 10_000


def test_one_producer_for_many_threads(faulty: FaultyCluster) -> None:
    """Row S33: 8 threads, 80,000 sends: each value once, each thread's order kept, one data connection per broker."""
    create(faulty.bootstrap, "s33", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with Producer(faulty.bootstrap) as producer:

        def work(thread: int) -> None:
            for number in range(10_000):
                producer.send("s33", b"%d:%d" % (thread, number), partition=thread % 3)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(60)
        assert all(len(proxy.producing_connections) == 1 for proxy in faulty.proxies.values())
    seen: dict[bytes, list[int]] = defaultdict(list)
    for record in drain(faulty.bootstrap, "s33", 3):
        assert record.value is not None
        name, _, count = record.value.partition(b":")
        seen[name].append(int(count))
    assert len(seen) == 8
    assert all(numbers == list(range(10_000)) for numbers in seen.values())


# Finding the cluster


@needs_kcat
def test_any_broker_tells_of_all(faulty: FaultyCluster) -> None:
    """Row S34: one broker's address gives 3 brokers and all partitions; with that broker killed, produce goes on."""
    create(faulty.bootstrap, "s34", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    for proxy in faulty.proxies.values():
        listed = kcat("-b", proxy.address, "-L", "-t", "s34")
        assert "3 brokers:" in listed
        assert 'topic "s34" with 3 partitions' in listed
    with Producer(faulty.proxies[1].address) as producer:
        warm(producer, "s34")
        faulty.nodes.kill(1)
        acks = [producer.send("s34", b"after", partition=number).result(30) for number in range(3)]
    assert [ack.offset for ack in acks] == [1, 0, 0]


def test_the_data_path_needs_no_controller(faulty: FaultyCluster) -> None:
    """Row S34: with every controller paused, metadata, produce and fetch go on."""
    create(faulty.bootstrap, "s34-alone", replicas=[[1, 2, 3], [2, 3, 1]])
    for node in faulty.nodes.controller_ids:
        faulty.nodes.pause(node)
    with Admin(faulty.bootstrap) as admin:
        assert len(admin.describe_topics(["s34-alone"])[0].partitions) == 2
        assert len(admin.describe_cluster().nodes) == 3
    with Producer(faulty.bootstrap, acks=1) as producer:  # acks=1: no producer id to be had from a controller
        assert producer.send("s34-alone", b"one", partition=0).result(20).offset == 0
    with Producer(faulty.bootstrap, enable_idempotence=False) as producer:
        assert producer.send("s34-alone", b"two", partition=1).result(20).offset == 0
    # acks=1 tells that the leader has it: it is committed, and drained, as soon as the followers have it too.
    eventually(lambda: {record.value for record in drain(faulty.bootstrap, "s34-alone", 2)} == {b"one", b"two"})


def test_an_unreachable_advertised_address_is_named(faulty: FaultyCluster) -> None:
    """Row S34: the error names the address that a broker advertises and nobody answers at."""
    create(faulty.bootstrap, "s34-away", replicas=[[2, 3, 1]])
    faulty.proxies[2].shut()
    patience = {"delivery_timeout_ms": 4000, "request_timeout_ms": 1000, "linger_ms": 0}
    with Producer(faulty.proxies[1].address, **patience) as producer, pytest.raises(DeliveryTimeout) as told:
        producer.send("s34-away", b"x").result(20)
    assert f"cannot connect to {faulty.proxies[2].address}" in str(told.value)
    assert "advertised" in str(told.value)


def test_new_partitions_and_brokers_are_found_by_age(faulty: FaultyCluster) -> None:
    """Row S35: metadata age 1 s, an idle producer: it uses partitions, and a broker, that are new; no request
    failed."""
    create(faulty.bootstrap, "s35", replicas=[[1], [2]])
    sent = 0
    with Producer(faulty.bootstrap, metadata_max_age_ms=1000, linger_ms=0, batch_size=1) as producer:
        warm(producer, "s35")
        new = faulty.nodes.add_broker()
        with Admin(faulty.bootstrap) as admin:
            admin.create_partitions({"s35": 9})
            began = time.monotonic()
            eventually(lambda: producer.partitions_for("s35") == 9)
            assert time.monotonic() - began < 10  # 2 s is the claim on a machine of one's own
            # Those that lead the new ones must know it, or a request fails.
            wait_led(faulty.address_of(1, 2, 3, new), "s35", lambda parts: len(parts) == 9)
            leaders = {part.partition: part.leader for part in admin.describe_topics(["s35"])[0].partitions}
        assert new in leaders.values()
        before = faulty.produce_requests()
        used: set[int] = set()
        for _ in range(27):
            ack = producer.send("s35", b"spread").result(20)
            used.add(ack.partition)
            sent += leaders[ack.partition] != new
    assert used == set(range(9))
    assert faulty.produce_requests() == before + sent
