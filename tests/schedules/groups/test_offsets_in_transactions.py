"""Offsets of transactions in a real log: schedules 127 to 129, and bugs of the kind that others had (rule C17)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.cluster.groups.commands import UNSTABLE
from strandline.cluster.groups.machine import Transaction
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.schedules.groups.one_broker import ME, OTHER, OneBroker
from tests.schedules.helpers import schedule

A, B = 7, 8
"""Producers."""


async def led(path: Path) -> OneBroker:
    broker = OneBroker(path)
    broker.elect(ME, 0)
    broker.publish()
    await broker.offset()
    return broker


async def load_anew(broker: OneBroker, epoch: int) -> None:
    """Another leadership of the same broker: what it knows is read from its log."""
    broker.elect(ME, epoch)
    broker.publish()
    await broker.offset()


@schedule(
    127,
    rule="C17: the last offset in the log counts",
    mutant=("pending-offset-outlives-a-later-one", "loading-goes-by-the-marker"),
)
async def test_127_an_older_offset_comes_back_with_its_marker(tmp_path: Path) -> None:
    """KAFKA-14505 (part 7): a commit outside of transactions is behind one of a transaction, and before its marker. By
    the markers' order the older offset would count; by another order here and where the log is loaded the group would
    go back at a failover (redpanda#31483)."""
    broker = await led(tmp_path)
    assert await broker.commit_in(A, 5) is ErrorCode.NONE
    assert await broker.commit(9) is ErrorCode.NONE
    assert await broker.mark(A, commit=True) is ErrorCode.NONE
    assert await broker.stable() == 9
    await load_anew(broker, 1)
    assert await broker.stable() == 9
    await broker.close()


@schedule(128, rule="C17: a marker is answered when the group has it", mutant="marker-that-the-group-does-not-hear-of")
async def test_128_a_marker_is_answered_before_the_group_has_it(tmp_path: Path) -> None:
    """KAFKA-17507: the producer is told that its transaction is committed, a consumer starts, and reads the offset of
    before: what the transaction has written is done twice."""
    broker = await led(tmp_path)
    assert await broker.commit(3) is ErrorCode.NONE
    assert await broker.commit_in(A, 5) is ErrorCode.NONE
    assert await broker.mark(A, commit=True) is ErrorCode.NONE
    assert await broker.stable() == 5
    await broker.close()


@schedule(129, rule="C17: a coordinator that loads takes no marker", mutant="marker-taken-while-loading")
async def test_129_a_marker_comes_while_the_coordinator_loads(tmp_path: Path) -> None:
    """redpanda#6423's kind: the marker is behind what is read, the coordinator of the transaction is done with it, and
    the group is unstable for ever."""
    broker = OneBroker(tmp_path)
    broker.elect(OTHER, 0)
    broker.replicate_in(A, 5, leader_epoch=0)
    broker.elect(ME, 1)
    broker.publish()
    end = broker.plog.log_end_offset
    early = asyncio.ensure_future(broker.mark(A, commit=True))
    for _ in range(3):
        await asyncio.sleep(0)
    assert early.done()
    assert early.result() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.plog.log_end_offset == end, "nothing was written"
    assert await broker.stable() is UNSTABLE
    assert await broker.mark(A, commit=True) is ErrorCode.NONE
    assert await broker.stable() == 5
    await broker.close()


@pytest.mark.parametrize("commit", [True, False])
def test_loading_replays_markers(tmp_path: Path, commit: bool) -> None:
    """Of what another coordinator wrote: decided, aborted and open transactions, of two producers."""

    async def story() -> None:
        broker = OneBroker(tmp_path)
        broker.elect(OTHER, 0)
        broker.replicate(3, leader_epoch=0)
        broker.replicate_in(A, 5, leader_epoch=0)
        broker.replicate_in(B, 6, leader_epoch=0)
        broker.replicate_marker(A, commit=commit, leader_epoch=0)
        await load_anew(broker, 1)
        assert await broker.offset() == (5 if commit else 3)
        assert await broker.stable() is UNSTABLE
        assert await broker.mark(B, commit=False) is ErrorCode.NONE
        assert await broker.stable() == (5 if commit else 3)
        await broker.close()

    asyncio.run(story())


def test_redpanda_8236_a_new_leader_serves_nothing_before_it_has_replayed_its_markers(tmp_path: Path) -> None:
    """And before what it replays is committed: the marker may be lost with the next election."""

    async def story() -> None:
        broker = OneBroker(tmp_path)
        broker.elect(OTHER, 0)
        broker.replicate_in(A, 5, leader_epoch=0)
        broker.replicate_marker(A, commit=True, leader_epoch=0)
        broker.elect(ME, 1, min_isr=2)
        broker.publish()
        for _ in range(50):
            await asyncio.sleep(0)
            assert await broker.mark(B, commit=True) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        broker.elect(ME, 1, change=1)
        assert await broker.stable() == 5
        await broker.close()

    asyncio.run(story())


def test_what_a_marker_changes_is_not_told_before_it_is_committed(tmp_path: Path) -> None:
    """Its answer waits for the replicas in sync, and so does who reads meanwhile."""

    async def story() -> None:
        broker = await led(tmp_path)
        assert await broker.commit_in(A, 5) is ErrorCode.NONE
        broker.elect(ME, 0, change=1, isr=(ME, OTHER))
        broker.publish()
        marking = asyncio.ensure_future(broker.mark(A, commit=True))
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(broker.offset())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not marking.done()
        assert not reading.done()
        broker.elect(ME, 0, change=2)
        assert await marking is ErrorCode.NONE
        assert await reading == 5
        await broker.close()

    asyncio.run(story())


def test_a_marker_that_waits_is_answered_with_the_end_of_the_leadership(tmp_path: Path) -> None:
    """Its sender sends it to the next leader."""

    async def story() -> None:
        broker = await led(tmp_path)
        assert await broker.commit_in(A, 5) is ErrorCode.NONE
        broker.elect(ME, 0, change=1, isr=(ME, OTHER))
        broker.publish()
        marking = asyncio.ensure_future(broker.mark(A, commit=True))
        await asyncio.sleep(0)
        broker.elect(OTHER, 1)
        broker.publish()
        assert await marking is ErrorCode.NOT_COORDINATOR
        assert await broker.mark(A, commit=True) is ErrorCode.NOT_COORDINATOR
        await broker.close()

    asyncio.run(story())


def test_a_refused_marker_changes_nothing(tmp_path: Path) -> None:
    """Too few replicas in sync; an older coordinator's; an older epoch's."""

    async def story() -> None:
        broker = await led(tmp_path)
        assert await broker.commit_in(A, 5, epoch=2) is ErrorCode.NONE
        broker.elect(ME, 0, change=1, min_isr=2)
        assert await broker.mark(A, commit=True, epoch=2) is ErrorCode.NOT_ENOUGH_REPLICAS
        broker.elect(ME, 0, change=2)
        assert await broker.mark(A, commit=True, epoch=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await broker.stable() is UNSTABLE
        assert await broker.mark(A, commit=False, epoch=2) is ErrorCode.NONE
        assert await broker.stable() is None
        await broker.close()

    asyncio.run(story())


def test_kafka_15449_an_offset_that_comes_late_begins_no_transaction(tmp_path: Path) -> None:
    """KAFKA-15449: it was verified, the transaction was aborted, and then it is appended: nobody would end it."""

    async def story() -> None:
        broker = await led(tmp_path)
        assert await broker.commit(9, Transaction(A, 0)) is ErrorCode.INVALID_TXN_STATE, "nobody was asked"
        verification = broker.runtime.begin_verification(0, A, 0)
        assert await broker.mark(A, commit=False) is ErrorCode.NONE
        assert await broker.commit(9, Transaction(A, 0, verification)) is ErrorCode.INVALID_TXN_STATE
        assert await broker.stable() is None
        assert await broker.commit_in(A, 5, epoch=1) is ErrorCode.NONE
        with pytest.raises(KafkaError) as older:
            broker.runtime.begin_verification(0, A, 0)
        assert older.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        await broker.close()

    asyncio.run(story())


@schedule(
    159, rule="C17: a marker ends no transaction after its own", mutant="the-next-transaction-asks-anew-after-a-marker"
)
async def test_159_the_next_transactions_offset_does_not_wait_for_the_marker(tmp_path: Path) -> None:
    """Protocol version 2: an end is answered before its markers are written, and they have the epoch of the next
    transaction, whose offsets the producer's coordinator is being asked about."""

    broker = await led(tmp_path)
    assert await broker.commit_in(A, 5) is ErrorCode.NONE
    asked = broker.runtime.begin_verification(0, A, 1, own_epoch=True)
    assert asked is not None
    assert await broker.runtime.write_marker(0, Marker(A, 1, True, 0), 2) is ErrorCode.NONE
    assert await broker.commit(7, Transaction(A, 1, asked)) is ErrorCode.NONE, "it has nothing to do with it"
    assert await broker.runtime.write_marker(0, Marker(A, 2, True, 0), 2) is ErrorCode.NONE
    assert await broker.stable() == 7
    late = broker.runtime.begin_verification(0, A, 2, own_epoch=True)
    assert await broker.runtime.write_marker(0, Marker(A, 3, False, 0), 2) is ErrorCode.NONE
    assert await broker.commit(9, Transaction(A, 2, late)) is not ErrorCode.NONE, "its own marker was that one"
    await broker.close()


def test_an_offset_that_was_refused_for_a_while_is_taken_when_it_comes_again(tmp_path: Path) -> None:
    """What a producer sends behind a refused batch is refused too (schedule 52). A coordinator's batches have no
    sequence: none of them is behind another."""

    async def story() -> None:
        broker = await led(tmp_path)
        broker.elect(ME, 0, change=1, min_isr=2)
        assert await broker.commit_in(A, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        broker.elect(ME, 0, change=2)
        assert await broker.commit_in(A, 6) is ErrorCode.NONE
        assert await broker.commit_in(A, 7) is ErrorCode.NONE
        assert await broker.mark(A, commit=True) is ErrorCode.NONE
        assert await broker.stable() == 7
        await broker.close()

    asyncio.run(story())
