"""Tiered storage in the simulated world: what goes to the object store, and what leaves the disks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest

from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId, Offset
from strandline.proto.tier import EpochStart, Tier, TierChange, TieredSegment, TierOutcome
from strandline.replica.retention import expired_start, keep_whole
from tests.replica.helpers import TP
from tests.replica.tiered import LOG, NOTHING_STAYS, T0, Tiers, play
from tests.schedules.replication.bench import ONE, THREE, TWO


def test_nothing_leaves_the_disks_that_is_not_in_the_store() -> None:
    """Rule B22, while the store is away: the setting would let everything go."""

    async def scenario(bench: Tiers) -> None:
        bench.store.faults.away = True
        await bench.fill()
        await bench.world.sleep_ms(5_000)
        assert bench.tier.segments == ()
        assert bench.log(1).log_start_offset == 0
        bench.store.heal()
        await bench.copied()
        assert await bench.consume(1) == bench.values_from(0)

    play(scenario)


def test_nothing_is_copied_that_is_not_committed() -> None:
    """Rule B22: another leader might cut it."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill(6)
        await bench.copied()
        before = bench.tier.end_offset
        for node in (2, 3):
            bench.world.partition(f"n{node}", "n1")
        for _ in range(20):
            await bench.append(1, b"not committed", acks=1)
        await bench.world.sleep_ms(2_000)
        assert bench.log(1).bases[-1] > 6
        assert bench.tier.end_offset <= max(before, 6)
        bench.world.heal()

    play(scenario)


def test_a_new_leader_goes_on_where_the_tier_ends() -> None:
    """Its segments begin elsewhere: what is in the tier already is left out of the first one that it copies."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill(12)
        await bench.copied()
        await bench.leave_out(2)
        await bench.fill(3)
        bench.broker(2).start()  # a restart closes no segment where the others do
        await bench.until(lambda: len(bench.isr) == 3)
        await bench.elect(2)
        await bench.fill(20)
        await bench.copied()
        assert await bench.consume(2) == bench.values_from(0)
        segments = bench.tier.segments
        assert all(one.end_offset == other.base_offset for one, other in pairwise(segments))
        assert segments[-1].last_epoch == 1

    play(scenario)


def test_a_new_replica_needs_the_local_part_alone() -> None:
    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        await bench.leave_out(3)
        bench.world.machines["n3"].disk.wipe()
        await bench.fill()
        await bench.copied()
        start = bench.log(1).log_start_offset
        bench.broker(3).start()
        await bench.until(lambda: len(bench.isr) == 3)
        assert bench.log(3).log_start_offset >= start > 0
        await bench.elect(3)
        await bench.fill(3)
        assert await bench.consume(3) == bench.values_from(0)

    play(scenario)


def test_whole_retention_takes_from_the_store_first() -> None:
    async def scenario(bench: Tiers) -> None:
        await bench.fill(40)
        await bench.copied()
        objects = len(bench.store.objects)
        kept = bench.tier.size_bytes // 2
        bench.controller.change(TP, log_config=replace(NOTHING_STAYS, retention_bytes=kept))
        await bench.until(lambda: bench.tier.start_offset > 0)
        start = int(bench.tier.start_offset)
        await bench.until(lambda: len(bench.store.objects) == 2 * len(bench.tier.segments) < objects)
        assert bench.status(1).log_start_offset == start
        assert await bench.consume(1, start) == bench.values_from(start)
        assert (await bench.ask(1, start - 1)).error is ErrorCode.OFFSET_OUT_OF_RANGE

    play(scenario)


def test_records_are_deleted_from_the_tier_at_a_clients_word() -> None:
    async def scenario(bench: Tiers) -> None:
        await bench.fill(40)
        await bench.copied()
        answered: list[tuple[ErrorCode, int]] = []
        bench.delete(9, lambda error, _, low: answered.append((error, low)))
        await bench.world.sleep_ms(1)
        assert not answered, "the metadata do not know of it yet"
        await bench.until(lambda: answered)
        assert answered == [(ErrorCode.NONE, 9)]
        assert bench.tier.start_offset == 9
        await bench.until(lambda: bench.status(1).log_start_offset == 9)
        assert await bench.consume(1, 9) == bench.values_from(9)
        assert (await bench.ask(1, 8)).error is ErrorCode.OFFSET_OUT_OF_RANGE

    play(scenario)


def test_records_are_deleted_beyond_the_tier() -> None:
    """Everything that is committed: the tier is forgotten, and the next segment begins a new one."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill(30)
        await bench.copied()
        answered: list[tuple[ErrorCode, int]] = []
        bench.delete(30, lambda error, _, low: answered.append((error, low)))
        await bench.until(lambda: answered)
        assert answered == [(ErrorCode.NONE, 30)]
        await bench.until(lambda: bench.tier.segments == () and not bench.store.objects)
        await bench.fill(20)
        await bench.copied()
        assert await bench.consume(1, 30) == bench.values_from(30)
        assert bench.status(1).log_start_offset == 30

    play(scenario)


