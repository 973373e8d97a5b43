"""`poll_columns`: the records of `poll`, as one table (scripted broker, real logs)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Consumer, Producer
from strandline.client.polled import PolledRecords
from strandline.client.types import ConsumerRecord
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import TopicPartition
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play

PARTITIONS = [("t", 0), ("t", 1)]
COLUMNS = ["topic", "partition", "offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value", "headers"]


def consumer(ports: Ports, **settings: Any) -> Consumer:
    one = Consumer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, auto_offset_reset="earliest", **settings)
    one.assign(PARTITIONS)
    return one


async def fill(ports: Ports, count: int = 60, **settings: Any) -> None:
    """Records of every shape, in batches of a few."""
    async with Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, batch_size=300, **settings) as producer:
        sent = []
        for number in range(count):
            value = [b"v%d" % number, b"", None][number % 3]
            key = [None, b"k%d" % number, b""][number % 3]
            headers = [(), (("h", b"x"), ("h", None)), (("\u00e9", b""),)][number % 3]
            place = {"partition": number % 2, "timestamp_ms": 1_000 + number}
            sent.append(await producer.send("t", value, key=key, headers=headers, **place))
        await asyncio.gather(*sent)


def rows(polled: PolledRecords) -> list[tuple[Any, ...]]:
    table = polled.to_arrow()
    table.validate(full=True)
    assert table.column_names == COLUMNS
    assert table.num_rows == len(polled)
    found = []
    for row in table.to_pylist():
        headers = tuple((pair["name"], pair["value"]) for pair in row["headers"] or ())
        timestamp_ms = round(row["timestamp"].timestamp() * 1000)
        found.append((*list(row.values())[:3], timestamp_ms, *list(row.values())[4:8], headers))
    return found


def plain(records: Sequence[ConsumerRecord]) -> list[tuple[Any, ...]]:
    return [
        (
            one.topic, one.partition, one.offset, one.timestamp_ms, one.timestamp_type, one.leader_epoch, one.key,
            one.value, one.headers,
        )
        for one in records
    ]  # fmt: skip


async def drain(one: Consumer, most: int | None = None) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    while polled := await one.poll_columns(2.0, most):
        found += rows(polled)
    return found


def of_partition(found: list[tuple[Any, ...]], partition: int) -> list[tuple[Any, ...]]:
    return [row for row in found if row[1] == partition]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_columns_hold_what_poll_returns(codec: str) -> None:
    """Keys, values and headers with nulls and empty ones; each partition in order, whatever one poll brings."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, compression_type=codec)
        async with consumer(ports) as one:
            expected = plain([record for _ in range(3) for record in await one.poll(1.0)])
        assert len(expected) == 60
        for most in (None, 1, 7):
            async with consumer(ports) as one:
                found = await drain(one, most)
            for partition in (0, 1):
                assert of_partition(found, partition) == of_partition(expected, partition)

    play(scenario, {"t": 2})


def test_polls_of_both_kinds_mix() -> None:
    """Half a batch was polled or iterated: the columns begin right behind it, and nothing is skipped or doubled."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        async with consumer(ports) as one:
            seen = plain(await one.poll(1.0, max_records=1))
            seen += rows(await one.poll_columns(1.0, 3))
            seen += plain([await anext(one), await anext(one)])
            seen += rows(await one.poll_columns(1.0, 3))
            seen += plain(await one.poll(1.0, max_records=2))
            assert await one.position(("t", 0)) == len(of_partition(seen, 0))
            seen += await drain(one)
        for partition in (0, 1):
            assert [row[2] for row in of_partition(seen, partition)] == list(range(30))

    play(scenario, {"t": 2})


def test_columns_follow_a_poll_that_took_everything() -> None:
    """Schedule 108: the last batch of an answer became records, and all were handed out: the next columns, or none."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        async with consumer(ports) as one:
            seen: list[tuple[Any, ...]] = []
            while len(seen) < 60:
                seen += plain(await one.poll(1.0, max_records=1))
            assert rows(await one.poll_columns(0.1)) == []
            await fill(ports, count=2)
            seen += await drain(one)
        for partition in (0, 1):
            assert [row[2] for row in of_partition(seen, partition)] == list(range(31))

    play(scenario, {"t": 2})


def test_what_came_to_nobody_comes_again() -> None:
    """The blocking consumer's caller was interrupted (Ctrl-C) just when it was to get them."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        async with consumer(ports) as one:
            polled = await one.poll_columns(1.0, 8)
            one.put_back(part.first for part in polled.parts)
            again = await drain(one)
            assert len(again) == 60
            assert all(row in again for row in rows(polled))

    play(scenario, {"t": 2})


def test_a_seek_and_a_pause_hold_for_columns() -> None:
    """From the middle of a batch; of a paused partition nothing comes."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        async with consumer(ports) as one:
            one.seek(("t", 0), 4)
            one.pause(("t", 1))
            assert [row[1:3] for row in await drain(one)] == [(0, offset) for offset in range(4, 30)]
            one.resume(("t", 1))
            assert len(await drain(one)) == 30

    play(scenario, {"t": 2})


def test_damage_is_told_with_its_place_and_what_is_before_it_comes_first() -> None:
    """As by `poll`: the CRC of the first batch does not hold; after a seek behind it the others come."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        log = cluster.partitions[TopicPartition("t", 0)].log
        async with consumer(ports) as one:
            await one.poll(1.0, max_records=1)
            state = one._states[TopicPartition("t", 0)]
            one.seek(("t", 0), 0)
            while not state.chunks or len(state.chunks[0].batches) < 2:
                await asyncio.sleep(0.01)
            header, batch = state.chunks[0].batches[-1]
            broken = bytearray(batch)
            broken[-1] ^= 1
            state.chunks[0].batches[-1] = header, memoryview(broken)
            one.pause(("t", 1))
            before = rows(await one.poll_columns(1.0))
            assert [row[2] for row in before] == list(range(header.base_offset))
            with pytest.raises(KafkaError, match="CRC") as told:
                await one.poll_columns(1.0)
            assert told.value.figures["partition"] == "t-0"
            assert await one.position(("t", 0)) == header.base_offset < log.log_end_offset

    play(scenario, {"t": 2})


def test_no_records_are_an_empty_table() -> None:
    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with consumer(ports) as one:
            polled = await one.poll_columns(0.1)
            assert not polled
            assert rows(polled) == []
            assert list(polled.to_pandas().columns) == COLUMNS

    play(scenario, {"t": 2})


def test_a_data_frame_keeps_arrows_types() -> None:
    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 6)
        async with consumer(ports) as one:
            one.pause(("t", 1))
            frame = (await one.poll_columns(1.0)).to_pandas()
        assert frame["offset"].tolist() == [0, 1, 2]
        assert frame["value"].tolist()[0] == b"v0"
        assert str(frame["value"].dtype) == "binary[pyarrow]"
        assert frame["key"].isna().tolist() == [True, False, False]

    play(scenario, {"t": 2})


def test_a_deserializer_is_refused() -> None:
    """Columns hold bytes; to leave it out in silence would be a surprise."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with consumer(ports, value_deserializer=len) as one:
            with pytest.raises(ConfigError, match=r"value\.deserializer.*poll_columns"):
                await one.poll_columns()

    play(scenario, {"t": 2})
