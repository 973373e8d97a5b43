"""A node's directory: whose it is, clean and unclean stops, creation and deletion, checkpoints, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from strandline.log.checkpoints import RECOVERY_POINTS, encode_offsets
from strandline.log.config import LogConfig
from strandline.log.disk import DiskError, File
from strandline.log.log_dir import LogDir, format_log_dir, read_meta_properties
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError
from strandline.proto.ids import NodeId, Offset, TopicPartition
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, ManualClock, all_records, client_batch, fill

OTHER = TopicPartition("a.b_c-d", 12)
DIRECTORY_ID = UUID("11111111-2222-4333-8444-555555555555")
CONFIG = LogConfig(segment_bytes=2000, preallocate_bytes=0, file_delete_delay_ms=0)


def formatted(disk: FailingDisk, tmp_path: Path) -> str:
    """A formatted directory."""
    path = f"{tmp_path}/data"
    format_log_dir(disk, path, "cluster-1", NodeId(3), DIRECTORY_ID)
    return path


def opened(disk: FailingDisk, path: str, clock: ManualClock | None = None) -> LogDir:
    """The directory as node 3 of cluster-1 opens it."""
    return LogDir.open(disk, path, clock or ManualClock(), CONFIG, cluster_id="cluster-1", node_id=NodeId(3))


def killed(log_dir: LogDir) -> None:
    """The process dies: descriptors go, nothing is written."""
    for log in log_dir.logs.values():
        log.close_files()


def test_format_once(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 26: a directory is formatted once, and a node never formats by itself."""
    with pytest.raises(ConfigError, match="strandline format"):
        opened(disk, str(tmp_path))
    path = formatted(disk, tmp_path)
    with pytest.raises(ConfigError, match="formatted already, for node 3 of cluster-1"):
        formatted(disk, tmp_path)
    assert read_meta_properties(disk, path).directory_id == DIRECTORY_ID
    assert opened(disk, path).directory_id == DIRECTORY_ID


def test_another_nodes_directory(disk: FailingDisk, tmp_path: Path) -> None:
    """A directory of another cluster or node is refused with a sentence."""
    path = formatted(disk, tmp_path)
    with pytest.raises(ConfigError, match="belongs to cluster cluster-1"):
        LogDir.open(disk, path, ManualClock(), cluster_id="cluster-2", node_id=NodeId(3))
    with pytest.raises(ConfigError, match="belongs to node 3, this is node 4"):
        LogDir.open(disk, path, ManualClock(), cluster_id="cluster-1", node_id=NodeId(4))
    (Path(path) / "meta.properties").write_text("version=1\nclus")
    with pytest.raises(CorruptLogError, match=r"meta\.properties"):
        opened(disk, path)


def test_a_clean_stop(disk: FailingDisk, tmp_path: Path) -> None:
    """KAFKA-10471: the marker is written last, with the broker epoch, and deleted before any log is loaded."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    assert log_dir.clean_shutdown_broker_epoch is None
    for tp in (TP, OTHER):
        fill(log_dir.create(tp, TOPIC_ID), 30, size=100, epoch=4)
    log_dir.write_checkpoints({TP: 30, OTHER: 25, TopicPartition("gone", 0): 5})
    log_dir.close(77)
    marker = Path(path) / ".kafka_cleanshutdown"
    assert marker.read_bytes() == b'{"version":0,"brokerEpoch":77}'
    log_dir = opened(disk, path)
    assert not marker.exists()
    assert log_dir.clean_shutdown_broker_epoch == 77
    assert log_dir.high_watermarks == {TP: 30, OTHER: 25}
    assert sorted(log_dir.logs) == sorted([TP, OTHER])
    for log in log_dir.logs.values():
        assert (log.log_end_offset, log.durable_offset, log.latest_epoch, log.topic_id) == (30, 30, 4, TOPIC_ID)
        assert len(all_records(log)) == 30
    killed(log_dir)
    assert opened(disk, path).clean_shutdown_broker_epoch is None, "killed since"


def test_a_controller_stops_cleanly_without_an_epoch(disk: FailingDisk, tmp_path: Path) -> None:
    """No broker epoch: the stop was clean, the epoch unknown."""
    path = formatted(disk, tmp_path)
    opened(disk, path).close(None)
    assert opened(disk, path).clean_shutdown_broker_epoch == -1


def test_killed(disk: FailingDisk, tmp_path: Path) -> None:
    """Row S79: every record is there, and durable once the directory is open: it may only have been in the page
    cache."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 30, size=100, epoch=1)
    assert log.durable_offset == 0
    killed(log_dir)
    again = opened(disk, path).logs[TP]
    assert (again.log_end_offset, again.durable_offset, again.needs_sync) == (30, 30, False)