def test_segments_are_added_before_the_metadata_show_the_first() -> None:
    """The controller answers sooner than the image is here: what follows does not begin the tier anew."""

    async def scenario(bench: Tiers) -> None:
        bench.store.faults.away = True
        await bench.fill()
        deliver = bench.controller.subscribers[ONE]
        bench.controller.subscribers[ONE] = lambda *what: bench.world.loop.call_later(2.0, deliver, *what) and None
        bench.store.heal()
        await bench.copied()
        assert bench.tier.start_offset == 0
        assert await bench.consume(1) == bench.values_from(0)

    play(scenario)


def test_a_tier_begins_where_its_first_records_were_deleted() -> None:
    """The log start lies inside of the first segment that is copied: the tier begins there at once, though the word of
    the deletion itself is lost."""

    async def scenario(bench: Tiers) -> None:
        alter = bench.controller.alter_tiers

        def additions_alone(node: NodeId, changes: Sequence[TierChange]) -> list[TierOutcome]:
            if not all(change.add for change in changes):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "lost")
            return alter(node, changes)

        bench.controller.alter_tiers = additions_alone  # type: ignore[method-assign]
        await bench.fill(4)
        answered: list[ErrorCode] = []
        bench.delete(2, lambda error, *_: answered.append(error))
        await bench.fill(20)
        await bench.until(lambda: answered)
        await bench.copied()
        assert (bench.tier.start_offset, bench.tier.segments[0].base_offset) == (2, 0)
        assert bench.status(1).log_start_offset == 2
        assert await bench.consume(1, 2) == bench.values_from(2)
        assert (await bench.ask(1, 1)).error is ErrorCode.OFFSET_OUT_OF_RANGE

    play(scenario)


