"""What an idempotent producer is answered when a batch in the middle of its pipeline is refused: schedule 52."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.replica.partition import Append
from tests.replica.helpers import batch
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import Bench


class Pipeline:
    """A producer with several batches under way, one record in each. It reacts to answers as librdkafka does: out of
    order behind a batch without an answer means that everything without one is sent under the next epoch."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.epoch = 0
        self.sequence = 0
        self.unanswered: dict[bytes, int] = {}
        self.answers: dict[bytes, asyncio.Future[Append]] = {}

    def send(self, *values: bytes, size: int = 100) -> None:
        for value in values:
            if value not in self.unanswered:
                self.unanswered[value] = self.sequence
                self.sequence += 1
            data = batch(
                value.ljust(size, b"."), producer_id=7, producer_epoch=self.epoch, base_sequence=self.unanswered[value]
            )
            self.answers[value] = self.bench.send(1, data)

    async def refused(self, value: bytes) -> ErrorCode:
        await self.bench.until(self.answers[value].done)
        return self.answers[value].result().error

    async def settle(self) -> None:
        """Time is over for what waits; then everything without an answer is sent again, in order, until it has one."""
        codes = [await self.refused(value) for value in self.answers if self.answers[value].done()]
        for _ in range(20):
            if ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER in codes:
                self.epoch, self.sequence = self.epoch + 1, 0
                again, self.unanswered = list(self.unanswered), {}
            else:
                again = list(self.unanswered)
            self.send(*again)
            codes = [await self.refused(value) for value in again]
            for value, code in zip(again, codes, strict=True):
                if code is ErrorCode.NONE:
                    del self.unanswered[value]
            if not self.unanswered:
                return
            await self.bench.world.sleep_ms(100)
        raise AssertionError(f"no end: {codes}")

    def stored(self) -> Counter[bytes]:
        return Counter(value.rstrip(b".") for value in self.bench.values(1))


@schedule(52, rule="C1: what is behind too large a batch waits", mutant="out-of-order-behind-what-is-too-large")
def test_52_too_large_a_batch_in_the_middle_of_a_pipeline() -> None:
    """A batch is stored and has no answer, the next is too large and comes again in parts. Those behind it are told to
    come again, and not that they are out of order, nor too large themselves."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        client = Pipeline(bench)
        client.send(b"0")
        assert await client.refused(b"0") is ErrorCode.NONE
        client.unanswered.clear()
        for node in (2, 3):
            bench.world.partition("n1", f"n{node}")
        client.send(b"1")
        client.send(b"2", size=2_000_000)
        client.send(b"3", b"4")
        assert await client.refused(b"2") is ErrorCode.MESSAGE_TOO_LARGE
        for value in (b"3", b"4"):
            assert await client.refused(value) in (
                ErrorCode.NOT_ENOUGH_REPLICAS,
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            )
        assert not client.answers[b"1"].done()
        bench.world.heal()
        await client.settle()
        assert client.stored() == {b"%d" % number: 1 for number in range(5)}, "a stored batch was sent anew"

    bench.play(scenario)


@pytest.mark.parametrize("reason", ["full disk", "too few in sync"])
@schedule(52, rule="C1: what is behind a refusal is refused alike", mutant="out-of-order-behind-a-refusal")
def test_52_a_refusal_in_the_middle_of_a_pipeline(reason: str) -> None:
    """A batch is stored and has no answer, the next is refused for a reason that passes, and those behind it come when
    it has passed: none of the answers may make the client send the stored one under another number. Of a transaction
    a part would be lost without a word (librdkafka#3571, librdkafka#3575)."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        client = Pipeline(bench)
        client.send(b"0")
        assert await client.refused(b"0") is ErrorCode.NONE
        client.unanswered.clear()
        for node in (2, 3):
            bench.world.partition("n1", f"n{node}")
        client.send(b"1")
        disk = bench.world.machines["n1"].disk
        before = disk.config.capacity_bytes
        if reason == "full disk":
            disk.config.capacity_bytes = disk.used_bytes
            client.send(b"2", size=600_000)
        else:
            isr = bench.isr
            bench.controller.change(bench._state.topic_partition, isr=isr[:1])
            await bench.until(lambda: bench.status(1).isr == isr[:1])
            client.send(b"2")
        code = await client.refused(b"2")
        assert code is (ErrorCode.KAFKA_STORAGE_ERROR if reason == "full disk" else ErrorCode.NOT_ENOUGH_REPLICAS)
        disk.config.capacity_bytes = before
        await bench.until(lambda: not bench.manager(1).directories.full)
        if reason != "full disk":
            bench.controller.change(bench._state.topic_partition, isr=isr)
            await bench.until(lambda: bench.status(1).isr == isr)
        client.send(b"3", b"4")
        for value in (b"3", b"4"):
            await client.refused(value)
        assert not client.answers[b"1"].done()
        bench.world.heal()
        await client.settle()
        assert client.stored() == {b"%d" % number: 1 for number in range(5)}, "a stored batch was sent anew"
        assert [value.rstrip(b".") for value in bench.values(1)] == [b"%d" % number for number in range(5)]

    bench.play(scenario)


@schedule(52, rule="C1: what is behind a refusal is refused alike", mutant="out-of-order-behind-a-refusal")
def test_52_the_first_batches_of_a_producer() -> None:
    """Nothing is known of the producer, so that any sequence would be taken: the second batch would be stored before
    the refused first one, and a client takes that for the answer to both."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        client = Pipeline(bench)
        disk = bench.world.machines["n1"].disk
        before, disk.config.capacity_bytes = disk.config.capacity_bytes, disk.used_bytes
        client.send(b"0", size=600_000)
        assert await client.refused(b"0") is ErrorCode.KAFKA_STORAGE_ERROR
        disk.config.capacity_bytes = before
        await bench.until(lambda: not bench.manager(1).directories.full)
        client.send(b"1")
        assert await client.refused(b"1") is ErrorCode.KAFKA_STORAGE_ERROR, "it overtook the refused one"
        await client.settle()
        assert [value.rstrip(b".") for value in bench.values(1)] == [b"0", b"1"]

    bench.play(scenario)


@schedule(52, rule="C1: a refusal counts before there is a log, too", mutant="refused-before-the-log-is-forgotten")
def test_52_refused_by_a_broker_whose_metadata_lag() -> None:
    """The client has heard of a new partition before its leader has: the first batch is refused. The leader hears of it
    before the second batch comes, which must not be taken: a client takes that for the answer to both."""
    bench = Bench(lagging=(1,))

    async def scenario(bench: Bench) -> None:
        client = Pipeline(bench)
        client.send(b"0")
        assert await client.refused(b"0") is ErrorCode.NOT_LEADER_OR_FOLLOWER
        bench.broker(1).reach()
        await bench.until(lambda: bench.leads(1))
        client.send(b"1")
        assert await client.refused(b"1") is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it overtook the refused one"
        await client.settle()
        assert [value.rstrip(b".") for value in bench.values(1)] == [b"0", b"1"]

    bench.play(scenario)
