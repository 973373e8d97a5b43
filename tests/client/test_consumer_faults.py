"""The consumer among elections, truncations and logs that end elsewhere, in virtual time (rows S51 to S53, S68,
S71)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Consumer, Producer
from strandline.client.errors import (
    BrokerUnreachable,
    ClientError,
    ClientTimeout,
    LogTruncated,
    NoOffsetForPartition,
    OffsetOutOfRange,
    UnknownTopic,
)
from strandline.client.range_reader import AsyncRangeReader
from strandline.client.types import ConsumerRecord
from strandline.log.batch import iter_batches
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from tests.client.broker import BOOTSTRAP, FIRST_PORT, HOST, ScriptedCluster, play

WHERE = TopicPartition("t", 0)


def consumer(ports: Ports, **settings: Any) -> Consumer:
    return Consumer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, **{"auto_offset_reset": "earliest", **settings})


async def fill(ports: Ports, count: int, *, partitions: int = 1, size: int = 10, **settings: Any) -> None:
    """Records "0", "1", ... in turn over the partitions of topic t."""
    async with Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, linger_ms=0, **settings) as producer:
        for number in range(count):
            value = b"%d" % number
            await producer.send("t", value.ljust(size), partition=number % partitions, timestamp_ms=1_000 + number)


async def read(reader: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        found = await reader.poll(5.0)
        assert found, f"{len(records)} of {count} records, then none for 5 s"
        records += found
    return records


@pytest.mark.parametrize("way", ["poll", "next_record", "poll_columns"])
def test_a_call_that_is_cancelled_at_any_await_costs_no_record(way: str) -> None:
    """Schedule 108: whatever it had taken of what was fetched, it hands out, or the next call does."""
    offsets: list[int] = []

    async def one(reader: Consumer) -> list[int]:
        if way == "poll":
            return [record.offset for record in await reader.poll(0.2, 3)]
        if way == "next_record":
            record = await reader.next_record(0.2)
            return [] if record is None else [record.offset]
        polled = await reader.poll_columns(0.2, 3)
        return [int(at) for part in polled.parts for at in memoryview(part.columns.offsets).cast("q")]

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 60, batch_size=100)
        async with consumer(ports, fetch_max_bytes=500) as reader:
            reader.assign([WHERE])
            steps = 0
            while len(offsets) < 60 and steps < 500:
                steps += 1
                task = asyncio.ensure_future(one(reader))
                for _ in range(steps % 9):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    offsets.extend(task.result())
                await asyncio.sleep(0.01)

    play(scenario, {"t": 1})
    assert offsets == list(range(60))


def test_what_was_polled_ahead_comes_after_a_pause() -> None:
    """Schedule 108: an iteration has polled records ahead of the one that it has handed out."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 10)
        async with consumer(ports) as reader:
            reader.assign([WHERE])
            first = await reader.next_record(5.0)
            assert first is not None
            reader.pause(WHERE)
            assert await reader.poll(0.1) == []
            reader.resume(WHERE)
            assert [first.offset, *(record.offset for record in await read(reader, 9))] == list(range(10))

    play(scenario, {"t": 1})


@pytest.mark.parametrize("seed", range(6))
def test_every_record_once_and_in_order_over_elections(seed: int) -> None:
    """Row S10: leaders move while records are read; nothing is skipped, nothing repeated."""
    rng = random.Random(seed)
    read_back: list[ConsumerRecord] = []

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 900, partitions=3, batch_size=200)
        settings = {"max_poll_records": 40, "max_partition_fetch_bytes": 600, "fetch_max_bytes": 2_000}
        async with consumer(ports, **settings) as reader:
            reader.assign([("t", number) for number in range(3)])
            while len(read_back) < 900:
                if rng.random() < 0.2:
                    cluster.move(TopicPartition("t", rng.randrange(3)), rng.randint(1, 3))
                read_back.extend(await reader.poll(5.0))

    play(scenario, {"t": 3}, seed=seed)
    for partition in range(3):
        mine = [record for record in read_back if record.partition == partition]
        assert [record.offset for record in mine] == list(range(300))
        assert [int(record.value or b"") for record in mine] == list(range(partition, 900, 3))