def test_damage_takes_one_partition_offline(disk: FailingDisk, tmp_path: Path) -> None:
    """The others are served; the damaged one is named, refused, and refused again after a clean stop of the others:
    the marker is not written while a log is offline (KAFKA-15375).
    """
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    for tp in (TP, OTHER):
        fill(log_dir.create(tp, TOPIC_ID), 5)
    killed(log_dir)
    segment = Path(path) / "orders-0" / f"{0:020d}.log"
    raw = bytearray(segment.read_bytes())
    raw[70] ^= 1
    segment.write_bytes(raw)
    for _ in range(2):
        log_dir = opened(disk, path)
        assert list(log_dir.logs) == [OTHER]
        error = log_dir.offline[TP]
        assert isinstance(error, CorruptLogError)
        assert (error.path, error.position, error.offset) == (str(segment), 0, 0)
        with pytest.raises(KafkaError) as caught:
            log_dir.create(TP, TOPIC_ID)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert str(segment) in str(caught.value)
        log_dir.write_checkpoints({OTHER: 5})
        log_dir.close(9)
        assert not (Path(path) / ".kafka_cleanshutdown").exists()
    asyncio.run(log_dir.delete(TP))
    fill(log_dir.create(TP, TOPIC_ID), 1)


def test_damage_after_a_clean_stop_takes_one_partition_offline(disk: FailingDisk, tmp_path: Path) -> None:
    """A clean stop is believed and nothing is walked but what rebuilds the producers' state: damage met there is that
    partition's, and the node starts (simulator: a sync that lied, then a reboot).
    """
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    for tp in (TP, OTHER):
        fill(log_dir.create(tp, TOPIC_ID), 5)
    log_dir.close(9)
    directory = Path(path) / "orders-0"
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()
    segment = directory / f"{0:020d}.log"
    raw = bytearray(segment.read_bytes())
    raw[16] = 0  # the magic of the first batch
    segment.write_bytes(raw)
    log_dir = opened(disk, path)
    assert list(log_dir.logs) == [OTHER]
    error = log_dir.offline[TP]
    assert isinstance(error, CorruptLogError)
    assert (error.path, error.position) == (str(segment), 0)


def test_what_a_checkpoint_promises_is_demanded(disk: FailingDisk, tmp_path: Path) -> None:
    """Damage below the recovery point is refused even after a power cut, which may lose what was never synced."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 5)
    log.sync_now()
    log_dir.write_checkpoints({})
    fill(log, 5)
    killed(log_dir)
    segment = Path(path) / "orders-0" / f"{0:020d}.log"
    raw = segment.read_bytes()
    size = len(raw) // 10
    disk.boot = "boot-2"
    segment.write_bytes(raw[: 4 * size] + bytes(size) + raw[5 * size :])
    assert TP in opened(disk, path).offline
    disk.boot = "boot-3"
    segment.write_bytes(raw[: 7 * size] + bytes(size) + raw[8 * size :])
    log_dir = opened(disk, path)
    assert log_dir.logs[TP].log_end_offset == 7
    assert (Path(path) / ".boot-id").read_text() == "recovered.boot.id=boot-3\nused.boot.id=boot-3\n"


def test_truncation_lowers_the_checkpoint_first(disk: FailingDisk, tmp_path: Path) -> None:
    """A follower that cut its log below the checkpoint and died is not taken for one that lost data."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 10)
    log.sync_now()
    log_dir.write_checkpoints({TP: 4})
    assert (Path(path) / RECOVERY_POINTS).read_bytes() == encode_offsets({TP: 10})
    log.truncate_to(4)
    assert (Path(path) / RECOVERY_POINTS).read_bytes() == encode_offsets({TP: 4})
    killed(log_dir)
    assert opened(disk, path).logs[TP].log_end_offset == 4


