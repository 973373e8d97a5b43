"""Batches that a broker finds too large are split: each half's futures are its own (scripted broker, real logs)."""

from __future__ import annotations

import asyncio

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.batch_sender import BatchSender
from strandline.client.types import Ack
from strandline.log.batch import RecordBatchBuilder
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from tests.client.broker import BOOTSTRAP, Act, ScriptedCluster, play

WHERE = TopicPartition("t", 0)


def made(*values: bytes) -> bytes:
    builder = RecordBatchBuilder()
    for number, value in enumerate(values):
        builder.append(1_000 + number, None, value)
    return bytes(builder.build())


def refuse_above(cluster: ScriptedCluster, size: int, refused: list[bytes]) -> None:
    """Batches of more bytes are MESSAGE_TOO_LARGE; so are, for good, those that hold one of the refused values."""

    def judge(_where: TopicPartition, records: bytes) -> Act:
        if len(records) > size or any(value in records for value in refused):
            return Act(apply=False, error=ErrorCode.MESSAGE_TOO_LARGE)
        return Act()

    cluster.on_batch = judge


@pytest.mark.parametrize("refused", [b"b" * 300, b"a" * 300, b"c" * 300])
def test_an_ack_of_a_batch_that_was_made_before_is_of_all_of_it(refused: bytes) -> None:
    """One future stands for the whole batch: of two records one was refused, so it fails. (A copy would have counted
    both as written.)"""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        refuse_above(cluster, 500, [refused])
        async with BatchSender(BOOTSTRAP, 1 << 20, {}) as sender:
            await sender.know("t")
            future = await sender.send(WHERE, made(b"a" * 300, b"b" * 300, b"c" * 300))
            with pytest.raises(KafkaError) as caught:
                await future
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
            await sender.flush()

    cluster = play(scenario, {"t": 1})
    values = [record.value for record in cluster.records[WHERE]]
    assert refused not in values


def test_the_ack_of_a_split_batch_is_its_first_records() -> None:
    """Split twice over; every part is written, and the batches behind it come behind it."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        refuse_above(cluster, 500, [])
        async with BatchSender(BOOTSTRAP, 1 << 20, {}) as sender:
            await sender.know("t")
            batches = [made(*(b"%d-%d" % (number, one) + b"." * 300 for one in range(4))) for number in range(3)]
            futures = [await sender.send(WHERE, batch) for batch in batches]
            acks: list[Ack] = [await future for future in futures]
            assert [ack.offset for ack in acks] == [0, 4, 8]
            assert {ack.partition for ack in acks} == {0}
            await sender.flush()

    cluster = play(scenario, {"t": 1})
    values = [(record.value or b"").rstrip(b".") for record in cluster.records[WHERE]]
    assert values == [b"%d-%d" % (number, one) for number in range(3) for one in range(4)]


def test_of_a_producers_batch_each_record_has_its_own_answer() -> None:
    """Four records in one batch, the third is refused: the others are acknowledged where they are."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        refuse_above(cluster, 500, [b"c" * 300])
        async with Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, linger_ms=50) as producer:
            sent = [b"a" * 300, b"b" * 300, b"c" * 300, b"d" * 300]
            futures = [await producer.send("t", value, partition=0) for value in sent]
            told = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(told[2], KafkaError)
            assert [one.offset for one in told if isinstance(one, Ack)] == [0, 1, 2]

    cluster = play(scenario, {"t": 1})
    assert [(record.value or b"")[:1] for record in cluster.records[WHERE]] == [b"a", b"b", b"d"]
