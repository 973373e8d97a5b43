"""Reading what lies in the object store: by offset, by time, by leader epoch, and what a store in trouble means."""

from __future__ import annotations

import asyncio

from strandline.proto.error_codes import ErrorCode
from strandline.replica.states import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    PENDING_UPLOAD_TIMESTAMP,
)
from tests.replica.helpers import TP
from tests.replica.simulated import decoded
from tests.replica.tiered import T0, Tiers, play


def test_what_has_left_the_disks_is_read_from_the_store() -> None:
    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        await bench.copied()
        status = bench.status(1)
        assert status.log_start_offset == 0
        assert 0 < status.local_log_start_offset == bench.tier.end_offset < 30
        assert bench.manager(1).read(TP, 0, 400) is None, "the store cannot be read at once"
        assert await bench.consume(1) == bench.values_from(0)
        assert await bench.consume(1, 17) == bench.values_from(17)
        await bench.until(lambda: bench.log(2).log_start_offset == bench.log(1).log_start_offset)

    play(scenario)


def test_a_follower_answers_from_the_tier_too() -> None:
    """KIP-392; one that the metadata have not reached says that it does not know yet, not that there is nothing."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        bench.broker(2).cut()
        await bench.copied()
        await bench.until(lambda: bench.log(2).log_start_offset > 0)
        read = await bench.inside(2, lambda: bench.manager(2).read_cold(TP, 0, 400, any_replica=True))
        assert read.error is ErrorCode.OFFSET_NOT_AVAILABLE
        bench.broker(2).reach()
        await bench.until(lambda: bench.status(2).log_start_offset == 0)
        read = await bench.inside(2, lambda: bench.manager(2).read_cold(TP, 0, 400, any_replica=True))
        assert decoded(read.data)[0] == b"0"

    play(scenario)


def test_offsets_by_time_and_by_position() -> None:
    """ListOffsets: -2, -4 (KIP-405), -5 (KIP-1005), -6 (KIP-1023), -3, and times that lie in the tier."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        await bench.copied()
        manager, end = bench.manager(1), int(bench.tier.end_offset)
        assert manager.list_offset(TP, EARLIEST_TIMESTAMP).offset == 0  # type: ignore[union-attr]
        assert manager.list_offset(TP, EARLIEST_LOCAL_TIMESTAMP).offset == end  # type: ignore[union-attr]
        assert manager.list_offset(TP, LATEST_TIERED_TIMESTAMP).offset == end - 1  # type: ignore[union-attr]
        assert manager.list_offset(TP, PENDING_UPLOAD_TIMESTAMP).offset == end  # type: ignore[union-attr]
        assert manager.list_offset(TP, T0) is None
        found = await bench.inside(1, lambda: manager.list_offset_cold(TP, T0))
        assert (found.error, found.offset, found.timestamp_ms) == (ErrorCode.NONE, 0, T0)
        found = await bench.inside(1, lambda: manager.list_offset_cold(TP, MAX_TIMESTAMP))
        assert (found.error, found.offset, found.timestamp_ms) == (ErrorCode.NONE, 0, T0)
        found = await bench.inside(1, lambda: manager.list_offset_cold(TP, T0 + 1))
        assert (found.error, found.offset) == (ErrorCode.NONE, -1)

    play(scenario)


def test_epochs_of_what_is_in_the_tier_are_known() -> None:
    """KIP-320: a consumer of old records asks where their leader epoch ended, and is not sent elsewhere."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill(10)
        await bench.elect(2)
        await bench.fill(10)
        await bench.elect(1)
        await bench.fill(30)
        await bench.copied()
        manager = bench.manager(1)
        first = manager.epoch_end_offset(TP, current_leader_epoch=-1, epoch=0)
        assert (first.error, first.leader_epoch, first.end_offset) == (ErrorCode.NONE, 0, 10)
        second = manager.epoch_end_offset(TP, current_leader_epoch=-1, epoch=1)
        assert (second.leader_epoch, second.end_offset) == (1, 20)
        assert manager.epoch_end_offset(TP, current_leader_epoch=-1, epoch=2).end_offset == 50

    play(scenario)


def test_an_epoch_older_than_the_tier_ended_where_the_tier_begins() -> None:
    """Rule B33: the records of the first epochs are deleted; a consumer that stood at the end of them is not sent to
    the end of what was written since."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill(10)
        await bench.elect(2)
        await bench.fill(10)
        await bench.elect(1)
        await bench.fill(30)
        await bench.copied()
        bench.delete(20, lambda *_: None)
        await bench.until(lambda: bench.status(1).log_start_offset == 20)
        assert bench.tier.start_offset == 20 < bench.tier.end_offset
        for epoch in (0, 1):
            found = bench.manager(1).epoch_end_offset(TP, current_leader_epoch=-1, epoch=epoch)
            assert (found.error, found.leader_epoch, found.end_offset) == (ErrorCode.NONE, epoch, 20)
        assert bench.manager(1).epoch_end_offset(TP, current_leader_epoch=-1, epoch=-1).end_offset == -1

    play(scenario)


def test_a_store_that_does_not_answer_holds_nobody_up() -> None:
    """The other partitions of the same fetch: it is answered with nothing after remote.fetch.max.wait.ms, then with an
    error that clients try again."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        await bench.copied()
        bench.store.faults.away = True
        began_ms = bench.world.now_ms
        read = await bench.inside(1, lambda: bench.manager(1).read_cold(TP, 0, 400))
        assert (read.error, read.data) == (ErrorCode.NONE, b"")
        assert bench.world.now_ms - began_ms < 600
        assert (await bench.ask(1, 0)).error is ErrorCode.KAFKA_STORAGE_ERROR
        bench.store.heal()
        assert await bench.consume(1) == bench.values_from(0)

    play(scenario)


def test_rot_in_the_store_is_not_served() -> None:
    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        await bench.copied()
        key = next(key for key in sorted(bench.store.objects) if key.endswith(".log"))
        bench.store.flip_bit(key, 65)
        assert (await bench.ask(1, 0)).error is ErrorCode.CORRUPT_MESSAGE
        assert not bench.status(1).rotten, "nothing is the matter with the log"
        after = bench.tier.segments[1].base_offset
        assert await bench.consume(1, after) == bench.values_from(after)

    play(scenario)


def test_a_topic_that_is_deleted_leaves_the_readers_with_an_error() -> None:
    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        await bench.copied()
        key = bench.controller.state(TP).topic_id_partition
        asked = asyncio.ensure_future(bench.ask(1, 0))
        bench.controller.delete(key)
        assert (await asked).error in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await bench.until(lambda: bench.manager(1).partition(TP) is None)
        assert (await bench.ask(1, 0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(scenario)
