"""Transactions in the object store: what goes there, and what its readers are told (rule C13)."""

from __future__ import annotations

from strandline.log.transactions import AbortedTransaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.replica.states import LATEST_TIMESTAMP, ReadOutcome
from tests.replica.helpers import TP
from tests.replica.tiered import LOG, Tiers, play
from tests.replica.transactional import Transactional, committed, end, shown, write


async def ask(bench: Tiers, node: int, offset: int) -> ReadOutcome:
    """As a consumer of committed transactions that asks again while it gets nothing."""
    manager = bench.manager(node)
    while True:
        outcome = await bench.inside(
            node, lambda: manager.read_cold(TP, offset, 400, read_committed=True, any_replica=True)
        )
        assert outcome.error is ErrorCode.NONE, outcome
        if outcome.data or offset >= outcome.last_stable_offset:
            return outcome


async def consume(bench: Tiers, node: int, offset: int = 0) -> list[bytes]:
    """Every value that is shown from an offset on, a few batches at a time."""
    found: list[bytes] = []
    while (outcome := await ask(bench, node, offset)).data:
        found += shown(outcome, offset)
        offset = outcome.next_offset
    return found


def test_nothing_undecided_goes_to_the_store() -> None:
    """A closed segment with records of an open transaction stays, and does not count as late; it goes once that is
    decided."""

    async def scenario(bench: Tiers) -> None:
        producer = Transactional(7)
        await bench.fill(12)
        await write(bench, 1, producer, b"undecided")
        await bench.fill(20)
        last = max(base for base in bench.log(1).bases if base <= 12)
        await bench.until(lambda: bench.tier.end_offset == last)
        await bench.world.sleep_ms(2_000)
        assert bench.tier.end_offset == last
        tiering = bench.manager(1).tiering
        assert tiering is not None
        assert tiering.copy_lag() == (0, 0)
        assert await consume(bench, 1) == [b"%d" % number for number in range(12)]
        listed = bench.manager(1).list_offset(TP, LATEST_TIMESTAMP, read_committed=True)
        assert listed is not None
        assert listed.offset == 12
        await end(bench, 1, producer, commit=True)
        await bench.copied()
        assert b"undecided" in await consume(bench, 1)

    play(scenario)


def test_aborted_records_in_the_store_are_named() -> None:
    """The marker lies in the same segment, in a later one of the store, or on the disks alone: the sidecar of the
    records says it. Followers say the same."""

    async def scenario(bench: Tiers) -> None:
        one, other = Transactional(7), Transactional(8)
        await bench.fill(2)
        await write(bench, 1, one, b"aborted 1")
        await end(bench, 1, one, commit=False)
        await write(bench, 1, one, b"aborted 2")
        await write(bench, 1, other, b"shown")
        await bench.fill(10)
        await end(bench, 1, other, commit=True)
        await write(bench, 1, one, b"aborted 3")
        await end(bench, 1, one, commit=False)
        await bench.fill(10)
        await bench.copied()
        expected = [b"0", b"1", b"shown", *(b"%d" % number for number in range(2, 22))]
        await bench.until(lambda: bench.log(2).log_start_offset == bench.log(1).log_start_offset)
        for node in (1, 2):
            assert await consume(bench, node) == expected
            assert (await consume(bench, node, 5))[0] == b"shown"
        first = await ask(bench, 1, 0)
        assert [(found.producer_id, found.first_offset) for found in first.aborted] == [(7, 2), (7, 4)]
        plain = await bench.inside(1, lambda: bench.manager(1).read_cold(TP, 0, 400))
        assert list(plain.aborted) == []

    play(scenario)


def test_a_log_that_begins_in_the_store_has_no_transaction_of_it_open() -> None:
    """What is in the store is decided. A new replica, whose log begins behind it, waits for no marker: a clean one gets
    it from its leader, and has nothing to name by it; an unclean leader has lost it."""

    async def scenario(bench: Tiers) -> None:
        producer, late = Transactional(7), Transactional(8)
        await write(bench, 1, producer, b"aborted")
        await bench.fill(12)
        await write(bench, 1, late, b"late")
        await end(bench, 1, producer, commit=False)
        stops_at = 13
        last = max(base for base in bench.log(1).bases if base <= stops_at)
        await bench.until(lambda: bench.tier.end_offset == last)
        assert await consume(bench, 1) == [b"%d" % number for number in range(12)]
        # Whoever has the marker dies; who is left has nothing but the store.
        await bench.leave_out(2, 3)
        bench.world.kill("n1")
        bench.controller.fence(NodeId(1))
        bench.world.machines["n3"].disk.wipe()
        bench.broker(3).start()
        await bench.world.sleep_ms(200)
        bench.controller.elect_uncleanly(TP, NodeId(3))
        await bench.until(lambda: bench.leads(3))
        assert bench.log(3).log_start_offset == last
        await bench.append(3, b"new")
        assert committed(bench, 3, last).last_stable_offset == last + 1
        assert await consume(bench, 3) == [*(b"%d" % number for number in range(last - 1)), b"new"]

    play(scenario, Tiers(min_insync_replicas=1))


def test_sidecars_name_transactions_that_reach_beyond_them() -> None:
    async def scenario(bench: Tiers) -> None:
        producer = Transactional(7)
        await bench.fill(3)
        await write(bench, 1, producer, b"a")
        await bench.fill(30)
        await end(bench, 1, producer, commit=False)
        await bench.fill(10)
        await bench.copied(leaves=False)
        reader = bench.manager(1).tier_reads.reader
        assert reader is not None
        state = bench.controller.state(TP)
        marker = 34
        for segment in bench.tier.segments:
            where = state.topic_partition, state.topic_id, segment
            found = await bench.inside(
                1,
                lambda where=where: reader.aborted(*where, where[2].base_offset, where[2].end_offset),  # type: ignore[misc]
            )
            reaches = segment.base_offset <= marker and segment.end_offset > 3
            assert found == ([AbortedTransaction(7, 3, marker, marker + 1)] if reaches else [])

    play(scenario, Tiers(LOG))
