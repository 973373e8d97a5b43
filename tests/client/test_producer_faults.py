"""The producer among faults, in virtual time: nothing twice, lost, or out of order (rows S10, S25, S30, S31)."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.errors import DeliveryTimeout
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from tests.client.broker import BOOTSTRAP, Act, ScriptedCluster, drawn, play

WHERE = TopicPartition("t", 0)


def producer(ports: Ports, **settings: Any) -> Producer:
    return Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, **settings)


@pytest.mark.parametrize("seed", range(12))
def test_each_record_once_and_in_order_among_lost_answers_and_moving_leaders(seed: int) -> None:
    """Rule C1, row S31: replies lost, requests lost, errors after the append, leaders moving, 5 requests in flight."""
    rng = random.Random(seed)
    acked: dict[int, tuple[int, int]] = {}

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        chances = {"lost_before": 0.04, "lost_after": 0.08, "error_after": 0.08, "error_before": 0.05, "slow": 0.2}
        cluster.on_produce = drawn(rng, chances)
        async with producer(ports, batch_size=120, linger_ms=1) as sender:
            waiting = []
            for number in range(400):
                waiting.append(await sender.send("t", b"%d" % number, partition=number % 2))
                if number % 40 == 20:
                    where = TopicPartition("t", rng.randrange(2))
                    cluster.move(where, rng.randint(1, 3))
                if number % 10 == 0:
                    await asyncio.sleep(rng.uniform(0, 0.05))
            for number, ack in enumerate(await asyncio.gather(*waiting)):
                acked[number] = (ack.partition, ack.offset)

    cluster = play(scenario, {"t": 2}, seed=seed)
    for partition in range(2):
        records = cluster.records[TopicPartition("t", partition)]
        assert [int(record.value or b"") for record in records] == list(range(partition, 400, 2))
        for record in records:
            told = acked[int(record.value or b"")]
            # An answer to a duplicate may leave the offset out (-1), but never names a wrong one.
            assert told in ((partition, record.offset), (partition, -1))


def test_a_batch_that_times_out_leaves_a_gap_that_the_next_epoch_closes() -> None:
    """KIP-360: the batches behind an expired one are not lost, not doubled, and the producer goes on."""
    outcomes: list[Any] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        settings = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 900, "batch_size": 1, "linger_ms": 0}
        async with producer(ports, **settings) as sender:
            outcomes.append(await sender.send_and_wait("t", b"0", partition=0))
            cluster.on_produce = lambda _: Act(apply=False, error=ErrorCode.NOT_ENOUGH_REPLICAS)
            lost = await sender.send("t", b"lost", partition=0)
            await asyncio.sleep(0.6)
            behind = await sender.send("t", b"behind", partition=0)
            outcomes.extend(await asyncio.gather(lost, return_exceptions=True))
            cluster.on_produce = lambda _: Act()
            outcomes.append(await behind)
            outcomes.append(await sender.send_and_wait("t", b"after", partition=0))

    cluster = play(scenario, {"t": 1})
    assert isinstance(outcomes[1], DeliveryTimeout)
    assert isinstance(outcomes[1].last_error, KafkaError)
    assert outcomes[1].last_error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [record.value for record in cluster.records[WHERE]] == [b"0", b"behind", b"after"]


def test_records_that_come_faster_than_they_are_taken_are_acknowledged_as_fast_as_they_are() -> None:
    """Rule C23: a broker takes ten batches a second, and ten times as many come. Each would go out just before
    its time is over, and its answer come too late: everything is written, and nothing acknowledged."""
    outcomes: list[Any] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        settings = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_500, "batch_size": 1, "linger_ms": 0}
        async with producer(ports, **settings, max_request_size=1_000) as sender:
            await sender.send_and_wait("t", b"0", partition=0)
            cluster.on_produce = lambda _: Act(delay_ms=100)
            waiting = []
            for _ in range(1_000):
                waiting.append(await sender.send("t", bytes(900), partition=0))
                await asyncio.sleep(0.01)
            outcomes.extend(await asyncio.gather(*waiting, return_exceptions=True))

    cluster = play(scenario, {"t": 1})
    written, acked = len(cluster.records[WHERE]) - 1, sum(not isinstance(one, Exception) for one in outcomes)
    assert acked > written * 3 / 4, (acked, written)
    unsent = [one for one in outcomes if isinstance(one, DeliveryTimeout) and "they are not in the log" in str(one)]
    assert len(unsent) + written >= len(outcomes), "of what was not sent it is known"


def test_an_expired_batch_that_was_written_after_all_is_not_followed_by_a_duplicate() -> None:
    """The broker appended it and its answer was lost: what is behind is taken under its old number."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        settings = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 400, "batch_size": 1, "linger_ms": 0}
        async with producer(ports, **settings) as sender:
            await sender.send_and_wait("t", b"0", partition=0)
            cluster.on_produce = lambda _: Act(answer=False)
            written = await sender.send("t", b"written", partition=0)
            await asyncio.sleep(0.5)
            behind = await sender.send("t", b"behind", partition=0)
            with pytest.raises(DeliveryTimeout):
                await written
            cluster.on_produce = lambda _: Act()
            await behind

    cluster = play(scenario, {"t": 1})
    assert [record.value for record in cluster.records[WHERE]] == [b"0", b"written", b"behind"]


