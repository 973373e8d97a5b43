"""What a start finds in its logs, kept until the controller has it (docs/correctness.md, "After a crash")."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from strandline.chaos.sim.ports import Ports
from strandline.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, copy_of, encode_checked, encode_offsets
from strandline.log.config import LogConfig
from strandline.log.findings import FINDINGS, LogCondition, RecoveryFinding
from strandline.log.incarnations import INCARNATIONS, INCARNATIONS_MAX, Incarnations, incarnation_of_epoch
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID, NodeId, TopicPartition
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, fill
from tests.log.test_log_dir import OTHER, formatted, killed, opened
from tests.stage import OneMachine

INTACT, CUT, LACKING, _ = LogCondition
SEGMENT = f"{0:020d}.log"
ME = UUID(int=77)
LIVES = (INCARNATIONS, copy_of(INCARNATIONS))


def found(log_dir: LogDir) -> dict[TopicPartition, LogCondition]:
    return {tp: finding.condition for tp, finding in log_dir.findings.all.items()}


def written(disk: FailingDisk, path: str, *, records: int = 10, sync: bool = True) -> LogDir:
    """Two logs of so many records; what is synced is checkpointed."""
    log_dir = opened(disk, path)
    for tp in (TP, OTHER):
        log = log_dir.create(tp, TOPIC_ID)
        fill(log, records, epoch=3)
        if sync:
            log.sync_now()
    if sync:
        log_dir.write_checkpoints({TP: records, OTHER: records})
    return log_dir


def tear(path: str, size: int = 5, tp: TopicPartition = TP) -> None:
    segment = Path(path) / str(tp) / SEGMENT
    segment.write_bytes(segment.read_bytes()[:-size])


# --- what is found ----------------------------------------------------------------------------------------------------


def test_a_log_that_was_killed_is_intact(disk: FailingDisk, tmp_path: Path) -> None:
    """With its end and last epoch, which the registration tells."""
    path = formatted(disk, tmp_path)
    killed(written(disk, path))
    log_dir = opened(disk, path)
    assert log_dir.findings.all == {tp: RecoveryFinding(TOPIC_ID, 10, 3, INTACT) for tp in (TP, OTHER)}
    assert log_dir.found == {INTACT: 2}
    assert not (Path(path) / FINDINGS).exists()


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_directory_is_lacking(disk: FailingDisk, tmp_path: Path, clean: bool) -> None:
    """Schedule 48: recovery point or high watermark prove that there was one; the clean mark covers what they name."""
    path = formatted(disk, tmp_path)
    log_dir = written(disk, path)
    if clean:
        log_dir.close(7)
    else:
        killed(log_dir)
    shutil.rmtree(Path(path) / "orders-0")
    with capture_logs() as said:
        log_dir = opened(disk, path)
    assert found(log_dir) == {TP: LACKING, OTHER: INTACT}
    assert log_dir.findings.all[TP].topic_id == ZERO_UUID
    [line] = [line for line in said if line["log_level"] == "error"]
    assert (line["partition"], line["durable_once"]) == ("orders-0", 10)


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "zeros"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_tail_that_the_disk_did_not_give_back(disk: FailingDisk, tmp_path: Path, clean: bool, cut: bool) -> None:
    """Zeros, or the end of the file, where synced batches stood: after a clean stop the checkpoints tell. After any
    other nothing does, and the end of the log proves nothing (rule B30)."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    for _ in range(10):
        fill(log, 1, epoch=3)
    log.sync_now()
    if clean:
        log_dir.close(7)
    else:
        killed(log_dir)
    segment = Path(path) / str(TP) / SEGMENT
    written = segment.read_bytes()
    kept = 6 * (12 + int.from_bytes(written[8:12], "big"))
    segment.write_bytes(written[:kept] if cut else written[:kept].ljust(len(written), b"\0"))
    log_dir = opened(disk, path)
    assert log_dir.findings.all == {TP: RecoveryFinding(TOPIC_ID, 6, 3, LACKING if clean else INTACT)}


