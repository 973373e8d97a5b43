"""A node's log directory: whose it is, which logs are in it, how it was left, and its checkpoints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from uuid import UUID

from strandline.log.checkpoints import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    MetaProperties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_offsets,
    encode_partition_metadata,
    read_clean_shutdown,
)
from strandline.log.config import LogConfig
from strandline.log.disk import Disk, DiskError, DiskFull, File, read_file, write_file_durably
from strandline.log.partition_log import PartitionLog
from strandline.log.reader import IndexCache
from strandline.log.recovery import LastLife, open_log
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError, StorageError, StrandlineError
from strandline.proto.ids import NodeId, Offset, TopicId, TopicPartition
from strandline.proto.ports import Clock

BOOT_ID = ".boot-id"
"""Which boot of the machine last used the directory: see `Disk.boot_id`."""

METADATA_DIRECTORY = "__cluster_metadata-0"
"""The quorum's own log lies in the same place and is not the broker's."""

_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
_DELETED = "-delete"


def format_log_dir(disk: Disk, path: str, cluster_id: str, node_id: NodeId, directory_id: UUID) -> MetaProperties:
    """Make `path` the directory of this node: written once in its life.

    Raises:
        ConfigError: it is formatted already, or holds files that are not ours to take over.
        DiskError: the disk failed.
    """
    disk.mkdir(path)
    meta_path = f"{path}/{META_PROPERTIES}"
    if disk.exists(meta_path):
        there = MetaProperties.decode(meta_path, read_file(disk, meta_path))
        raise ConfigError("log.dir", path, f"it is formatted already, for node {there.node_id} of {there.cluster_id}")
    properties = MetaProperties(cluster_id, node_id, directory_id)
    write_file_durably(disk, meta_path, properties.encode())
    disk.sync_dir(path.rpartition("/")[0] or "/")
    return properties


def read_meta_properties(disk: Disk, path: str) -> MetaProperties:
    """Whose directory this is. Raises ConfigError where it is not formatted, CorruptLogError for a damaged file."""
    meta_path = f"{path}/{META_PROPERTIES}"
    try:
        return MetaProperties.decode(meta_path, read_file(disk, meta_path))
    except FileNotFoundError:
        raise ConfigError(
            "log.dir",
            path,
            "a formatted directory is needed (`strandline format`); a node that formats itself could vote twice",
        ) from None


class LogDir:
    """All partitions' logs of a node.

    Invariants:
    - the clean-shutdown marker is deleted before any log is loaded (KAFKA-10471), written last, and never if loading
      did not finish or a log is offline (KAFKA-15375);
    - a checkpointed recovery point is never above what is durable: truncations lower it first.
    """

    def __init__(self, disk: Disk, path: str, clock: Clock, config: LogConfig, meta: MetaProperties) -> None:
        """Use `LogDir.open`."""
        self.disk = disk
        self.path = path
        self.meta = meta
        self.default_config = config
        self.clean_shutdown_broker_epoch: int | None = None
        """Broker epoch of the last life if that ended cleanly (-1: it was no broker), else None."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, StrandlineError] = {}
        """Partitions whose logs were refused or failed, and why."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        """As checkpointed."""
        self._clock = clock
        self._cache = IndexCache()
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._written: dict[str, bytes] = {}
        self.writes = 0
        """How often checkpoints were written, blocking."""
        self._deletions: dict[asyncio.Task[None], None] = {}

    @property
    def directory_id(self) -> UUID:
        """Names this directory for ever; a wiped and formatted one is another (D-26)."""
        return self.meta.directory_id

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        clock: Clock,
        config: LogConfig | None = None,
        *,
        cluster_id: str | None = None,
        node_id: NodeId | None = None,
    ) -> LogDir:
        """Check whose directory it is, then load every log in it, recovering them unless the last stop was clean.

        Blocking: at start, before anything is served. Logs that cannot be used are in `offline`.

        Raises:
            ConfigError: not formatted, or formatted for another cluster or node.
            CorruptLogError: meta.properties or a checkpoint is damaged.
            DiskError: the disk failed.
        """
        meta = read_meta_properties(disk, path)
        if cluster_id is not None and cluster_id != meta.cluster_id:
            raise ConfigError("log.dir", path, f"it belongs to cluster {meta.cluster_id}, this node to {cluster_id}")
        if node_id is not None and node_id != meta.node_id:
            raise ConfigError("log.dir", path, f"it belongs to node {meta.node_id}, this is node {node_id}")
        log_dir = cls(disk, path, clock, config or LogConfig(), meta)
        log_dir._load()
        return log_dir

    # ------------------------------------------------------------------ loading

    def _load(self) -> None:
        disk = self.disk
        disk.sync_dir(self.path)
        disk.sync_dir(self.path.rpartition("/")[0] or "/")  # a format that was killed may not have come to it
        marker = f"{self.path}/{CLEAN_SHUTDOWN}"
        self.clean_shutdown_broker_epoch = read_clean_shutdown(disk, marker)
        if disk.exists(marker):
            disk.unlink(marker)
            disk.sync_dir(self.path)
        self.high_watermarks = self._read_offsets(HIGH_WATERMARKS)
        self._recovery_points = self._read_offsets(RECOVERY_POINTS)
        self._log_starts = self._read_offsets(LOG_STARTS)
        boot_id = disk.boot_id()
        same_boot = boot_id != "" and boot_id == self._last_boot_id()
        for name in disk.listdir(self.path):
            if name.endswith(_DELETED):
                self._delete_directory(name)
            elif name != METADATA_DIRECTORY and (match := _PARTITION_NAME.fullmatch(name)):
                self._load_log(TopicPartition(match[1], int(match[2])), name, same_boot)
        self._sync_all(list(self.logs.values()))
        if boot_id and not same_boot:  # only now: a power cut before this point is another one for the next start
            write_file_durably(disk, f"{self.path}/{BOOT_ID}", boot_id.encode())

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        if not self.disk.exists(path):
            return {}
        return decode_offsets(path, read_file(self.disk, path))

    def _last_boot_id(self) -> str:
        path = f"{self.path}/{BOOT_ID}"
        return read_file(self.disk, path).decode() if self.disk.exists(path) else ""

    def _load_log(self, tp: TopicPartition, name: str, same_boot: bool) -> None:
        directory = f"{self.path}/{name}"
        last_life = LastLife(
            clean=self.clean_shutdown_broker_epoch is not None,
            same_boot=same_boot,
            recovery_point=self._recovery_points.get(tp, 0),
            log_start_offset=self._log_starts.get(tp, 0),
        )
        try:
            topic_id = self._topic_id(tp, directory, same_boot)
            if topic_id is None:
                self._delete_directory(name)
                return
            log = open_log(
                self.disk,
                directory,
                tp,
                clock=self._clock,
                topic_id=topic_id,
                config=self.default_config,
                last_life=last_life,
                cache=self._cache,
                sync=False,
            )
        except CorruptLogError as error:
            self.offline[tp] = error
            return
        log.on_cut_below = self._lower
        if not last_life.clean:  # a life that was killed may have made the log and not come to syncing it
            metadata = self.disk.open(f"{directory}/{PARTITION_METADATA}")
            log.must_sync([], [metadata], [directory, self.path])
        self.logs[tp] = log

    def _topic_id(self, tp: TopicPartition, directory: str, same_boot: bool) -> TopicId | None:
        """Which topic the directory belongs to; None for one that never held anything that was acknowledged.

        The file is synced with the first records. So a life that ended in between may leave it missing or torn, beside
        records that nobody was told of; anything else is damage. Raises CorruptLogError.
        """
        path = f"{directory}/{PARTITION_METADATA}"
        try:
            data = read_file(self.disk, path) if self.disk.exists(path) else b""
            return decode_partition_metadata(path, data)
        except CorruptLogError:
            power_was_cut = not same_boot and self.clean_shutdown_broker_epoch is None
            if tp not in self._recovery_points and (power_was_cut or not self._holds_data(directory)):
                return None
            raise

    def _holds_data(self, directory: str) -> bool:
        for name in self.disk.listdir(directory):
            if name.endswith(".log"):
                file = self.disk.open(f"{directory}/{name}")
                size = file.size()
                file.close()
                if size:
                    return True
        return False

    def _sync_all(self, logs: list[PartitionLog]) -> None:
        """One group sync, blocking. Raises StorageError."""
        dirty = [log for log in logs if log.needs_sync]
        while dirty:
            files: list[File] = []
            directories: dict[str, None] = {}
            for log in dirty:
                log_files, log_directories = log.begin_sync()
                files += log_files
                directories.update(dict.fromkeys(log_directories))
            self.disk.sync_now(files)
            for directory in directories:
                self.disk.sync_dir(directory)
            for log in dirty:
                log.end_sync()
            dirty = [log for log in dirty if log.needs_sync]

    # ------------------------------------------------------------------ making and deleting logs

    def create(self, tp: TopicPartition, topic_id: TopicId, config: LogConfig | None = None) -> PartitionLog:
        """An empty log for a partition that this node did not hold; durable with its first sync.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR when the partition is offline here or the disk is full.
            StorageError: the disk failed.
        """
        if tp in self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline here: {self.offline[tp]}")
        if str(tp) == METADATA_DIRECTORY:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is the controllers' own log, no topic's")
        if tp in self.logs:
            raise ValueError(f"there is a log of {tp} already")
        directory = f"{self.path}/{tp}"
        try:
            self._forget_checkpoints(tp)
            self.disk.mkdir(directory)
            metadata = self.disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
            metadata.truncate(0)
            metadata.pwrite(encode_partition_metadata(topic_id), 0)
            log = open_log(
                self.disk,
                directory,
                tp,
                clock=self._clock,
                topic_id=topic_id,
                config=config or self.default_config,
                cache=self._cache,
                sync=False,
            )
        except DiskFull as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no space left for {tp} in {self.path}") from error
        except DiskError as error:
            raise StorageError(f"{tp} cannot be created: {error}") from error
        log.must_sync([], [metadata], [directory, self.path])
        log.on_cut_below = self._lower
        self.logs[tp] = log
        return log

    async def delete(self, tp: TopicPartition) -> None:
        """Take the log out at once (its name durably, so that it does not come back) and its bytes off the disk slowly.

        Raises DiskError.
        """
        if tp not in self.logs and tp not in self.offline:
            return
        log = self.logs.get(tp)
        unique = log.topic_id.hex if log is not None else f"{self._clock.wall_ms():032x}"
        name = f"{str(tp)[:200]}.{unique}{_DELETED}"
        self.take_out(tp, name)
        self.disk.sync_dir(self.path)
        for entry in self.disk.listdir(f"{self.path}/{name}"):
            await self.disk.unlink_slowly(f"{self.path}/{name}/{entry}")
        self.disk.rmdir(f"{self.path}/{name}")

    def take_out(self, tp: TopicPartition, name: str) -> None:
        """Close a log and rename its directory to `name`, not durably yet; nothing is remembered of it.

        Raises DiskError.
        """
        self.disk.rename(f"{self.path}/{tp}", f"{self.path}/{name}")  # if it fails the log is still what it was
        log = self.logs.pop(tp, None)
        if log is not None:
            log.close_files()
        self.offline.pop(tp, None)
        self.high_watermarks.pop(tp, None)

    def _delete_directory(self, name: str) -> None:
        for entry in self.disk.listdir(f"{self.path}/{name}"):
            self.disk.unlink(f"{self.path}/{name}/{entry}")
        self.disk.rmdir(f"{self.path}/{name}")

    def _forget_checkpoints(self, tp: TopicPartition) -> None:
        """A partition made anew must not inherit what was checkpointed of one that had its name."""
        self.high_watermarks.pop(tp, None)
        known = self._recovery_points.pop(tp, 0) + self._log_starts.pop(tp, 0)
        if known:
            self._write_files({RECOVERY_POINTS: self._recovery_points, LOG_STARTS: self._log_starts})

    # ------------------------------------------------------------------ checkpoints

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write what a restart needs: high watermarks, recovery points, log starts; blocking for two syncs at most, and
        for nothing where nothing has changed. Every few seconds; then deletes what retention left and forgets silent
        producers.

        Raises DiskError.
        """
        self.high_watermarks = {tp: offset for tp, offset in high_watermarks.items() if tp in self.logs}
        self._write_checkpoints()
        self._sweep()

    def gather_log_starts(self) -> tuple[bytes, dict[PartitionLog, Offset]]:
        """The checkpoint of the present log starts, and which log is in it with what; for `LogStarts`."""
        starts = {log: log.log_start_offset for log in self.logs.values()}
        self._log_starts.update((log.topic_partition, start) for log, start in starts.items())
        kept = self.logs.keys() | self.offline.keys()
        self._log_starts = {tp: at for tp, at in self._log_starts.items() if tp in kept and at}
        return encode_offsets(self._log_starts), starts

    def forget_written(self, name: str) -> None:
        """Somebody else replaces that checkpoint: the next `write_checkpoints` writes it, whatever is in it."""
        self._written.pop(name, None)

    def _write_checkpoints(self) -> None:
        for tp, log in self.logs.items():
            point = log.recovery_point
            if point is not None:
                self._recovery_points[tp] = point
        _, starts = self.gather_log_starts()
        kept = self.logs.keys() | self.offline.keys()
        self._recovery_points = {tp: at for tp, at in self._recovery_points.items() if tp in kept and at}
        self._write_files(
            {
                HIGH_WATERMARKS: self.high_watermarks,
                RECOVERY_POINTS: self._recovery_points,
                LOG_STARTS: self._log_starts,
            }
        )
        settle(starts)

    def _sweep(self) -> None:
        now_ms = self._clock.wall_ms()
        for log in self.logs.values():
            log.expire_producers(now_ms)
            if log.removed:
                task = asyncio.get_running_loop().create_task(self._delete_removed(log))
                self._deletions[task] = None
                task.add_done_callback(self._deletions.pop)

    async def _delete_removed(self, log: PartitionLog) -> None:
        await asyncio.sleep(log.config.file_delete_delay_ms / 1000)
        await log.delete_removed()

    def _lower(self, log: PartitionLog, offset: int) -> None:
        """A log is about to be cut: a recovery point above the cut would make its next recovery refuse it, a log start
        above it would hide what is written next.
        """
        tp = log.topic_partition
        checkpoints = {RECOVERY_POINTS: self._recovery_points, LOG_STARTS: self._log_starts}
        promising = {name: values for name, values in checkpoints.items() if values.get(tp, 0) > offset}
        for values in promising.values():
            values[tp] = offset
        if promising:
            self._write_files(promising)

    def _write_files(self, checkpoints: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Replace those that changed, as `write_file_durably` does but with the syncs of all at once."""
        changed = {
            name: data
            for name, values in checkpoints.items()
            if self._written.get(name) != (data := encode_offsets(values))
        }
        if not changed:
            return
        self.writes += 1
        files: list[File] = []
        try:
            for name, data in changed.items():
                file = self.disk.open(f"{self.path}/{name}.tmp", create=True)
                files.append(file)
                file.truncate(0)
                file.pwrite(data, 0)
            self.disk.sync_now(files)
        finally:
            for file in files:
                file.close()
        for name in changed:
            self.disk.rename(f"{self.path}/{name}.tmp", f"{self.path}/{name}")
        self.disk.sync_dir(self.path)
        self._written.update(changed)

    # ------------------------------------------------------------------ the end

    def close(self, broker_epoch: int | None) -> None:
        """Stop cleanly, blocking: seal and sync every log, write the checkpoints, and last of all the marker with the
        broker epoch. Nobody may write any more and no sync may be in flight.

        The marker is left out, and the next start recovers, if any log is offline or fails now.
        """
        failed = bool(self.offline)
        logs = list(self.logs.values())
        try:
            for log in logs:
                try:
                    log.seal()
                except (KafkaError, StorageError) as error:
                    self.offline[log.topic_partition] = error
                    failed = True
            self._sync_all([log for log in logs if log.failure is None])
            self._write_checkpoints()
            if not failed:
                epoch = -1 if broker_epoch is None else broker_epoch
                write_file_durably(self.disk, f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(epoch))
        finally:
            for log in logs:
                log.close_files()


def settle(starts: Mapping[PartitionLog, Offset]) -> None:
    """These log starts are durable, but for those of logs that were cut meanwhile."""
    for log, start in starts.items():
        log.durable_log_start_offset = max(log.durable_log_start_offset, min(start, log.log_start_offset))