def test_positions_seeks_and_questions() -> None:
    """Rows S68, S71: by offset, by time, from either end; no registration anywhere."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 50)
        async with consumer(ports, auto_offset_reset="latest") as reader:
            with pytest.raises(ClientError, match="nothing is assigned"):
                await reader.poll()
            with pytest.raises(ClientError, match="t-0 is not assigned"):
                reader.seek(WHERE, 3)
            reader.assign([WHERE])
            assert reader.assignment() == [WHERE]
            assert await reader.position(WHERE) == 50
            reader.seek(WHERE, 7)
            assert (await reader.poll(1.0, 1))[0].offset == 7
            assert await reader.position(("t", 0)) == 8
            reader.seek_to_beginning()
            assert [record.offset for record in await reader.poll(1.0)] == list(range(50))
            reader.seek_to_timestamp({WHERE: 1_020})
            assert (await reader.poll(1.0, 1))[0].offset == 20
            reader.seek_to_timestamp({WHERE: 5_000})
            assert await reader.position(WHERE) == 50
            reader.seek_to_end(WHERE)
            assert await reader.poll(0.2) == []
            assert await reader.beginning_offsets([WHERE]) == {WHERE: 0}
            assert await reader.end_offsets([WHERE]) == {WHERE: 50}
            found = await reader.offsets_for_times({WHERE: 1_049})
            assert found[WHERE] is not None
            assert found[WHERE][:2] == (49, 1_049)
            assert await reader.offsets_for_times({WHERE: 1_050}) == {WHERE: None}
            assert await reader.partitions_for("t") == [0]

    play(scenario, {"t": 1})


def test_iteration_and_poll_share_one_position() -> None:
    """Records that iteration holds back are given to poll, and dropped by a seek."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 20)
        async with consumer(ports, max_poll_records=5) as reader:
            reader.assign([WHERE])
            assert [(await anext(reader)).offset for _ in range(3)] == [0, 1, 2]
            assert await reader.position(WHERE) == 3
            assert [record.offset for record in await reader.poll(1.0)] == [3, 4]
            assert (await anext(reader)).offset == 5
            reader.seek(WHERE, 18)
            assert [(await anext(reader)).offset for _ in range(2)] == [18, 19]

    play(scenario, {"t": 1})


def test_a_backlog_does_not_hold_the_loop() -> None:
    """Row S70: while records that lie there are iterated over, others on the loop have turns, one a batch at least."""
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 1_000)
        async with consumer(ports, max_poll_records=20) as reader:
            reader.assign([WHERE])
            await anext(reader)
            ticking = asyncio.create_task(tick())
            for _ in range(899):
                await anext(reader)
            assert turns >= 40
            ticking.cancel()

    play(scenario, {"t": 1})


def test_pause_keeps_the_position() -> None:
    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 20, partitions=2)
        async with consumer(ports) as reader:
            reader.assign([("t", 0), ("t", 1)])
            reader.pause(("t", 1))
            assert reader.paused() == [TopicPartition("t", 1)]
            assert {record.partition for record in await read(reader, 10)} == {0}
            assert await reader.poll(0.3) == []
            reader.resume(("t", 1))
            assert [record.offset for record in await read(reader, 10)] == list(range(10))

    play(scenario, {"t": 2})


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_paused_partitions_hold_does_not_starve_the_others(nodes: int) -> None:
    """Row S51: two paused partitions had the whole of `fetch.max.bytes` in their buffers: the third one got nothing
    for as long as the pause lasted. What they held comes after `resume`, once and in order, and the bound holds."""
    bound = 2_000

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 300, partitions=3)
        async with consumer(ports, fetch_max_bytes=bound, max_partition_fetch_bytes=1_000) as reader:
            held = [("t", 0), ("t", 1)]
            reader.assign(held)
            records = await reader.poll(5.0, 1)
            fetcher = reader._started()
            while fetcher.buffered_bytes < bound - 2 * 100:  # no further whole batch goes in
                await asyncio.sleep(0.05)
            reader.pause(*held)
            reader.assign([*held, ("t", 2)])
            others = await read(reader, 100)
            assert [(one.partition, one.offset) for one in others] == [(2, offset) for offset in range(100)]
            assert fetcher.buffered_bytes <= bound + 100
            reader.resume(*held)
            records += await read(reader, 200 - len(records))
            for partition in (0, 1):
                assert [one.offset for one in records if one.partition == partition] == list(range(100))

    play(scenario, {"t": 3}, nodes=nodes)


