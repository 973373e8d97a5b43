"""Schedules 68 and 107: a truncation is reported once and then forgotten, and a reset drops what was fetched before.
What needs a decision stays until it is made, and takes nothing from what is here already."""

from __future__ import annotations

import asyncio

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Consumer
from strandline.client.errors import LogTruncated, NoOffsetForPartition, OffsetOutOfRange, PositionLost
from strandline.client.types import ConsumerRecord, EpochEnd
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play
from tests.client.test_consumer_faults import fill, read
from tests.schedules.helpers import schedule

WHERE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def consumer(ports: Ports, policy: str = "none") -> Consumer:
    return Consumer(
        BOOTSTRAP, clock=ports.clock, rng=ports.rng, auto_offset_reset=policy, metadata_max_age_ms=300,
    )  # fmt: skip


async def poll_on(reader: Consumer, times: int) -> tuple[list[ConsumerRecord], list[PositionLost]]:
    """As services do that log what poll raises, and poll again."""
    records: list[ConsumerRecord] = []
    errors: list[PositionLost] = []
    for _ in range(times):
        try:
            records += await reader.poll(1.0)
        except PositionLost as error:
            errors.append(error)
    return records, errors


def elect_over_a_cut(cluster: ScriptedCluster) -> None:
    """The next leader lacks what was read from offset 12 on."""
    cluster.partitions[WHERE].log.truncate_to(12)
    cluster.move(WHERE, cluster.partitions[WHERE].leader % 3 + 1)


@schedule(68, rule="an error that needs a decision stays until it is made", mutant="lost-position-told-once")
def test_68_a_truncation_is_told_until_a_seek() -> None:
    """A service logs what poll raises and polls again, as services do. Nothing is read at the old offset, where the new
    leader has other records; another partition goes on; the seek ends it."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 40, partitions=2, batch_size=1)
        async with consumer(ports) as reader:
            reader.assign([WHERE, OTHER])
            reader.seek_to_beginning()
            await read(reader, 40)
            elect_over_a_cut(cluster)
            await fill(ports, 40, partitions=2, batch_size=1)
            records, errors = await poll_on(reader, 20)
            assert [record.offset for record in records if record.partition == 1] == list(range(20, 40))
            assert len(records) == 20
            assert len(errors) >= 15
            assert {(type(error), error.args) for error in errors} == {
                (LogTruncated, LogTruncated(*WHERE, 20, 12).args)
            }
            reader.seek(WHERE, 12)
            records = await read(reader, 20)
            assert [record.offset for record in records if record.partition == 0] == list(range(12, 32))

    play(scenario, {"t": 2})


@pytest.mark.parametrize("kind", [NoOffsetForPartition, OffsetOutOfRange])
def test_68_so_do_the_other_lost_positions(kind: type[PositionLost]) -> None:
    """No position at all, and one outside the log: each poll says so, and the position of another partition can be
    asked for all the same."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 20, partitions=2, batch_size=1)
        async with consumer(ports) as reader:
            reader.assign([WHERE, OTHER])
            if kind is OffsetOutOfRange:
                reader.seek(WHERE, 1_000)
            reader.seek_to_beginning(OTHER)
            records, errors = await poll_on(reader, 20)
            assert len(records) == 10
            assert {type(error) for error in errors} == {kind}
            assert len(errors) >= 15
            assert await reader.position(OTHER) == 10
            reader.seek(WHERE, 3)
            assert len(await read(reader, 7)) == 7

    play(scenario, {"t": 2})