@pytest.mark.parametrize("first", [True, False])
def test_what_is_deleted_while_it_is_copied_stays_deleted(first: bool) -> None:
    """Schedule 90: a segment is in the store, and the metadata hear of it after a client has deleted its records."""

    async def scenario(bench: Tiers) -> None:
        if not first:
            await bench.fill(10)
            await bench.copied()
        alter, answered = bench.controller.alter_tiers, list[tuple[ErrorCode, int]]()
        end, lost = int(bench.tier.end_offset), list[Sequence[TierChange]]()

        def additions_later(node: NodeId, changes: Sequence[TierChange]) -> list[TierOutcome]:
            if any(change.add for change in changes) != bool(answered):
                lost.append(changes)
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "lost")
            return alter(node, changes)

        bench.controller.alter_tiers = additions_later  # type: ignore[method-assign]
        await bench.fill(10)
        await bench.until(lambda: lost)
        bench.delete(end + 2, lambda error, _, low: answered.append((error, low)))
        await bench.until(lambda: answered)
        assert answered == [(ErrorCode.NONE, end + 2)]
        await bench.copied()
        assert bench.tier.segments
        assert bench.status(1).log_start_offset == end + 2
        assert (await bench.ask(1, end + 1)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await bench.consume(1, end + 2) == bench.values_from(end + 2)

    play(scenario)


@pytest.mark.parametrize("known", [True, False])
def test_the_log_start_never_goes_back_into_what_is_added(known: bool) -> None:
    """Retention has taken the front of what is to be added, whether the metadata heard of that or not."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill(10)
        await bench.copied()
        alter, held = bench.controller.alter_tiers, [True]
        end = int(bench.tier.end_offset)

        def later(node: NodeId, changes: Sequence[TierChange]) -> list[TierOutcome]:
            adds = any(change.add for change in changes)
            if held[0] or not (adds or known):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "lost")
            return alter(node, changes)

        bench.store.faults.away = True
        bench.controller.alter_tiers = later  # type: ignore[method-assign]
        await bench.fill(10)
        bench.broker(1).run(lambda manager: manager._partitions[TP].raise_log_start(end + 2))
        await bench.until(lambda: bench.log(1).log_start_offset == end + 2)
        bench.store.heal()
        held[0] = False
        await bench.copied()
        assert bench.status(1).log_start_offset == end + 2
        assert await bench.consume(1, end + 2) == bench.values_from(end + 2)

    play(scenario)


def test_a_deposed_leader_adds_nothing() -> None:
    """It had copied a segment when another was elected: rule B21. Its copy is the reaper's."""

    async def scenario(bench: Tiers) -> None:
        bench.store.faults.slow_factor = 20.0
        await bench.fill(8)
        await bench.until(lambda: bench.store.calls)
        bench.broker(1).cut()
        bench.controller.elect(TP, TWO)
        await bench.until(lambda: bench.leads(2))
        bench.store.heal()
        await bench.world.sleep_ms(3_000)
        bench.broker(1).reach()
        await bench.fill(20)
        await bench.copied()
        await bench.world.sleep_ms(3_000)
        assert await bench.consume(2) == bench.values_from(0)
        assert len(bench.store.objects) <= 2 * len(bench.tier.segments) + 2, "it copied one, and asked in vain"

    play(scenario)


def test_lost_calls_lose_nothing() -> None:
    """A change, or its answer, does not arrive: the same segment is offered again, and nothing is copied twice."""

    async def scenario(bench: Tiers) -> None:
        bench.tier_calls_lost = 0.5
        await bench.fill(60)
        await bench.copied()
        assert await bench.consume(1) == bench.values_from(0)
        named = {str(segment.segment_id) for segment in bench.tier.segments}
        stored = {key.rpartition("/")[2][21:57] for key in bench.store.objects}
        assert named == stored

    play(scenario)


def test_a_refused_retry_of_what_is_in_deletes_nothing() -> None:
    """Its addition was carried out, neither answered nor heard of; when it asks again, another leads: schedule 87."""

    async def scenario(bench: Tiers) -> None:
        real, asked = bench.controller.alter_tiers, 0
        subscribers = bench.controller.subscribers
        former = subscribers[ONE]

        def alter_tiers(node: NodeId, changes: Sequence[TierChange]) -> list[TierOutcome]:
            nonlocal asked
            asked += node == 1
            if asked == 1:
                del subscribers[ONE]
                real(node, changes)
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the answer was lost")
            if asked == 2 and node == 1:
                bench.controller.elect(TP, TWO)
            return real(node, changes)

        bench.controller.alter_tiers = alter_tiers  # type: ignore[method-assign]
        await bench.fill(8)
        await bench.until(lambda: asked == 2)
        await bench.world.sleep_ms(1_000)
        bench.controller.subscribe(ONE, former)
        await bench.until(lambda: bench.leads(2))
        await bench.copied()
        named = {str(segment.segment_id) for segment in bench.tier.segments}
        assert named <= {key.rpartition("/")[2][21:57] for key in bench.store.objects}
        assert await bench.consume(2) == bench.values_from(0)

    play(scenario)


def test_an_empty_leader_begins_behind_the_tier() -> None:
    """Every disk is lost but the store: an unclean election makes a leader without a record. What was copied is there,
    and the log goes on behind it (rule B22)."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill()
        await bench.copied()
        end = int(bench.tier.end_offset)
        await bench.leave_out(2, 3)
        bench.world.kill("n1")
        bench.controller.fence(ONE)
        bench.world.machines["n3"].disk.wipe()
        bench.broker(3).start()
        await bench.world.sleep_ms(200)
        bench.controller.elect_uncleanly(TP, THREE)
        await bench.until(lambda: bench.leads(3))
        assert (bench.log(3).log_start_offset, bench.log(3).log_end_offset) == (end, end)
        bench.sent = end
        bench.broker(2).start()
        await bench.until(lambda: NodeId(2) in bench.isr)
        await bench.fill(20)
        await bench.copied()
        assert await bench.consume(3) == bench.values_from(0)

    play(scenario, Tiers(min_insync_replicas=1))


def test_a_leader_that_parted_from_the_tier_begins_behind_it() -> None:
    """An unclean leader has records that were never committed where others were, and were copied."""

    async def scenario(bench: Tiers) -> None:
        await bench.fill(4)
        bench.world.partition("n2", "n1")
        bench.world.partition("n3", "n1")
        for _ in range(30):
            await bench.append(1, b"never committed", acks=1)
        bench.world.kill("n1")
        bench.controller.fence(ONE)
        await bench.until(lambda: bench.leads(2) or bench.leads(3))
        await bench.world.sleep_ms(3_000)  # what was on its way is given up
        bench.world.heal()
        await bench.fill(20)
        await bench.copied()
        end = int(bench.tier.end_offset)
        await bench.leave_out(2, 3)
        bench.broker(1).cut()  # it hears of the election first: no follower's word has reached it
        bench.broker(1).start()
        await bench.world.sleep_ms(200)
        bench.broker(1).reach()
        bench.controller.elect_uncleanly(TP, ONE)
        await bench.until(lambda: bench.leads(1))
        assert (bench.log(1).log_start_offset, bench.log(1).log_end_offset) == (end, end)
        assert await bench.consume(1) == [b"%d" % number for number in range(end)]

    play(scenario, Tiers(min_insync_replicas=1))


def segment(base: int, end: int, *, size: int = 100, newest_ms: int = T0, copied_ms: int = T0) -> TieredSegment:
    return TieredSegment(
        UUID(int=base + 1),
        Offset(base),
        Offset(end),
        size,
        newest_ms,
        (EpochStart(0, Offset(base)),),
        copied_ms,  # type: ignore[arg-type]
    )


def at(after_ms: int) -> Now:
    """So long after T0, by a clock that is right."""
    return Now(float(after_ms), T0 + after_ms, T0 + after_ms)


def test_age_and_size_take_whole_segments_from_the_front() -> None:
    tier = Tier(Offset(0), (segment(0, 10), segment(10, 20, newest_ms=T0 + 500), segment(20, 30, newest_ms=T0 + 100)))
    by_age = keep_whole(replace(LOG, retention_ms=1_000))
    assert [expired_start(tier, by_age, 0, at(after), {}) for after in (1_000, 1_001, 1_400, 1_501)] == [0, 10, 10, 30]
    for size, expected in ((300, 0), (250, 0), (200, 10), (100, 20), (0, 30)):
        assert expired_start(tier, keep_whole(replace(LOG, retention_bytes=size)), 0, at(0), {}) == expected
    assert expired_start(tier, keep_whole(replace(LOG, retention_bytes=250)), 60, at(0), {}) == 10
    assert expired_start(tier, keep_whole(LOG), 1 << 40, at(1 << 40), {}) == 0


def test_a_time_of_the_future_holds_the_room_from_when_it_was_copied() -> None:
    keep = keep_whole(replace(LOG, retention_ms=1_000))
    for newest_ms in (-1, T0 + (1 << 40)):
        tier = Tier(Offset(0), (segment(0, 10, newest_ms=newest_ms, copied_ms=T0),))
        seen = {tier.segments[0].segment_id: 0.0}
        assert [expired_start(tier, keep, 0, at(after), seen) for after in (1_000, 1_001)] == [0, 10]


def test_a_segment_of_a_clock_set_back_is_no_older_than_it_was_known() -> None:
    """It was copied by a broker whose clock was a year behind, and this one's is an hour behind the records' (seed
    20000725)."""
    keep = keep_whole(replace(LOG, retention_ms=1_000))
    for newest_ms in (-1, T0 + 3_600_000):
        tier = Tier(Offset(0), (segment(0, 10, newest_ms=newest_ms, copied_ms=T0 - (1 << 35)),))
        seen = {tier.segments[0].segment_id: 500.0}
        assert [expired_start(tier, keep, 0, at(after), seen) for after in (600, 1_500, 1_501)] == [0, 0, 10]