def test_recovery_point_waits_for_names_and_epochs(disk: FailingDisk, tmp_path: Path) -> None:
    """What lies below the recovery point is not scanned, so the epoch checkpoint must be durable up to there."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 3)
    files, directories = log.begin_sync()
    disk.sync_now(files)
    assert directories == [log.directory, path]
    log.end_sync()
    assert log.durable_offset == 3
    assert log.recovery_point is None, "the epoch checkpoint has its content, not yet its name"
    log_dir.write_checkpoints({})
    assert encode_offsets({}) == (Path(path) / RECOVERY_POINTS).read_bytes()
    log.sync_now()
    assert log.recovery_point == 3


def test_a_partition_made_anew(disk: FailingDisk, tmp_path: Path) -> None:
    """A deleted and recreated topic inherits no checkpoint of its name, and a killed deletion is finished at start."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 20, size=200)
    log.sync_now()
    log.delete_records_before(12)
    log_dir._write_checkpoints()
    log_dir.high_watermarks[TP] = 20
    asyncio.run(log_dir.delete(TP))
    assert not [entry for entry in Path(path).iterdir() if entry.is_dir()]
    assert TP not in log_dir.high_watermarks
    fresh = log_dir.create(TP, UUID(int=5))
    assert (fresh.log_start_offset, fresh.log_end_offset) == (0, 0)
    fill(fresh, 2)
    killed(log_dir)
    stale = Path(path) / f"old-0.{TOPIC_ID.hex}-delete"
    stale.mkdir()
    (stale / f"{0:020d}.log").write_bytes(b"junk")
    log_dir = opened(disk, path)
    assert not stale.exists()
    assert (log_dir.logs[TP].log_start_offset, log_dir.logs[TP].log_end_offset) == (0, 2)
    assert log_dir.logs[TP].topic_id == UUID(int=5)
    with pytest.raises(ValueError, match="already"):
        log_dir.create(TP, UUID(int=5))
    asyncio.run(log_dir.delete(OTHER))


def test_the_metadata_log_is_no_topics(disk: FailingDisk, tmp_path: Path) -> None:
    """A topic named as the controllers' log would be created over it."""
    path = formatted(disk, tmp_path)
    metadata = Path(path) / "__cluster_metadata-0"
    metadata.mkdir()
    log_dir = opened(disk, path)
    assert not log_dir.logs
    with pytest.raises(KafkaError, match="the controllers' own log") as caught:
        log_dir.create(TopicPartition("__cluster_metadata", 0), TOPIC_ID)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    asyncio.run(log_dir.delete(TopicPartition("__cluster_metadata", 0)))
    assert metadata.exists()
    assert not list(metadata.iterdir())


def test_retention_deletes_after_the_checkpoint(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 16's other half: segments go from the disk only once the new log start is durable."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 40, size=200)
    log.sync_now()
    log.delete_records_before(30)
    log.sync_now()
    directory = Path(path) / "orders-0"
    before = len(list(directory.glob("*.log")))

    async def checkpoint() -> None:
        log_dir.sweep()
        assert not log_dir._deletions
        log_dir.write_checkpoints({TP: 40})
        log_dir.sweep()
        assert (Path(path) / "log-start-offset-checkpoint").read_bytes() == encode_offsets({TP: 30})
        while log_dir._deletions:
            await asyncio.sleep(0)

    asyncio.run(checkpoint())
    assert len(list(directory.glob("*.log"))) == len(log.segments) < before
    log_dir.close(1)
    again = opened(disk, path).logs[TP]
    assert (again.log_start_offset, again.log_end_offset) == (30, 40)


def test_retention_deletes_what_lies_below_the_durable_start(disk: FailingDisk, tmp_path: Path) -> None:
    """No more than that, also where the log was cut as a whole during the delay, and filled and deleted from anew."""
    log_dir = opened(disk, formatted(disk, tmp_path))
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 60, size=200)
    log.sync_now()
    bases = [segment.base_offset for segment in log.segments]
    log.delete_records_before(50)
    log.sync_now()

    async def swept(then: Callable[[], None] = lambda: None) -> list[int]:
        log_dir.sweep()
        then()
        while log_dir._deletions:
            await asyncio.sleep(0)
        return [segment.base_offset for segment in log.removed]

    def anew() -> None:
        log.truncate_fully_and_start_at(100)
        fill(log, 60, size=200)
        log.sync_now()
        log.delete_records_before(150)
        log.sync_now()

    async def scenario() -> None:
        removed = [segment.base_offset for segment in log.removed]
        assert len(removed) > 3
        assert await swept() == removed
        log.durable_log_start_offset = Offset(bases[2] - 1)
        assert await swept() == removed[1:]
        log.durable_log_start_offset = Offset(bases[3])
        left = await swept(anew)
        assert left[0] == 100, "their log start is not durable"

    asyncio.run(scenario())