def test_nothing_new_is_sent_beyond_what_brokers_remember() -> None:
    """Rule C1: a batch written five batches ago is forgotten; its retry must come before a sixth goes out."""
    seen: list[int] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, batch_size=1, linger_ms=0, retry_backoff_ms=500) as sender:
            await sender.send_and_wait("t", b"first", partition=0)

            def script(_: TopicPartition) -> Act:
                seen.append(len(seen))
                return Act(error=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND) if len(seen) == 1 else Act()

            cluster.on_produce = script
            waiting = [await sender.send("t", b"%d" % number, partition=0) for number in range(20)]
            await asyncio.sleep(0.3)
            assert len(seen) == 5, "the one without an ack, and four behind it"
            assert [ack.offset for ack in await asyncio.gather(*waiting)] == list(range(1, 21))

    play(scenario, {"t": 1})


def test_the_first_batch_travels_alone() -> None:
    """A leader without a trace of the producer id takes any sequence: nothing may overtake sequence 0."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        cluster.on_produce = lambda _: Act(delay_ms=200)
        async with producer(ports, batch_size=1, linger_ms=0) as sender:
            waiting = [await sender.send("t", b"%d" % number, partition=0) for number in range(4)]
            await asyncio.sleep(0.1)
            assert sender._core is not None
            assert len(sender._core.accumulator.queues[WHERE].on_wire) == 1
            await asyncio.gather(*waiting)

    play(scenario, {"t": 1})


def test_a_silent_old_leader_is_not_waited_for() -> None:
    """A paused broker keeps its connections: what it has not answered goes to the new leader once one is known."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, linger_ms=0, metadata_max_age_ms=200) as sender:
            await sender.send_and_wait("t", b"0", partition=0)
            silent = cluster.partitions[WHERE].leader
            cluster.silent_nodes.add(silent)
            waiting = [await sender.send("t", b"1", partition=0), await sender.send("t", b"2", partition=0)]
            await asyncio.sleep(1)
            cluster.move(WHERE, silent % 3 + 1)
            started_ms = ports.clock.monotonic_ms()
            await asyncio.gather(*waiting)
            assert ports.clock.monotonic_ms() - started_ms < 1_000

    assert [record.value for record in play(scenario, {"t": 1}).records[WHERE]] == [b"0", b"1", b"2"]


def test_without_idempotence_and_one_in_flight_order_is_kept() -> None:
    """Row S30: a retry may double a record, but with one request in flight it never overtakes."""
    rng = random.Random(3)

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        cluster.on_produce = drawn(rng, {"lost_after": 0.2, "error_before": 0.2})
        settings = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1, "batch_size": 60}
        async with producer(ports, linger_ms=1, **settings) as sender:
            await asyncio.gather(*[await sender.send("t", b"%d" % n, partition=0) for n in range(100)])

    values = [int(record.value or b"") for record in play(scenario, {"t": 1}).records[WHERE]]
    assert values != sorted(set(values)), "the script must have doubled something, or this shows nothing"
    assert list(dict.fromkeys(values)) == list(range(100))