def test_a_missing_directory_that_nothing_proves_is_no_finding(disk: FailingDisk, tmp_path: Path) -> None:
    """It held nothing that was synced."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log_dir.create(TP, TOPIC_ID)
    log_dir.write_checkpoints({TP: 0})
    killed(log_dir)
    shutil.rmtree(Path(path) / "orders-0")
    assert found(opened(disk, path)) == {}


@pytest.mark.parametrize("clean", [True, False])
def test_an_older_copy_of_a_directory_is_lacking_and_follows(disk: FailingDisk, tmp_path: Path, clean: bool) -> None:
    """Whole, and shorter than the directory's own checkpoints: no damage, so that it opens and catches up."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 4)
    log.sync_now()
    shutil.copytree(Path(path) / "orders-0", tmp_path / "copy")
    fill(log, 6)
    log.sync_now()
    log_dir.write_checkpoints({TP: 10})
    if clean:
        log_dir.close(7)
    else:
        killed(log_dir)
    shutil.rmtree(Path(path) / "orders-0")
    shutil.copytree(tmp_path / "copy", Path(path) / "orders-0")
    log_dir = opened(disk, path)
    assert found(log_dir) == {TP: LACKING}
    assert log_dir.offline == {}
    assert log_dir.logs[TP].log_end_offset == 4
    log_dir.write_checkpoints({TP: 4})
    killed(log_dir)
    assert found(opened(disk, path)) == {TP: LACKING}, "the checkpoints say 4 by now"


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_first_segment_that_is_missing_is_refused(disk: FailingDisk, tmp_path: Path, clean: bool) -> None:
    """The log would begin later, as after a deletion that nobody asked for. A log that did begin later opens."""
    path = formatted(disk, tmp_path)
    config = LogConfig(segment_bytes=400, preallocate_bytes=0)
    log_dir = opened(disk, path)
    for tp in (TP, OTHER):
        log = log_dir.create(tp, TOPIC_ID, config)
        fill(log, 20)
        log.sync_now()
    log_dir.write_checkpoints({TP: 20, OTHER: 20})
    log_dir.logs[OTHER].truncate_fully_and_start_at(500)
    if clean:
        log_dir.close(7)
    else:
        killed(log_dir)
    (Path(path) / "orders-0" / SEGMENT).unlink()
    log_dir = opened(disk, path)
    assert list(log_dir.offline) == [TP]
    assert "a segment is missing" in str(log_dir.offline[TP])
    assert found(log_dir)[TP] is LACKING
    assert log_dir.logs[OTHER].log_start_offset == 500


def test_damage_below_what_was_committed_is_refused(disk: FailingDisk, tmp_path: Path) -> None:
    """The high watermark proves what was durable as well as the recovery point does, which may lag behind it."""
    path = formatted(disk, tmp_path)
    killed(written(disk, path))
    (Path(path) / RECOVERY_POINTS).write_bytes(encode_offsets({TP: 2, OTHER: 10}))
    tear(path)
    disk.boot = "boot-2"
    log_dir = opened(disk, path)
    assert "below offset 10 was durable once" in str(log_dir.offline[TP])
    assert log_dir.findings.all[TP] == RecoveryFinding(TOPIC_ID, -1, -1, LACKING)