def test_max_poll_records_and_few_requests() -> None:
    """Row S53: 1,000 records, ten polls of 100, no gap, no repeat; far fewer requests than polls need."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 1_000)
        before = cluster.requests[Api.FETCH]
        async with consumer(ports, max_poll_records=100) as reader:
            reader.assign([WHERE])
            polls = [await reader.poll(1.0) for _ in range(10)]
            assert [len(records) for records in polls] == [100] * 10
            assert [record.offset for records in polls for record in records] == list(range(1_000))
            assert cluster.requests[Api.FETCH] - before <= 3
            assert reader.fetch_requests_sent <= 3

    play(scenario, {"t": 1})


def test_long_poll_waits_without_asking_and_wakes_at_once() -> None:
    """Row S52: at most about 10 requests in 5 idle seconds; a record of second 2 is there within 50 ms."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with consumer(ports) as reader:
            reader.assign([WHERE])
            await reader.position(WHERE)
            before = cluster.requests[Api.FETCH]
            assert await reader.poll(5.0) == []
            assert cluster.requests[Api.FETCH] - before <= 12
            polling = asyncio.ensure_future(reader.poll(5.0))
            await asyncio.sleep(2)
            await fill(ports, 1)
            sent_ms = ports.clock.monotonic_ms()
            assert len(await polling) == 1
            assert ports.clock.monotonic_ms() - sent_ms < 50

    play(scenario, {"t": 1})


def test_a_slow_reader_keeps_its_bounds() -> None:
    """Row S51: what waits for poll stays below fetch.max.bytes, one batch per broker apart, and asking stops."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 3_000, partitions=3, size=100, batch_size=2_000)
        bounds = {"fetch_max_bytes": 30_000, "max_partition_fetch_bytes": 8_000}
        async with consumer(ports, max_poll_records=10, **bounds) as reader:
            reader.assign([("t", number) for number in range(3)])
            taken = 0
            for _ in range(20):
                taken += len(await reader.poll(1.0))
                await asyncio.sleep(1)
                assert reader._fetcher is not None
                assert reader._fetcher.buffered_bytes <= 30_000 + 3 * 2_200
            assert cluster.requests[Api.FETCH] < 30
            assert len(await read(reader, 3_000 - taken)) == 3_000 - taken

    play(scenario, {"t": 3})


@pytest.mark.parametrize(("policy", "goes_to"), [("earliest", 30), ("latest", 60)])
def test_outside_the_log_the_policy_decides(policy: str, goes_to: int) -> None:
    """auto.offset.reset: the log has lost its beginning, or never reached that far."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 60, batch_size=1)
        cluster.partitions[WHERE].log.delete_records_before(30)
        async with consumer(ports, auto_offset_reset=policy) as reader:
            reader.assign([WHERE])
            for outside in (3, 1_000):
                reader.seek(WHERE, outside)
                await reader.poll(0.5, 1)
                assert await reader.position(WHERE) in (goes_to, goes_to + 1)

    play(scenario, {"t": 1})