def test_without_idempotence_nothing_overtakes_across_leaders() -> None:
    """Row S30: in-flight 1 keeps order over an election too: the new leader waits for the old one's answer."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        settings = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1, "batch_size": 1}
        async with producer(ports, linger_ms=0, metadata_max_age_ms=100, **settings) as sender:
            await sender.send_and_wait("t", b"0", partition=0)
            acts = [Act(delay_ms=700)]
            cluster.on_produce = lambda _: acts.pop() if acts else Act()
            waiting = [await sender.send("t", b"%d" % number, partition=0) for number in (1, 2, 3)]
            await asyncio.sleep(0.05)
            cluster.move(WHERE, cluster.partitions[WHERE].leader % 3 + 1)
            await asyncio.gather(*waiting)

    records = play(scenario, {"t": 1}).records[WHERE]
    assert [record.value for record in records] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("settings", [{}, {"acks": "0"}, {"delivery_timeout_ms": 500, "request_timeout_ms": 400}])
def test_a_flush_ends_behind_the_answers_of_its_records(settings: dict[str, Any]) -> None:
    """Schedule 109: who hears that a flush has ended finds futures done: acknowledged, not waited for, or failed."""
    done: list[bool] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, **settings) as sender:
            await sender.partitions_for("t")
            if "delivery_timeout_ms" in settings:
                cluster.on_produce = lambda _: Act(apply=False, error=ErrorCode.NOT_ENOUGH_REPLICAS)
            core = sender._started()
            futures = [await sender.send("t", b"%d" % number, partition=0) for number in range(3)]
            core.accumulator.start_flush(lambda: done.extend(future.done() for future in futures))
            await asyncio.wait(futures)
            await asyncio.sleep(0)

    play(scenario, {"t": 1})
    assert done == [True] * 3


def test_acks_zero_is_never_retried() -> None:
    """Row S22: fire and forget: offset -1 at once, one request, and what the broker lost stays lost."""
    told: list[Any] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, acks="0", linger_ms=0) as sender:
            told.append(await sender.send_and_wait("t", b"kept", partition=0))
            await asyncio.sleep(0.1)
            cluster.on_produce = lambda _: Act(apply=False, answer=False)
            told.append(await sender.send_and_wait("t", b"lost", partition=0))
            await asyncio.sleep(5)

    cluster = play(scenario, {"t": 1})
    assert [ack.offset for ack in told] == [-1, -1]
    assert [ack.replicas for ack in told] == [(), ()]
    assert [record.value for record in cluster.records[WHERE]] == [b"kept"]
    assert cluster.requests[Api.PRODUCE] == 2


def test_acks_zero_hears_of_a_new_leader_by_the_connection_that_is_closed() -> None:
    """Row S22: a broker that leads no more closes the connection, as Kafka's does, and the producer asks who leads now.
    What was sent meanwhile is lost; not all that follows until the metadata are five minutes old."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, acks="0", linger_ms=0) as sender:
            await sender.send_and_wait("t", b"before", partition=0)
            await asyncio.sleep(0.1)
            cluster.move(WHERE, 2)
            for number in range(20):
                await sender.send_and_wait("t", b"%d" % number, partition=0)
                await asyncio.sleep(0.1)

    cluster = play(scenario, {"t": 1})
    values = [record.value for record in cluster.records[WHERE]]
    assert values[0] == b"before"
    assert values[-10:] == [b"%d" % number for number in range(10, 20)]


@pytest.mark.parametrize("leaders", [[2], [1, 2], [2, 1, 3]], ids=str)
def test_a_broker_that_hears_of_no_election_is_not_asked_for_ever(leaders: list[int]) -> None:
    """KIP-320: a client that can reach it stays with a broker that the cluster cannot: who leads is asked of another.
    Some of the elections the client has heard of before; what the deaf one tells is older then, or as old."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, linger_ms=0, delivery_timeout_ms=5_000, request_timeout_ms=1_000) as sender:
            await sender.send_and_wait("t", b"first", partition=0)
            cluster.deafen(1)
            for leader in leaders:
                cluster.move(WHERE, leader)
                await sender.send_and_wait("t", b"led by %d" % leader, partition=0)
                await asyncio.sleep(20)

    cluster = play(scenario, {"t": 1})
    assert [record.value for record in cluster.records[WHERE]] == [b"first", *(b"led by %d" % one for one in leaders)]


def test_acks_one_names_the_leader_alone() -> None:
    """Row S23: what acks=1 promises is one copy."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, acks="1") as sender:
            ack = await sender.send_and_wait("t", b"x", partition=1)
            assert (ack.offset, ack.replicas) == (0, (cluster.partitions[TopicPartition("t", 1)].leader,))

    play(scenario, {"t": 2})