@schedule(68, rule="an epoch counts as checked once it was", mutant="epoch-checked-by-an-error")
def test_68_an_epoch_is_checked_once_it_was() -> None:
    """KIP-320: the new leader is asked whether it has what was read, and refuses the question once. That is raised, and
    the question put again: the truncation is found."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 20, batch_size=1)
        async with consumer(ports, "earliest") as reader:
            reader.assign([WHERE])
            await read(reader, 20)
            refusals = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
            cluster.on_epoch_question = lambda _: refusals.pop() if refusals else ErrorCode.NONE
            elect_over_a_cut(cluster)
            await fill(ports, 15, batch_size=1)
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await read(reader, 1)
            assert [record.offset for record in await read(reader, 15)] == list(range(12, 27))

    play(scenario, {"t": 1})


@schedule(187, rule="an answer speaks of what had been read", mutant="judged-by-an-older-epoch")
def test_187_records_come_while_a_leader_is_asked() -> None:
    """The last record read is of epoch 0. A fetch is under way at the leader of epoch 1 when the consumer hears of the
    next one, and asks it where epoch 0 ends; the fetch brings a record of epoch 1 before the answer, and it counts."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 10, batch_size=1)
        async with consumer(ports) as reader:
            reader.assign([WHERE])
            reader.seek_to_beginning()
            await read(reader, 10)
            cluster.move(WHERE, 2)
            assert not await reader.poll(1.0), "the leader of epoch 1 is asked, and a fetch waits there"
            lookups, state = reader._fetcher._lookups, reader._states[WHERE]
            ask, asked = lookups._leaders.epoch_ends, []

            async def late(epochs: dict[TopicPartition, int], timeout_ms: float) -> dict[TopicPartition, EpochEnd]:
                asked.append(epochs[WHERE])
                if len(asked) == 1:
                    await fill(ports, 5, batch_size=1)
                    while state.fetch_offset == 10:
                        await asyncio.sleep(0.01)
                    cluster.move(WHERE, 3)
                return await ask(epochs, timeout_ms)

            lookups._leaders.epoch_ends = late
            reader.session.metadata.apply_leader(WHERE, 3, 2)
            assert [record.offset for record in await read(reader, 5)] == list(range(10, 15))
            await fill(ports, 5, batch_size=1)
            assert [record.offset for record in await read(reader, 5)] == list(range(15, 20))
            assert asked == [0, 1]

    play(scenario, {"t": 1})


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@schedule(107, rule="what was fetched is handed out before a reset", mutant="reset-drops-what-was-fetched")
def test_107_retention_takes_what_lies_behind_the_records_fetched_ahead(policy: str) -> None:
    """The next fetch is out of range. The records that are here already come first, in order; then the policy says
    where to go on."""
    play(lambda cluster, ports: _overtaken(cluster, ports, policy), {"t": 1})


def test_107_so_do_they_before_the_error() -> None:
    """Without a policy, the error comes behind them."""
    play(lambda cluster, ports: _overtaken(cluster, ports, "none"), {"t": 1})


async def _overtaken(cluster: ScriptedCluster, ports: Ports, policy: str) -> None:
    await fill(ports, 60, batch_size=1)
    settings = {"auto_offset_reset": policy, "max_poll_records": 1, "max_partition_fetch_bytes": 1_000}
    async with Consumer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, **settings) as reader:
        reader.assign([WHERE])
        reader.seek_to_beginning()
        offsets = [record.offset for record in await read(reader, 1)]
        state = reader._states[WHERE]
        while state.fetching or state.buffered_bytes < 1_000:
            await asyncio.sleep(0.01)
        ahead = state.fetch_offset
        assert 10 < ahead < 50
        cluster.partitions[WHERE].log.delete_records_before(50)
        for _ in range(ahead - 1):
            await asyncio.sleep(0.1)  # what is fetched, and asked, is answered by the next poll
            offsets += [record.offset for record in await reader.poll(0.0)]
        assert offsets == list(range(ahead))
        if policy == "none":
            with pytest.raises(OffsetOutOfRange, match=f"offset {ahead} of t-0"):
                await read(reader, 1)
            return
        if policy == "latest":
            while await reader.position(WHERE) < 60:
                assert await reader.poll(1.0) == []
            await fill(ports, 5, batch_size=1)
        expected = list(range(50, 60)) if policy == "earliest" else list(range(60, 65))
        assert [record.offset for record in await read(reader, len(expected))] == expected