def test_outside_the_log_without_a_policy_the_error_has_the_figures() -> None:
    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 60, batch_size=1)
        cluster.partitions[WHERE].log.delete_records_before(30)
        async with consumer(ports, auto_offset_reset="none") as reader:
            reader.assign([WHERE])
            with pytest.raises(NoOffsetForPartition, match="t-0 has no position"):
                await reader.poll(1.0)
            reader.seek(WHERE, 3)
            with pytest.raises(OffsetOutOfRange) as caught:
                await reader.poll(1.0)
            error = caught.value
            assert (error.requested, error.log_start, error.log_end) == (3, 30, 60)
            reader.seek(WHERE, 30)
            assert len(await read(reader, 30)) == 30

    play(scenario, {"t": 1})


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_truncation_after_an_election_is_noticed(policy: str) -> None:
    """KIP-320: records were read that the new leader does not have: go back to where the logs part, or tell."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 20, batch_size=1)
        async with consumer(ports, auto_offset_reset=policy, metadata_max_age_ms=300) as reader:
            reader.assign([WHERE])
            reader.seek(WHERE, 0)
            await read(reader, 20)
            cluster.partitions[WHERE].log.truncate_to(12)
            cluster.move(WHERE, cluster.partitions[WHERE].leader % 3 + 1)
            await fill(ports, 15, batch_size=1)
            if policy == "none":
                with pytest.raises(LogTruncated) as caught:
                    await read(reader, 1)
                assert (caught.value.position, caught.value.diverged_at) == (20, 12)
            else:
                records = await read(reader, 15)
                assert [record.offset for record in records] == list(range(12, 27))
                assert {record.leader_epoch for record in records} == {1}

    play(scenario, {"t": 1})


def test_an_unknown_topic_is_told_in_seconds_with_the_command() -> None:
    """Consumers must not hang without a word."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        start_ms = ports.clock.monotonic_ms()
        async with consumer(ports) as reader:
            reader.assign([("nope", 0)])
            with pytest.raises(UnknownTopic, match="strandline topic create nope --partitions 3"):
                await reader.poll(30.0)
            reader.assign([("t", 5)])
            reader.seek(("t", 5), 0)
            with pytest.raises(KafkaError, match="topic 't' has partitions 0 to 0"):
                await reader.poll(30.0)
        assert ports.clock.monotonic_ms() - start_ms < 15_000

    play(scenario, {"t": 1})


def test_an_unreachable_leader_is_named() -> None:
    """Row S34: the address that the broker advertises stands in the error."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        cluster.advertised[1] = (HOST, FIRST_PORT + 77)
        async with consumer(ports, default_api_timeout_ms=3_000) as reader:
            with pytest.raises(ClientTimeout) as caught:
                await reader.end_offsets([WHERE])
        error = caught.value.last_error
        assert isinstance(error, BrokerUnreachable)
        assert error.endpoint == f"{HOST}:{FIRST_PORT + 77}"
        assert "broker 1 advertises" in str(error)

    play(scenario, {"t": 1})


def test_damage_is_told_and_nothing_of_it_returned() -> None:
    """Row S78: CORRUPT_MESSAGE with partition and offset; what lies before is returned, the position stays."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 4, batch_size=1)
        original = cluster._read

        async def damaged(node: int, where: TopicPartition, wanted: Any) -> tuple[ErrorCode, bytes]:
            code, data = await original(node, where, wanted)
            spoiled = bytearray(data)
            if len(spoiled) > 200:
                spoiled[-3] ^= 1
            return code, bytes(spoiled)

        cluster._read = damaged  # type: ignore[method-assign]
        async with consumer(ports) as reader:
            reader.assign([WHERE])
            assert [record.offset for record in await reader.poll(1.0)] == [0, 1, 2]
            for _ in range(2):
                with pytest.raises(KafkaError, match="CORRUPT_MESSAGE") as caught:
                    await reader.poll(1.0)
                assert caught.value.figures["partition"] == "t-0"
                assert await reader.position(WHERE) == 3

    play(scenario, {"t": 1})