@pytest.mark.parametrize("bound", ["max_message_bytes", "segment_bytes"])
def test_a_batch_too_large_is_split_and_keeps_its_order(bound: str) -> None:
    """MESSAGE_TOO_LARGE or RECORD_LIST_TOO_LARGE for a batch of several records: halves are sent until they fit."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        log = cluster.partitions[WHERE].log
        log.config = replace(log.config, **{bound: 400}, preallocate_bytes=0)
        async with producer(ports, batch_size=4_000, linger_ms=20) as sender:
            waiting = [await sender.send("t", b"%03d" % number * 10, partition=0) for number in range(60)]
            offsets = [(await ack).offset for ack in waiting]
            assert offsets == list(range(60))

    cluster = play(scenario, {"t": 1})
    assert [int((record.value or b"")[:3]) for record in cluster.records[WHERE]] == list(range(60))


async def send_tens(ports: Ports, count: int, pause_s: float) -> None:
    """Records of 80 bytes, ten and a pause at a time, by a producer whose batches grow from 1,000 bytes to 8,000."""
    async with producer(ports, batch_size=1_000, batch_size_max=8_000, linger_ms=0) as sender:
        waiting = []
        for number in range(count):
            waiting.append(await sender.send("t", b"%04d" % number * 20, partition=0))
            if number % 10 == 0:
                await asyncio.sleep(pause_s)
        assert [(await ack).offset for ack in waiting] == list(range(count))


def check_once_and_in_order(cluster: ScriptedCluster, count: int) -> None:
    assert [int((record.value or b"")[:4]) for record in cluster.records[WHERE]] == list(range(count))


def test_batches_grow_while_answers_are_slow_and_keep_their_order() -> None:
    """Five requests are out and nobody answers: what is sent meanwhile goes in a few large batches, within the bound,
    and each record is there once and in order."""
    sizes: list[int] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        def judge(_where: TopicPartition, records: bytes) -> Act:
            sizes.append(len(records))
            return Act(delay_ms=50)

        cluster.on_batch = judge
        await send_tens(ports, 3_000, pause_s=0.001)

    check_once_and_in_order(play(scenario, {"t": 1}), 3_000)
    assert max(sizes) <= 8_000
    assert sum(size > 7_000 for size in sizes) > len(sizes) / 2


def test_batches_of_a_partition_that_found_one_too_large_grow_no_more() -> None:
    """Segments hold no more than 2,000 bytes: a batch that grew is refused and split, and the next ones stay small."""
    refused: list[int] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        def judge(_where: TopicPartition, records: bytes) -> Act:
            if len(records) <= 2_000:
                return Act(delay_ms=50)
            refused.append(len(records))
            return Act(apply=False, error=ErrorCode.RECORD_LIST_TOO_LARGE, delay_ms=50)

        cluster.on_batch = judge
        await send_tens(ports, 9_000, pause_s=0.005)

    check_once_and_in_order(play(scenario, {"t": 1}), 9_000)
    assert 1 <= len(refused) < 40


def test_one_record_too_large_for_the_broker_fails_alone() -> None:
    """The record fails with the broker's code; those before and behind are kept, in order."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        log = cluster.partitions[WHERE].log
        log.config = type(log.config)(max_message_bytes=400, preallocate_bytes=0)
        async with producer(ports, batch_size=1_000, linger_ms=20) as sender:
            waiting = [await sender.send("t", value, partition=0) for value in (b"a", b"b" * 500, b"c")]
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [getattr(result, "offset", None) for result in results] == [0, None, 1]
            assert isinstance(results[1], KafkaError)
            assert results[1].code is ErrorCode.MESSAGE_TOO_LARGE

    assert [record.value for record in play(scenario, {"t": 1}).records[WHERE]] == [b"a", b"c"]


def test_a_refused_epoch_gets_a_new_producer_id() -> None:
    """INVALID_PRODUCER_EPOCH: the id is burnt, another one goes on from sequence 0."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, linger_ms=0) as sender:
            await sender.send_and_wait("t", b"0", partition=0)
            acts = [Act(apply=False, error=ErrorCode.INVALID_PRODUCER_EPOCH)]
            cluster.on_produce = lambda _: acts.pop() if acts else Act()
            await sender.send_and_wait("t", b"1", partition=0)

    cluster = play(scenario, {"t": 1})
    assert [record.value for record in cluster.records[WHERE]] == [b"0", b"1"]
    assert cluster.requests[Api.INIT_PRODUCER_ID] == 2