def test_partition_metadata_lost(disk: FailingDisk, tmp_path: Path) -> None:
    """The file is synced with the first records: lost without them in a power cut it proves a stillborn log, which
    goes; lost beside records that may have been acknowledged it is damage.
    """
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    fill(log_dir.create(TP, TOPIC_ID), 3)
    log_dir.create(OTHER, TOPIC_ID)
    killed(log_dir)
    for name in ("orders-0", str(OTHER)):
        (Path(path) / name / "partition.metadata").write_bytes(b"")
    log_dir = opened(disk, path)
    assert list(log_dir.offline) == [TP]
    assert not (Path(path) / str(OTHER)).exists()
    disk.boot = "boot-2"
    assert opened(disk, path).offline == {}
    assert not (Path(path) / "orders-0").exists()


def test_no_marker_when_the_stop_fails(disk: FailingDisk, tmp_path: Path) -> None:
    """A stop that could not write everything is no clean stop."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    log.append_as_leader(client_batch(3, producer_id=1, producer_epoch=0, sequence=0), 0, 0)
    log.sync_now()
    disk.bytes_left = 8
    with pytest.raises(OSError, match="No space"):
        log_dir.close(5)
    disk.bytes_left = None
    assert not (Path(path) / ".kafka_cleanshutdown").exists()
    log_dir = opened(disk, path)
    fill(log_dir.logs[TP], 1)
    disk.sync_error = DiskError(5, "Input/output error", "x")
    with pytest.raises(DiskError):
        log_dir.close(5)
    disk.sync_error = None
    assert not (Path(path) / ".kafka_cleanshutdown").exists()


def test_hundreds_of_logs_open_in_one_sync(disk: FailingDisk, tmp_path: Path) -> None:
    """Design 8: descriptors are few, syncs are grouped, start is quick."""
    path = formatted(disk, tmp_path)
    log_dir = opened(disk, path)
    tps = [TopicPartition("t", i) for i in range(150)]
    for tp in tps:
        fill(log_dir.create(tp, TOPIC_ID), 2)
    killed(log_dir)
    disk._open_files_max = 50
    log_dir = opened(disk, path)
    assert [log_dir.logs[tp].durable_offset for tp in tps] == [2] * 150
    assert len(disk._open) <= 51
    for tp in tps:
        fill(log_dir.logs[tp], 1)
        assert len(all_records(log_dir.logs[tp])) == 3
    log_dir.close(1)


def test_many_deletions_share_turns_and_syncs(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule B26. A deleted topic may have thousands of partitions: each is taken out in a turn of its own, and one sync
    is under way at a time, for all that were taken out since the one before began."""
    log_dir = opened(disk, formatted(disk, tmp_path))
    tps = [TopicPartition("many", number) for number in range(50)]
    for tp in tps:
        log_dir.create(tp, TOPIC_ID).sync_now()
    taken_out: list[int] = []
    syncs: list[tuple[str, ...]] = []
    take_out, sync = log_dir.take_out, disk.sync

    async def delete_all() -> None:
        turn = 0

        def noted(tp: TopicPartition, name: str) -> None:
            taken_out.append(turn)
            take_out(tp, name)

        async def noted_sync(files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
            syncs.append(tuple(directories))
            await sync(files, directories, wait_ms)
            await asyncio.sleep(0.005)

        log_dir.take_out = noted  # type: ignore[method-assign]
        disk.sync = noted_sync  # type: ignore[method-assign]
        deleting = asyncio.gather(*(log_dir.delete(tp) for tp in tps))
        while not deleting.done():
            turn += 1
            await asyncio.sleep(0)
        await deleting

    asyncio.run(delete_all())
    assert len(set(taken_out)) == len(taken_out) == 50
    assert set(syncs) == {(log_dir.path,)}
    assert len(syncs) <= 5
    assert not [entry for entry in Path(log_dir.path).iterdir() if entry.is_dir()]