@pytest.mark.parametrize("bit", [60, 6, 0])
def test_a_rotten_base_offset_is_told_by_the_order(bit: int) -> None:
    """The CRC does not cover it (simulator seed 960: a record was returned at 2^59 + its offset). What lies
    before the two batches that contradict each other is returned, then poll says CORRUPT_MESSAGE."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 5, batch_size=1)
        original = cluster._read

        async def damaged(node: int, where: TopicPartition, wanted: Any) -> tuple[ErrorCode, bytes]:
            code, data = await original(node, where, wanted)
            spoiled = bytearray(data)
            for header, batch in iter_batches(memoryview(spoiled)):
                if header.base_offset == 3:
                    batch[:8] = (3 ^ 1 << bit).to_bytes(8, "big")
            return code, bytes(spoiled)

        cluster._read = damaged  # type: ignore[method-assign]
        async with consumer(ports) as reader:
            reader.assign([WHERE])
            good = [record.offset for record in await reader.poll(1.0)]
            assert good == ([0, 1] if bit == 0 else [0, 1, 2])
            for _ in range(2):
                with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
                    await reader.poll(1.0)
                assert await reader.position(WHERE) == len(good)

    play(scenario, {"t": 1})


def test_a_broker_with_rot_is_asked_again_and_then_told_of() -> None:
    """Row S78: a broker answers CORRUPT_MESSAGE while it gives the leadership away, so a poll waits; where nobody
    takes over, polls say it, and the position stays."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 3, batch_size=1)
        original, rotten_until_ms = cluster._read, [ports.clock.monotonic_ms() + 1_000]

        async def rotten(node: int, where: TopicPartition, wanted: Any) -> tuple[ErrorCode, bytes]:
            if ports.clock.monotonic_ms() < rotten_until_ms[0]:
                return ErrorCode.CORRUPT_MESSAGE, b""
            return await original(node, where, wanted)

        cluster._read = rotten  # type: ignore[method-assign]
        async with consumer(ports) as reader:
            reader.assign([WHERE])
            assert [record.offset for record in await reader.poll(5.0)] == [0, 1, 2]
            rotten_until_ms[0] = float("inf")
            await fill(ports, 1, batch_size=1)
            for _ in range(2):
                with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
                    await reader.poll(8.0)
                assert await reader.position(WHERE) == 3
            rotten_until_ms[0] = 0
            assert [record.offset for record in await reader.poll(5.0)] == [3]

    play(scenario, {"t": 1})


async def drain(reader: AsyncRangeReader, start: int, end: int) -> None:
    async for _ in reader.answers(WHERE, start, end):
        continue


def test_ranges_are_read_over_elections_and_checked_against_the_log() -> None:
    """The range reader: exactly the range, whatever the batches; figures where the log does not hold it."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 300, batch_size=150)
        cluster.partitions[WHERE].log.delete_records_before(50)
        settings = {"max_partition_fetch_bytes": 400}
        reader = AsyncRangeReader(BOOTSTRAP, clock=ports.clock, rng=ports.rng, **settings)
        offsets: list[int] = []
        async for batches in reader.answers(WHERE, 60, 250):
            offsets += [batch.base_offset for batch in batches]
            last = batches[-1].next_offset
            if len(offsets) % 3 == 0:
                cluster.move(WHERE, cluster.partitions[WHERE].leader % 3 + 1)
        assert offsets == sorted(set(offsets))
        assert offsets[0] <= 60 < 250 <= last
        for start, end in ((0, 10), (290, 400), (1_000, 1_001)):
            with pytest.raises(OffsetOutOfRange) as caught:
                await drain(reader, start, end)
            assert (caught.value.log_start, caught.value.log_end) == (50, 300)
        with pytest.raises(UnknownTopic):
            await anext(reader.answers(TopicPartition("nope", 0), 0, 1))
        await reader.close()

    play(scenario, {"t": 1})