def test_the_advice_of_a_refused_log_is_followed(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 46: "move its directory away and restart": the empty log that is made then is known to lack."""
    path = formatted(disk, tmp_path)
    log_dir = written(disk, path)
    killed(log_dir)
    segment = Path(path) / "orders-0" / SEGMENT
    raw = bytearray(segment.read_bytes())
    raw[70] ^= 1
    segment.write_bytes(raw)
    log_dir = opened(disk, path)
    assert "move its directory away and restart" in str(log_dir.offline[TP])
    log_dir.registered(ME)
    log_dir.write_checkpoints({OTHER: 10})
    killed(log_dir)
    (Path(path) / "orders-0").rename(tmp_path / "moved away")
    log_dir = opened(disk, path)
    assert found(log_dir) == {TP: LACKING, OTHER: INTACT}
    assert log_dir.create(TP, TOPIC_ID).log_end_offset == 0


# --- kept until it is committed ---------------------------------------------------------------------------------------


def test_a_cut_is_remembered_until_it_is_committed(disk: FailingDisk, tmp_path: Path) -> None:
    """Cut, killed before it registered, started again: the second start finds a whole log."""
    path = formatted(disk, tmp_path)
    killed(written(disk, path, sync=False))
    tear(path)
    for _ in range(3):
        log_dir = opened(disk, path)
        assert found(log_dir) == {TP: CUT, OTHER: INTACT}
        assert log_dir.logs[TP].log_end_offset == 9
        assert (Path(path) / FINDINGS).read_bytes() == encode_checked(["orders 0 cut"])
        log_dir.write_checkpoints({TP: 9})
        killed(log_dir)
    log_dir = opened(disk, path)
    log_dir.registered(ME)
    assert not (Path(path) / FINDINGS).exists()
    killed(log_dir)
    assert found(opened(disk, path)) == {TP: INTACT, OTHER: INTACT}


def test_a_loss_is_remembered_until_it_is_committed(disk: FailingDisk, tmp_path: Path) -> None:
    """Also by the checkpoints, which no longer name what is gone once the controller knows."""
    path = formatted(disk, tmp_path)
    killed(written(disk, path))
    shutil.rmtree(Path(path) / "orders-0")
    log_dir = opened(disk, path)
    log_dir.write_checkpoints({OTHER: 10})
    assert b"orders 0 10" in (Path(path) / RECOVERY_POINTS).read_bytes()
    killed(log_dir)
    (Path(path) / RECOVERY_POINTS).unlink()
    (Path(path) / HIGH_WATERMARKS).unlink()
    log_dir = opened(disk, path)
    assert found(log_dir) == {TP: LACKING, OTHER: INTACT}
    log_dir.registered(ME)
    log_dir.write_checkpoints({OTHER: 10})
    assert b"orders 0" not in (Path(path) / RECOVERY_POINTS).read_bytes()
    killed(log_dir)
    assert found(opened(disk, path)) == {OTHER: INTACT}


class Machine(OneMachine):
    """A log directory over the lives of one simulated machine, each struck at one of its disk operations."""

    opened: LogDir | None = None

    async def live_until(self, life: Callable[[Ports], None], strike_after: int, strike: Callable[[str], None]) -> bool:
        """Run a life until it ends, or is struck at an operation other than 0; true if it ended."""

        async def work(ports: Ports) -> None:
            life(ports)

        self.disk.strike_after(strike_after, (lambda: strike("n1")) if strike_after else None)
        ended = await self.live(work)
        self.disk.strike_after(0, None)
        self.kill("n1")
        return ended


def write_and_crash(ports: Ports) -> None:
    format_log_dir(ports.disk, "/data", "cluster-1", NodeId(1), UUID(int=1))
    log_dir = LogDir.open(ports.disk, "/data", ports.clock)
    for tp in (OTHER, TP):  # the checkpoints name the first alone
        log = log_dir.create(tp, TOPIC_ID)
        fill(log, 10)
        log.sync_now()
        if tp == OTHER:
            log_dir.write_checkpoints({OTHER: 10})


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_struck_anywhere_a_start_forgets_no_finding(how: str) -> None:
    """Crash at every point between finding, cutting, making anew and registering: until the registration is committed
    each start tells of the cut and of the loss."""
    told = 0
    for operation in range(1, 110):
        machine = Machine(operation)
        told_by_last: list[dict[TopicPartition, LogCondition]] = []

        def start(ports: Ports, told_by_last: list[dict[TopicPartition, LogCondition]] = told_by_last) -> None:
            log_dir = LogDir.open(ports.disk, "/data", ports.clock)
            told_by_last.append(found(log_dir))
            log_dir.write_checkpoints({TP: 9})

        async def scenario(machine: Machine, operation: int = operation) -> None:
            assert await machine.live_until(write_and_crash, 0, machine.world.kill)
            content = machine.disk.files()[f"/data/{TP}/{SEGMENT}"].rstrip(b"\0")
            machine.disk.flip_bit(f"/data/{TP}/{SEGMENT}", len(content) - 2)
            machine.disk.remove_directory(f"/data/{OTHER}")
            await machine.live_until(start, operation, getattr(machine.world, how))
            assert await machine.live_until(start, 0, machine.world.kill)

        machine.play(scenario)
        told += len(told_by_last)
        assert told_by_last[-1] == {TP: CUT, OTHER: LACKING}, operation
    assert told > 80, "some strikes came after the first start had found it, too"


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_struck_anywhere_a_deletion_is_no_loss(how: str) -> None:
    """A topic is deleted, and the node crashes at any operation of it: what is gone at its own order is not missed."""
    ended: list[int] = []
    for operation in range(1, 200):
        machine = Machine(operation)
        conditions: list[LogCondition] = []

        def start(ports: Ports, conditions: list[LogCondition] = conditions) -> None:
            conditions.extend(found(LogDir.open(ports.disk, "/data", ports.clock)).values())

        async def delete(ports: Ports, operation: int = operation) -> None:
            log_dir = LogDir.open(ports.disk, "/data", ports.clock)
            await asyncio.gather(log_dir.delete(TP), log_dir.delete(OTHER))
            ended.append(operation)

        async def scenario(machine: Machine, operation: int = operation) -> None:
            assert await machine.live_until(write_and_crash, 0, machine.world.kill)
            machine.disk.strike_after(operation, lambda: getattr(machine.world, how)("n1"))
            await machine.live(delete)
            machine.disk.strike_after(0, None)
            machine.kill("n1")
            assert await machine.live_until(start, 0, machine.world.kill)

        machine.play(scenario)
        assert LACKING not in conditions, operation
    assert 10 < len(ended) < 180, "some were struck in the middle, some not at all"


def test_a_full_disk_leaves_what_it_cannot_note_as_it_is(disk: FailingDisk, tmp_path: Path) -> None:
    """No room to write a finding down: the log is not cut, and the partition not made anew, in this life."""
    path = formatted(disk, tmp_path)
    log_dir = written(disk, path, sync=False)
    log_dir.logs[OTHER].sync_now()
    log_dir.write_checkpoints({OTHER: 10})
    killed(log_dir)
    tear(path)
    torn = (Path(path) / "orders-0" / SEGMENT).read_bytes()
    shutil.rmtree(Path(path) / str(OTHER))
    disk.boot = "after the power cut"
    disk.bytes_left = 4
    log_dir = opened(disk, path)
    assert found(log_dir) == {TP: CUT, OTHER: LACKING}
    assert set(log_dir.offline) == {TP, OTHER}
    assert "make room and restart" in str(log_dir.offline[TP])
    assert (Path(path) / "orders-0" / SEGMENT).read_bytes() == torn
    with pytest.raises(KafkaError) as caught:
        log_dir.create(OTHER, TOPIC_ID)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.bytes_left = None
    log_dir = opened(disk, path)
    assert found(log_dir) == {TP: CUT, OTHER: LACKING}
    assert log_dir.logs[TP].log_end_offset == 9
    assert log_dir.offline == {}


def test_findings_that_cannot_be_read_make_every_log_doubtful(disk: FailingDisk, tmp_path: Path) -> None:
    """A bit of the file turns over: nothing may look better than it is."""
    path = formatted(disk, tmp_path)
    killed(written(disk, path, sync=False))
    tear(path)
    killed(opened(disk, path))
    (Path(path) / FINDINGS).write_bytes(b"0\n1\norders 0 cuu\n")
    with capture_logs() as said:
        log_dir = opened(disk, path)
    assert found(log_dir) == {TP: CUT, OTHER: CUT}
    assert "every log here counts as cut" in str(said)


def test_many_logs_are_noted_in_one_write(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut under load tears hundreds of tails: one file, one sync."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    tps = [TopicPartition("t", number) for number in range(100)]
    for tp in tps:
        fill(log_dir.create(tp, TOPIC_ID), 2)
    killed(log_dir)
    for tp in tps:
        tear(path, tp=tp)
    synced: list[str] = []
    before = FailingDisk.sync_now
    monkeypatch.setattr(
        FailingDisk,
        "sync_now",
        lambda self, files, names=(): (synced.extend(f.path for f in files), before(self, files, names))[1],
    )
    log_dir = opened(disk, path)
    assert set(found(log_dir).values()) == {CUT}
    assert [one for one in synced if FINDINGS in one] == [f"{path}/{FINDINGS}.tmp"]


# --- what the checkpoints promise -------------------------------------------------------------------------------------


def test_a_high_watermark_is_written_as_far_as_it_is_durable(disk: FailingDisk, tmp_path: Path) -> None:
    """A follower that catches up knows more to be committed than it has synced: that proves nothing about its disk."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 6)
    log.sync_now()
    fill(log, 4)
    log_dir.write_checkpoints({TP: 10})
    assert (Path(path) / HIGH_WATERMARKS).read_bytes() == encode_offsets({TP: 6})
    log_dir.close(5)
    assert (Path(path) / HIGH_WATERMARKS).read_bytes() == encode_offsets({TP: 10})


def test_a_cut_below_the_high_watermark_lowers_it_first(disk: FailingDisk, tmp_path: Path) -> None:
    """After an unclean election: what was given up is not missed at the next start."""
    path = formatted(disk, tmp_path)
    log_dir = written(disk, path)
    log_dir.logs[TP].truncate_to(4)
    assert encode_offsets({TP: 4, OTHER: 10}) == (Path(path) / HIGH_WATERMARKS).read_bytes()
    killed(log_dir)
    assert found(opened(disk, path))[TP] is INTACT


def test_what_was_lost_and_is_made_anew_is_not_missed_again(disk: FailingDisk, tmp_path: Path) -> None:
    """The controller knows of the loss, the partition is fetched from its leader, and the node is killed."""
    path = formatted(disk, tmp_path)
    killed(written(disk, path))
    shutil.rmtree(Path(path) / "orders-0")
    log_dir = opened(disk, path)
    log_dir.registered(ME)
    fill(log_dir.create(TP, TOPIC_ID), 2)
    killed(log_dir)
    assert found(opened(disk, path)) == {TP: INTACT, OTHER: INTACT}


def test_a_partition_made_anew_is_not_measured_by_its_predecessor(disk: FailingDisk, tmp_path: Path) -> None:
    """A topic is deleted and made again under its name, and the node is killed before the next checkpoint."""
    path = formatted(disk, tmp_path)
    log_dir = written(disk, path)
    asyncio.run(log_dir.delete(TP))
    log = log_dir.create(TP, UUID(int=5))
    fill(log, 2)
    log.sync_now()
    killed(log_dir)
    assert found(opened(disk, path)) == {TP: INTACT, OTHER: INTACT}


# --- lives ------------------------------------------------------------------------------------------------------------


def test_lives_since_the_last_one_that_registered(disk: FailingDisk, tmp_path: Path) -> None:
    """Each is durable before it registers; what is before the last registered one is forgotten."""
    path = formatted(disk, tmp_path)
    assert opened(disk, path).begin_life(UUID(int=1)) == (UUID(int=1),)
    log_dir = opened(disk, path)
    assert log_dir.begin_life(UUID(int=2)) == (UUID(int=1), UUID(int=2))
    log_dir.registered(UUID(int=2))
    assert opened(disk, path).begin_life(UUID(int=3)) == (UUID(int=2), UUID(int=3))


def test_a_copy_of_the_directory_does_not_know_later_lives(disk: FailingDisk, tmp_path: Path) -> None:
    """The controller has the id of one, and sees that it is missing."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log_dir.begin_life(UUID(int=1))
    log_dir.registered(UUID(int=1))
    shutil.copytree(path, tmp_path / "snapshot")
    log_dir = opened(disk, path)
    log_dir.begin_life(UUID(int=2))
    log_dir.registered(UUID(int=2))
    assert UUID(int=2) not in opened(disk, f"{tmp_path}/snapshot").begin_life(UUID(int=3))


def test_lives_are_bounded(disk: FailingDisk, tmp_path: Path) -> None:
    """A node that never reaches a controller is started again and again: the first, which was registered, stays."""
    lives = Incarnations(disk, str(tmp_path))
    for number in range(INCARNATIONS_MAX + 20):
        lives._ids = (*lives._ids, UUID(int=number)) if number < INCARNATIONS_MAX else lives._ids
    for number in range(INCARNATIONS_MAX, INCARNATIONS_MAX + 3):
        lives.begin(UUID(int=number))
    assert len(lives.ids) == INCARNATIONS_MAX
    assert (lives.ids[0], lives.ids[-1]) == (UUID(int=0), UUID(int=INCARNATIONS_MAX + 2))
    assert Incarnations(disk, str(tmp_path)).ids == lives.ids


@pytest.mark.parametrize("damage", ["flip", "zeros", "cut", "older", "missing"])
@pytest.mark.parametrize("name", LIVES)
def test_damage_to_one_file_takes_no_life(disk: FailingDisk, tmp_path: Path, name: str, damage: str) -> None:
    """Rule B31: the directory is not taken for a copy, and the next life stands in both files."""
    path = formatted(disk, tmp_path)
    older = b""
    for number in (1, 2):
        log_dir = opened(disk, path)
        older = (Path(path) / name).read_bytes() if number == 2 else b""
        log_dir.begin_life(UUID(int=number))
        log_dir.registered(UUID(int=number))
        killed(log_dir)
    content = (Path(path) / name).read_bytes()
    at = len(content) * 2 // 3
    damaged = {
        "flip": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
        "zeros": bytes(len(content)),
        "cut": content[: len(content) // 2],
        "older": older,
    }
    if damage == "missing":
        (Path(path) / name).unlink()
    else:
        (Path(path) / name).write_bytes(damaged[damage])
    assert UUID(int=2) in opened(disk, path).begin_life(UUID(int=3))
    one, other = ((Path(path) / file).read_bytes() for file in LIVES)
    assert one == other


def test_lives_on_a_full_disk(disk: FailingDisk, tmp_path: Path) -> None:
    """The node starts all the same, and says so."""
    path = formatted(disk, tmp_path)
    opened(disk, path).begin_life(UUID(int=1))
    log_dir = opened(disk, path)
    disk.boot = "after the power cut"
    disk.bytes_left = 4
    with capture_logs() as said:
        assert log_dir.begin_life(UUID(int=2)) == (UUID(int=1), UUID(int=2))
    assert [line["log_level"] for line in said] == ["warning"]
    log_dir.registered(UUID(int=2))
    disk.bytes_left = None
    assert Incarnations(disk, path).ids == (UUID(int=1),)


def test_lives_that_cannot_be_read(disk: FailingDisk, tmp_path: Path) -> None:
    """Neither the file nor its copy. Then no earlier one is known, and the directory counts as a copy: told in an error
    line."""
    path = formatted(disk, tmp_path)
    opened(disk, path).begin_life(UUID(int=1))
    for name in LIVES:
        (Path(path) / name).write_bytes(b"0\n1\nnonsense\n")
    with capture_logs() as said:
        assert opened(disk, path).begin_life(UUID(int=2)) == (UUID(int=2),)
    assert [line["log_level"] for line in said] == ["error"]


def test_a_stop_in_good_order_stands_for_a_life_that_left_no_id(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 94: an earlier build keeps no lives. Its clean mark has the broker epoch of its registration, which goes
    on standing for it until this build has registered."""
    path = formatted(disk, tmp_path)
    log_dir = written(disk, path)
    log_dir.close(7)
    log_dir = opened(disk, path)
    assert log_dir.begin_life(UUID(int=100)) == (incarnation_of_epoch(7), UUID(int=100))
    killed(log_dir)
    log_dir = opened(disk, path)
    assert log_dir.begin_life(UUID(int=101)) == (incarnation_of_epoch(7), UUID(int=100), UUID(int=101))
    log_dir.registered(UUID(int=101))
    killed(log_dir)
    assert opened(disk, path).begin_life(UUID(int=102)) == (UUID(int=101), UUID(int=102))


def test_a_stop_of_an_earlier_build_between_two_of_this_one(disk: FailingDisk, tmp_path: Path) -> None:
    """The ids that this build left are of the past then, and the mark is not."""
    path = formatted(disk, tmp_path)
    log_dir = written(disk, path)
    log_dir.begin_life(UUID(int=100))
    log_dir.registered(UUID(int=100))
    log_dir.close(9)
    assert opened(disk, path).begin_life(UUID(int=101)) == (incarnation_of_epoch(9), UUID(int=100), UUID(int=101))


def test_a_node_that_was_no_broker_proves_nothing_by_its_mark(disk: FailingDisk, tmp_path: Path) -> None:
    path = formatted(disk, tmp_path)
    opened(disk, path).close(None)
    assert opened(disk, path).begin_life(UUID(int=101)) == (UUID(int=101),)


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_struck_anywhere_a_start_proves_the_stop_before_it(how: str) -> None:
    """Schedule 94: the mark goes at the start, and what it proves must not go with it."""
    struck = 0
    for operation in range(1, 70):
        machine = Machine(operation)
        told: list[tuple[UUID, ...]] = []

        def stop_in_good_order(ports: Ports) -> None:
            write_and_crash(ports)
            log_dir = LogDir.open(ports.disk, "/data", ports.clock)
            log_dir.close(7)

        def start(ports: Ports, told: list[tuple[UUID, ...]] = told) -> None:
            told.append(LogDir.open(ports.disk, "/data", ports.clock).begin_life(UUID(int=100 + len(told))))

        async def scenario(machine: Machine, operation: int = operation) -> bool:
            assert await machine.live_until(stop_in_good_order, 0, machine.world.kill)
            ended = await machine.live_until(start, operation, getattr(machine.world, how))
            assert await machine.live_until(start, 0, machine.world.kill)
            return ended

        struck += not machine.play(scenario)
        assert incarnation_of_epoch(7) in told[-1], operation
    assert struck > 20
