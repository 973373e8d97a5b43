"""Replicas whose log begins behind what the object store alone has know who wrote that (rule B24)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId, TopicIdPartition
from strandline.proto.tier import NO_TIER
from strandline.replica.states import BrokerState, PartitionState, Role
from tests.replica.helpers import TP, batch
from tests.replica.tiered import NOTHING_STAYS, Tiers, play
from tests.schedules.replication.bench import ONE, THREE

retry = partial(batch, b"a", 3, producer_id=9, producer_epoch=1, base_sequence=0)
zombie = partial(batch, b"b", 1, producer_id=9, producer_epoch=0, base_sequence=7)
next_one = partial(batch, b"c", 1, producer_id=9, producer_epoch=1, base_sequence=3)


class Producing(Tiers):
    """A tier whose first batches are of a producer that has been silent since."""

    async def produce(self) -> None:
        for base_sequence in range(7):
            one = batch(b"%d" % self.sent, producer_id=9, producer_epoch=0, base_sequence=base_sequence)
            assert (await self.send(1, one)).error is ErrorCode.NONE
            self.sent += 1
        assert (await self.send(1, retry())).base_offset == 7
        self.sent += 3
        await self.fill()
        await self.copied()
        assert self.log(1).log_start_offset > 10

    async def recognises(self, node: int) -> None:
        """The producer has had no answer, and sends to the new leader what it sent to the first one."""
        end = self.log(node).log_end_offset
        answer = await self.send(node, retry())
        assert (answer.error, answer.base_offset) == (ErrorCode.NONE, 7)
        assert (await self.send(node, zombie())).error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert self.log(node).log_end_offset == end, "nothing was appended"
        answer = await self.send(node, next_one())
        assert (answer.error, answer.base_offset) == (ErrorCode.NONE, end)

    async def replace_third(self) -> None:
        """It comes back with an empty disk, and the others have little left on theirs."""
        await self.leave_out(3)
        self.world.machines["n3"].disk.wipe()
        self.broker(3).start()

    async def lose_all_but_the_store(self) -> None:
        """An unclean election makes a leader without a record."""
        await self.leave_out(2, 3)
        self.world.kill("n1")
        self.controller.fence(ONE)
        self.world.machines["n3"].disk.wipe()
        self.broker(3).start()
        await self.world.sleep_ms(200)
        self.controller.elect_uncleanly(TP, THREE)


def test_a_new_replica_knows_who_wrote_what_it_never_had() -> None:
    async def scenario(bench: Producing) -> None:
        await bench.produce()
        await bench.replace_third()
        await bench.until(lambda: NodeId(3) in bench.isr)
        assert bench.log(3).log_start_offset > 10
        await bench.elect(3)
        await bench.recognises(3)

    play(scenario, Producing())


def test_it_still_knows_after_a_power_cut() -> None:
    """What it was told is durable before the first record."""

    async def scenario(bench: Producing) -> None:
        await bench.produce()
        await bench.replace_third()
        await bench.until(lambda: bench.hosted(3) is not None and bench.log(3).log_start_offset > 0)
        await bench.until(lambda: bench.log(3).log_end_offset > bench.log(3).log_start_offset)
        bench.world.power_cut("n3")
        bench.controller.fence(THREE)
        bench.broker(3).start()
        await bench.until(lambda: NodeId(3) in bench.isr)
        await bench.elect(3)
        await bench.recognises(3)

    play(scenario, Producing())


def test_it_waits_for_the_store_out_of_sync_and_alone() -> None:
    async def scenario(bench: Producing) -> None:
        await bench.produce()
        bench.store.faults.away = True
        await bench.replace_third()
        await bench.world.sleep_ms(5_000)
        assert NodeId(3) not in bench.isr
        beginnings = bench.manager(3).beginnings
        assert beginnings.waiting == 1
        assert beginnings.waiting_ms() > 3_000
        assert not bench.log(3).size_bytes
        await bench.fill(3)
        bench.store.heal()
        await bench.until(lambda: NodeId(3) in bench.isr)
        assert (beginnings.waiting, beginnings.waiting_ms()) == (0, 0)
        await bench.elect(3)
        await bench.recognises(3)

    play(scenario, Producing())


def test_a_stop_while_it_waits_is_no_answer() -> None:
    """An empty log is closed in order; what nobody has told it is still to be learned."""

    async def scenario(bench: Producing) -> None:
        await bench.produce()
        bench.store.faults.away = True
        await bench.replace_third()
        await bench.until(lambda: bench.hosted(3) is not None and bench.log(3).log_start_offset > 0)
        log = bench.log(3)
        log.seal()
        assert not log.snapshots.offsets()
        bench.store.heal()
        await bench.until(lambda: NodeId(3) in bench.isr)
        assert log.snapshots.offsets()

    play(scenario, Producing())


def test_metadata_that_are_behind_are_waited_for() -> None:
    """The new replica has not heard yet that what lies before was copied."""

    async def scenario(bench: Producing) -> None:
        await bench.produce()
        third = bench.broker(3)
        post = third._post

        def behind(
            changes: list[PartitionState], deleted: list[TopicIdPartition], brokers: dict[NodeId, BrokerState]
        ) -> None:
            post([replace(state, tier=NO_TIER) for state in changes], deleted, brokers)

        third._post = behind  # type: ignore[method-assign]
        await bench.replace_third()
        await bench.world.sleep_ms(3_000)
        assert bench.manager(3).beginnings.waiting == 1
        assert NodeId(3) not in bench.isr
        third._post = post  # type: ignore[method-assign]
        bench.hear_only_the_newest(3)
        bench.controller.subscribe(THREE, post)
        await bench.until(lambda: NodeId(3) in bench.isr)
        await bench.elect(3)
        await bench.recognises(3)

    play(scenario, Producing())


def test_what_was_deleted_before_it_was_copied_is_not_waited_for() -> None:
    """The metadata say that it was deleted, once the topic is tiered."""

    async def scenario(bench: Tiers) -> None:
        bench.controller.change(TP, log_config=replace(NOTHING_STAYS, remote_storage=False))
        await bench.fill(2)
        answered: list[ErrorCode] = []
        bench.delete(2, lambda error, *_: answered.append(error))
        await bench.until(lambda: answered)
        bench.controller.change(TP, log_config=NOTHING_STAYS)
        await bench.fill(1)
        await bench.leave_out(3)
        bench.world.machines["n3"].disk.wipe()
        bench.broker(3).start()
        await bench.until(lambda: NodeId(3) in bench.isr)
        assert bench.log(3).log_start_offset == 2
        assert (bench.tier.start_offset, bench.tier.segments) == (2, ())

    play(scenario)


@pytest.mark.parametrize("away", [False, True])
def test_a_leader_that_lost_every_disk_knows_who_wrote_what_is_in_the_store(away: bool) -> None:
    """It does not lead before."""

    async def scenario(bench: Producing) -> None:
        await bench.produce()
        bench.store.faults.away = away
        await bench.lose_all_but_the_store()
        if away:
            await bench.world.sleep_ms(3_000)
            assert bench.status(3).role is Role.IDLE
            assert (await bench.send(3, retry(), acks=1)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            bench.store.heal()
        await bench.until(lambda: bench.leads(3))
        assert bench.log(3).log_start_offset == bench.tier.end_offset
        await bench.recognises(3)

    play(scenario, Producing(min_insync_replicas=1))


def test_a_replica_that_waited_to_lead_follows() -> None:
    """Another one is elected meanwhile."""

    async def scenario(bench: Producing) -> None:
        await bench.produce()
        bench.store.faults.away = True
        await bench.lose_all_but_the_store()
        await bench.world.sleep_ms(1_000)
        bench.broker(1).start()
        await bench.world.sleep_ms(500)
        bench.controller.elect_uncleanly(TP, ONE)
        await bench.until(lambda: bench.leads(1))
        bench.store.heal()
        await bench.until(lambda: NodeId(3) in bench.isr)
        assert bench.status(3).role is Role.FOLLOWER
        await bench.recognises(1)

    play(scenario, Producing(NOTHING_STAYS, min_insync_replicas=1))
