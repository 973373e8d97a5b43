"""DeleteRecords is answered once no power cut and no election brings the records back."""

from __future__ import annotations

import asyncio

import pytest

from strandline.log.checkpoints import LOG_STARTS, decode_offsets
from strandline.log.offset_checkpoints import CHECKPOINT_COPY
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.replica.partition import PendingDeletion
from tests.replica.helpers import TP, batch
from tests.replica.simulated import PATH
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import Bench


class Asked:
    """A deletion and its answer."""

    def __init__(self, bench: Bench, node: int, offset: int) -> None:
        self.told: list[tuple[ErrorCode, int]] = []
        self.pending: PendingDeletion | None = None

        def delete(manager: object) -> None:
            self.pending = bench.manager(node).delete_records(
                TP, offset, lambda error, _, low: self.told.append((error, low))
            )

        bench.broker(node).run(delete)


async def filled(bench: Bench) -> None:
    """Three batches of ten records on every replica."""
    for _ in range(3):
        assert (await bench.send(1, batch(b"ten", count=10))).error is ErrorCode.NONE
    await bench.whole()


def on_disk(bench: Bench, node: int) -> int:
    """The log start that a node would begin with after a power cut now."""
    data = bench.world.machines[f"n{node}"].disk.files().get(f"{PATH}/{LOG_STARTS}", b"0\n0\n")
    return decode_offsets("file", data).get(TP, 0)


@pytest.mark.parametrize("slow", [1, 2], ids=["slow leader", "slow follower"])
@pytest.mark.parametrize("death", ["power", "kill"])
def test_a_deletion_outlives_the_death_of_all(death: str, slow: int) -> None:
    """Every machine goes in the instant of the answer; whoever leads next has nothing of what was deleted."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        bench.world.machines[f"n{slow}"].disk.config.slow_factor = 50.0
        asked = Asked(bench, 1, 15)
        await bench.until(lambda: bool(asked.told))
        assert asked.told == [(ErrorCode.NONE, 15)]
        for node in (1, 2, 3):
            (bench.world.power_cut if death == "power" else bench.world.kill)(f"n{node}")
        assert [on_disk(bench, node) for node in (1, 2, 3)] == [15, 15, 15]
        for node in (1, 2, 3):
            bench.controller.fence(NodeId(node))
            bench.broker(node).start()
        await bench.until(lambda: any(bench.leads(node) for node in (1, 2, 3)))
        [leader] = [node for node in (1, 2, 3) if bench.leads(node)]
        assert bench.status(leader).log_start_offset == 15
        await bench.until(lambda: bench.status(leader).high_watermark == 30)
        assert bench.read(leader, 14).error is ErrorCode.OFFSET_OUT_OF_RANGE

    bench.play(scenario)


def test_a_node_that_has_lost_its_log_starts() -> None:
    """A node of which both files that say them are gone begins with the first batch, and has deleted again what its
    leader had deleted before it is in sync."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        asked = Asked(bench, 1, 15)
        await bench.until(lambda: bool(asked.told))
        await bench.leave_out(3)
        for name in (LOG_STARTS, CHECKPOINT_COPY):
            bench.world.machines["n3"].disk.remove_directory(f"{PATH}/{name}")
        bench.broker(3).start()
        await bench.until(lambda: bench.hosted(3) is not None)
        assert bench.status(3).log_start_offset == 0
        await bench.until(lambda: len(bench.isr) == 3)
        bench.controller.elect(TP, NodeId(3))
        await bench.until(lambda: bench.leads(3))
        assert bench.status(3).log_start_offset == 15

    bench.play(scenario)


def test_a_replica_joins_once_its_deletions_are_durable() -> None:
    """It was away when the client was answered: the moment that it is in sync it may be elected."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        await bench.leave_out(3)
        asked = Asked(bench, 1, 15)
        await bench.until(lambda: bool(asked.told))
        assert asked.told == [(ErrorCode.NONE, 15)]
        assert on_disk(bench, 3) == 0
        bench.world.machines["n3"].disk.config.slow_factor = 50.0
        bench.broker(3).start()
        await bench.until(lambda: len(bench.isr) == 3, within_ms=60_000)
        bench.world.power_cut("n3")
        assert on_disk(bench, 3) == 15

    bench.play(scenario)


@schedule(78, rule="B16: who joins has durably deleted what is deleted", mutant="a-start-inside-a-batch-is-durable")
def test_78_a_replica_that_begins_inside_a_batch_joins_once_its_start_is_durable() -> None:
    """The replica told the leader a log start that the name of its empty segment made durable. The batch that holds it
    begins earlier, and so does the segment then."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        asked = Asked(bench, 1, 25)
        await bench.until(lambda: bool(asked.told))
        await bench.leave_out(3)
        disk = bench.world.machines["n3"].disk
        disk.wipe()
        disk.config.slow_factor = 50.0
        bench.broker(3).start()
        await bench.until(lambda: len(bench.isr) == 3, within_ms=60_000)
        bench.world.power_cut("n3")
        assert on_disk(bench, 3) == 25

    bench.play(scenario)


def test_a_deletion_waits_while_too_few_are_in_sync() -> None:
    """KIP-966: below min.insync.replicas a member that left may be elected, and has not deleted anything."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        await bench.leave_out(2, 3)
        asked = Asked(bench, 1, 15)
        await bench.world.sleep_ms(3_000)
        assert asked.told == []
        for node in (2, 3):
            bench.broker(node).start()
        await bench.until(lambda: bool(asked.told))
        assert asked.told == [(ErrorCode.NONE, 15)]
        assert bench.status(1).log_start_offset == 15

    bench.play(scenario)


def test_many_deletions_are_written_in_few_groups() -> None:
    """One checkpoint holds the log starts of all; while one is being written the next ones gather."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        before = bench.world.machines["n1"].disk.operations
        asked = [Asked(bench, 1, offset) for offset in range(1, 21)]
        await bench.until(lambda: all(each.told for each in asked))
        assert all(each.told[0][1] >= offset for offset, each in enumerate(asked, 1))
        assert bench.world.machines["n1"].disk.operations - before < 60

    bench.play(scenario)


def test_58_a_broker_on_a_disk_that_hangs_ends_without_its_checkpoints() -> None:
    """Schedule 58: the disk is why it ends; what hangs there never will."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        machine = bench.world.machines["n1"]
        machine.disk.hang()
        Asked(bench, 1, 15)
        await bench.world.sleep_ms(7_000)
        ended: list[bool] = []

        async def end() -> None:
            await bench.manager(1).close(clean=False)
            ended.append(True)

        bench.broker(1).run(lambda _: asyncio.ensure_future(end()))
        await bench.until(lambda: bool(ended), within_ms=5_000)
        assert on_disk(bench, 1) == 0

    bench.play(scenario)
