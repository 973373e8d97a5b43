"""DeleteRecords is answered once no power cut and no election brings the records back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.log.checkpoints import LOG_STARTS, decode_offsets
from strandline.log.disk import DiskError, DiskFull
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.log_starts import LogStarts
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import NodeId, TopicPartition
from strandline.replica.waiting import PendingDeletion
from tests.log.helpers import TOPIC_ID, FailingDisk, ManualClock, client_batch
from tests.replica.helpers import TP, batch
from tests.replica.simulated import PATH
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


def test_the_advice_for_a_damaged_checkpoint_of_log_starts() -> None:
    """A node whose file was moved away, as the message says, begins with the first batch, and has deleted again what
    its leader had deleted before it is in sync."""
    with pytest.raises(CorruptLogError) as caught:
        decode_offsets(f"/d/{LOG_STARTS}", b"0\n1\nt")
    assert "Move the file away and restart" in caught.value.advice
    assert "shows deleted records again" in caught.value.advice
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await filled(bench)
        asked = Asked(bench, 1, 15)
        await bench.until(lambda: bool(asked.told))
        await bench.leave_out(3)
        bench.world.machines["n3"].disk.remove_directory(f"{PATH}/{LOG_STARTS}")
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


# The group commit itself

OTHER = TopicPartition("other", 0)


class Starts:
    """A log directory with two logs of twenty records each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = FailingDisk()
        format_log_dir(self.disk, str(path), "c", NodeId(1), TOPIC_ID)
        self.log_dir = LogDir.open(self.disk, str(path), ManualClock())
        self.durable: list[tuple[int, int]] = []
        self.failed: list[BaseException] = []
        for tp in (TP, OTHER):
            log = self.log_dir.create(tp, TOPIC_ID)
            log.append_as_leader(client_batch(10), 0, 0)
            log.append_as_leader(client_batch(10), 0, 0)
        self.log_dir.write_checkpoints({})
        self.starts = LogStarts(self.log_dir, self.disk, self._durable, self.failed.append)

    def _durable(self) -> None:
        logs = self.log_dir.logs
        self.durable.append((int(logs[TP].durable_log_start_offset), int(logs[OTHER].durable_log_start_offset)))

    def raise_to(self, tp: TopicPartition, offset: int) -> None:
        self.log_dir.logs[tp].delete_records_before(offset)
        self.starts.raised()

    def stored(self) -> dict[TopicPartition, int]:
        return decode_offsets("file", (self.path / LOG_STARTS).read_bytes())

    async def end(self) -> None:
        task = self.starts.stop()
        if task is not None:
            await asyncio.wait([task])
        assert self.failed == []


def test_log_starts_go_in_groups(tmp_path: Path) -> None:
    """What is raised while one group is written goes with the next; nothing is told before its group is durable."""

    async def scenario() -> None:
        site = Starts(tmp_path / "data")
        site.raise_to(TP, 5)
        site.raise_to(OTHER, 3)
        await asyncio.sleep(0)
        site.raise_to(TP, 7)
        assert site.durable == []
        while len(site.durable) < 2:
            await asyncio.sleep(0.001)
        assert site.durable[-1] == (7, 3)
        assert site.stored() == {TP: 7, OTHER: 3}
        await site.end()

    asyncio.run(scenario())


def test_a_log_that_is_cut_meanwhile_keeps_its_lower_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was gathered before a truncation lowered the start must not put the old one back: it would hide
    what is written next."""

    async def scenario() -> None:
        site = Starts(tmp_path / "data")
        real = site.disk.sync
        cut: list[int] = []

        async def sync(files: object, directories: object = (), wait_ms: float = 0.0) -> None:
            if files and not cut:
                cut.append(1)
                site.log_dir.logs[TP].truncate_to(12)
                site.log_dir.logs[TP].truncate_to(2)
            await real(files, directories)  # type: ignore[arg-type]

        monkeypatch.setattr(site.disk, "sync", sync)
        site.raise_to(TP, 15)
        site.raise_to(OTHER, 3)
        while not site.durable:
            await asyncio.sleep(0.001)
        assert site.log_dir.logs[TP].log_end_offset == 0
        assert site.stored() == {OTHER: 3}
        assert site.durable == [(0, 3)]
        await site.end()

    asyncio.run(scenario())


def test_a_full_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told before it has gone; who waits meanwhile is answered REQUEST_TIMED_OUT by the deadline."""
    monkeypatch.setattr("strandline.log.log_starts.RETRY_S", 0.01)

    async def scenario() -> None:
        site = Starts(tmp_path / "data")
        for error in (DiskFull(28, "No space left on device", "x"), DiskError(5, "Input/output error", "x")):
            site.disk.write_error = error
            site.raise_to(TP, int(site.log_dir.logs[TP].log_start_offset) + 4)
            await asyncio.sleep(0.1)
            told = len(site.durable)
            site.disk.write_error = None
            while len(site.durable) == told:
                await asyncio.sleep(0.001)
        assert site.durable == [(4, 0), (8, 0)]
        assert site.stored() == {TP: 8}
        await site.end()

    asyncio.run(scenario())


def test_a_stop_ends_it_with_what_is_being_written(tmp_path: Path) -> None:
    """Nothing more is begun: the log directory writes its own checkpoints last."""

    async def scenario() -> None:
        site = Starts(tmp_path / "data")
        site.raise_to(TP, 5)
        await asyncio.sleep(0)
        site.raise_to(OTHER, 3)
        await site.end()
        assert site.durable == [(5, 0)]
        site.log_dir.close(1)
        assert site.stored() == {TP: 5, OTHER: 3}

    asyncio.run(scenario())
