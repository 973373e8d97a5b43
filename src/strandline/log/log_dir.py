"""A node's log directory: its identity, its logs, the state that the last process left it in, and its checkpoints."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import NamedTuple
from uuid import UUID

import structlog

from strandline.log.checkpoints import (
    CLEAN_SHUTDOWN,
    LOG_STARTS,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    MetaProperties,
    encode_clean_shutdown,
    encode_partition_metadata,
)
from strandline.log.config import LogConfig
from strandline.log.disk import (
    METADATA_DIRECTORY,
    Disk,
    DiskError,
    DiskFull,
    File,
    delete_directory,
    read_file,
    write_file_durably,
    write_synced,
)
from strandline.log.findings import Findings, LogCondition
from strandline.log.incarnations import Boots, Incarnations, take_clean_mark
from strandline.log.loading import (
    DELETED,
    ROTTEN,
    STRAY,
    Loading,
    aside_name,
    aside_stem,
    sync_logs,
)
from strandline.log.log_state import IndexCache
from strandline.log.offset_checkpoints import OffsetCheckpoints
from strandline.log.partition_log import PartitionLog
from strandline.log.recovery import open_log
from strandline.log.rewriting import Rewriting, refusal, restore_names
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError, NoSpaceLeft, StorageError, StrandlineError
from strandline.proto.ids import NodeId, Offset, TopicId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report, Together, spawn

logger = structlog.get_logger("strandline.log")


def format_log_dir(disk: Disk, path: str, cluster_id: str, node_id: NodeId, directory_id: UUID) -> MetaProperties:
    """Make `path` a log directory of this node, once in its life.

    Raises:
        ConfigError: it is formatted already, or holds files of another owner.
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


def _raise(error: BaseException) -> None:
    raise error


def read_meta_properties(disk: Disk, path: str) -> MetaProperties:
    """Read a directory's identity. Raises ConfigError if it is not formatted, CorruptLogError for a damaged file."""
    meta_path = f"{path}/{META_PROPERTIES}"
    try:
        return MetaProperties.decode(meta_path, read_file(disk, meta_path))
    except FileNotFoundError:
        raise ConfigError(
            "log.dir",
            path,
            "a formatted directory is needed (`strandline format`); a node that formats itself could vote twice",
        ) from None


RETRY_S = 1.0
"""Pause after a failed write of raised log starts (most likely because the disk is full). A request that waits for the
write waits until its own timeout."""

TEMPORARY = ".next.tmp"
"""Suffix of files that are not checkpoints yet. Blocking writes use another one, as both may be under way."""


class LogDir:
    """All partitions' logs of a node in one directory (`LogDirs` has all directories).

    Invariants:
    - the clean-shutdown marker is deleted before any log is loaded (KAFKA-10471), written last, and never if loading
      did not finish or a log is offline (KAFKA-15375);
    - a checkpointed recovery point is never above what is durable: truncations lower it first.
    """

    def __init__(self, disk: Disk, path: str, clock: Clock, config: LogConfig, meta: MetaProperties) -> None:
        """Use `LogDir.open` instead."""
        self.disk = disk
        self.path = path
        self.meta = meta
        self.default_config = config
        self.clean_shutdown_broker_epoch: int | None = None
        """Broker epoch of the last life if it ended cleanly (-1: it was no broker), else None."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, StrandlineError] = {}
        """Partitions whose logs were refused or failed, with the error."""
        self.findings: Findings
        """Findings of this start, until the controller has them."""
        self.found: Counter[LogCondition] = Counter()
        """Number of logs that this start found, by condition."""
        self.incarnations: Incarnations
        self._clock = clock
        self.cache = IndexCache()
        self._checkpoints: OffsetCheckpoints
        self._deletions: dict[asyncio.Task[None], PartitionLog] = {}
        self._taking_out, self._unlinking = asyncio.Lock(), asyncio.Lock()
        self._settled = Together(self._settle)
        self.on_fatal: Report = _raise
        """Called with an unexpected error, after which nothing in the directory can be relied on."""
        self.fresh_boot = False
        """True if no earlier process of this boot has used the directory, so that all that was read is on the disk."""
        self.full = False
        """True if its disk has no free space, as set by the disk's watcher: no replica is placed here."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when there was no room for a new log."""
        self.failed = ""
        """Reason the directory cannot be used until the next start, or ""."""
        self.rewriting: Rewriting | None = None
        """Files that this start wrote again; None if all that it read was on the disk."""

    @property
    def directory_id(self) -> UUID:
        """Id of this directory for good; once wiped and formatted it has another id (schedule 26)."""
        return self.meta.directory_id

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """High watermarks of the checkpoint; never above what is durable here."""
        return self._checkpoints.high_watermarks

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
        """Check whose directory it is, then load every log in it, with recovery unless the last stop was clean.

        Blocking: at start, before anything is served. Logs that cannot be used are in `offline`.

        Raises:
            ConfigError: not formatted, or formatted for another cluster or node.
            CorruptLogError: meta.properties is damaged.
            DiskError: the disk failed.
        """
        if disk.exists(path):
            restore_names(disk, path)
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
        boots = Boots(disk, self.path)
        self.fresh_boot = boots.fresh
        boots.note_used()
        self.incarnations = Incarnations(disk, self.path)
        self.clean_shutdown_broker_epoch = take_clean_mark(disk, self.path, self.incarnations)
        self._checkpoints = OffsetCheckpoints(disk, self.path)
        clean = self.clean_shutdown_broker_epoch is not None  # rule E5/every-stop-was-clean
        if not clean and not self.fresh_boot:
            self.rewriting = Rewriting(disk)
        loading = Loading(
            disk,
            self.path,
            self._clock,
            self.default_config,
            checkpoints=self._checkpoints,
            cache=self.cache,
            rewriting=self.rewriting,
        )
        try:
            self.findings = loading.run(clean=clean, same_boot=boots.recovered)
        except DiskError as error:
            raise error if self.rewriting is None else refusal(error, self.path) from error
        boots.note_recovered()
        self.found.update(finding.condition for finding in self.findings.all.values())
        self.logs, self.offline = loading.logs, loading.offline
        self.write_forgotten()
        for plog in self.logs.values():
            self._watch_cuts(plog)

    # ------------------------------------------------------------------ reports to the controller

    def begin_life(self, incarnation_id: UUID) -> tuple[UUID, ...]:
        """Begin a life that is about to register; return the ids to register with (`Incarnations.ids`). Raises
        DiskError."""
        self.incarnations.begin(incarnation_id)
        return self.incarnations.ids

    def distrust(self) -> None:
        """Mark all logs as lacking records: the directory is an older copy, or another node's. Raises DiskError."""
        for tp in self.findings.all:
            self.findings.distrust(tp)
        self.findings.keep()

    def registered(self, incarnation_id: UUID) -> None:
        """Take note that the registration that reported the findings is committed. Raises DiskError."""
        self.findings.committed()
        self.incarnations.registered(incarnation_id)

    # ------------------------------------------------------------------ making and deleting logs

    def create(self, tp: TopicPartition, topic_id: TopicId, config: LogConfig | None = None) -> PartitionLog:
        """Create an empty log for a partition that this node did not hold; durable with its first sync.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the partition is offline here; NoSpaceLeft.
            StorageError: the disk failed.
        """
        if tp in self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline here: {self.offline[tp]}")
        if str(tp) == METADATA_DIRECTORY:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is the controllers' own log, no topic's")
        if tp in self.logs:
            raise ValueError(f"there is a log of {tp} already")
        directory = f"{self.path}/{tp}"
        metadata: File | None = None
        try:
            if self._checkpoints.forget(tp):  # rule E5/inherits-checkpoints
                self._checkpoints.write_forgotten()
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
                cache=self.cache,
                sync=False,
            )
        except DiskFull as error:
            if metadata is not None:
                metadata.close()
            raise NoSpaceLeft(f"for {tp} in {self.path}") from error
        except DiskError as error:
            raise StorageError(f"{tp} cannot be created: {error}") from error
        log.must_sync([], [metadata], [directory, self.path])  # rule A1/new-partitions-names-not-synced
        self._watch_cuts(log)
        self.logs[tp] = log
        return log

    def adopt(self, log: PartitionLog) -> None:
        """Add a log that is whole and durable here. Its start is made durable before it can be relied on.

        Raises DiskError.
        """
        if self._checkpoints.forget(log.topic_partition):
            self._checkpoints.write_forgotten()
        self._checkpoints.raise_start(log)  # rule B12/a-moved-log-forgets-its-start
        log.durable_log_start_offset = log.log_start_offset
        self._watch_cuts(log)
        self.logs[log.topic_partition] = log

    def _watch_cuts(self, log: PartitionLog) -> None:
        log.on_cut_below = partial(self._checkpoints.lower, log)
        log.on_begun_anew = partial(self._begun_anew, log)

    def _begun_anew(self, log: PartitionLog) -> None:
        try:
            self._checkpoints.raise_start(log)  # schedule 48/new-log-start-is-not-written
        except DiskFull:
            logger.warning("no room to write down a log start; the next checkpoint has it", log=str(log))

    async def delete(self, tp: TopicPartition) -> None:
        """Take a log out, durably, so that it does not come back, then delete its files. Raises DiskError."""
        async with self._taking_out:
            if tp not in self.logs and tp not in self.offline:
                return
            log = self.logs.get(tp)
            unique = log.topic_id.hex if log is not None else f"{self._clock.wall_ms():032x}"
            name = aside_name(tp, unique, DELETED)
            self.take_out(tp, name)
            # rule B26/all-logs-are-taken-out-in-one-turn
            await asyncio.sleep(0)  # a topic may have thousands: each in a turn of the loop of its own
        await self.delete_aside(name)

    async def delete_aside(self, name: str) -> None:
        """Delete the directory of a log that was taken out. Raises DiskError."""
        await self._settled()
        async with self._unlinking:
            await delete_directory(self.disk, f"{self.path}/{name}")

    async def _settle(self) -> None:
        """Make it durable that logs were taken out, so that they neither come back nor are missed. Raises DiskError."""
        await self.disk.sync((), (self.path,))  # rule B26/each-deletion-is-synced-in-the-loop
        self.write_forgotten()  # schedule 48/deleted-partition-is-missed

    def take_out(self, tp: TopicPartition, name: str) -> None:
        """Close a log and rename its directory to `name`, not durably yet. Its checkpoints are forgotten, which
        `write_forgotten` makes durable.

        Raises DiskError.
        """
        self.disk.rename(f"{self.path}/{tp}", f"{self.path}/{name}")  # if it fails the log is still what it was
        log = self.logs.pop(tp, None)
        if log is not None:
            log.close_files()
            # schedule 85/segments-outlive-their-topic
            log.removed.clear()  # they go with the directory; by then their names may be those of another topic's
        self.offline.pop(tp, None)
        self._checkpoints.forget(tp)

    def set_rotten_aside(self, tp: TopicPartition) -> str:
        """Rename the directory of a damaged log, so that it can be made anew; return the new name. It may be the last
        copy of some records, so it stays until `remove_asides`. Raises DiskError."""
        name = aside_name(tp, f"{self._clock.wall_ms():032x}", ROTTEN)
        self.take_out(tp, name)
        self.disk.sync_dir(self.path)
        self.write_forgotten()
        return name

    def asides(self) -> list[str]:
        """Return the stems (`aside_stem`) of partitions that have directories of damaged logs set aside."""
        return [name.rpartition(".")[0] for name in self.disk.listdir(self.path) if name.endswith(ROTTEN)]

    async def remove_asides(self, tp: TopicPartition) -> None:
        """Delete a partition's directories that were set aside, as its replica is whole again. Raises DiskError."""
        for name in self.disk.listdir(self.path):
            if name.endswith(ROTTEN) and name.rpartition(".")[0] == aside_stem(tp):
                await delete_directory(self.disk, f"{self.path}/{name}")
                logger.info("a damaged log that was set aside is removed: its replica is in sync", directory=name)

    def write_forgotten(self) -> None:
        """Make it durable that logs were taken out, so that a start does not miss them. Raises DiskError."""
        try:
            self._checkpoints.write_forgotten()
        except DiskFull:
            pass  # a full disk must not stop deletions, which make room; the next checkpoints are soon enough

    def set_stray_aside(self, tp: TopicPartition) -> str:
        """Rename the directory of a log that no longer counts, as `Strays` does; return its new name. Raises
        DiskError."""
        name = aside_name(tp, f"{self._clock.wall_ms():032x}", STRAY)
        self.take_out(tp, name)
        self.findings.drop(tp)
        self.disk.sync_dir(self.path)
        self.write_forgotten()
        return name

    # ------------------------------------------------------------------ checkpoints

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the checkpoints that a restart needs: high watermarks, recovery points, log starts. Blocking for two
        syncs, or not at all if nothing changed. Only at the end of a life: before that the `CheckpointWriter` writes.

        Raises DiskError.
        """
        self.tell(high_watermarks)
        self._write_checkpoints()

    def tell(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Take the replicas' present high watermarks; the next checkpoint has them, as far as they are durable here."""
        self._checkpoints.tell(high_watermarks)

    def gather(self, names: tuple[str, ...]) -> Gathered:
        """Return the contents that the checkpoints `names` should have now, for the `CheckpointWriter`."""
        if names == (LOG_STARTS,):
            for log in self.logs.values():
                self._checkpoints.note_start(log)
        else:
            self._note_all()
        starts = self._log_starts() if LOG_STARTS in names else {}
        return Gathered(self._checkpoints.changes, self._checkpoints.gather(names, self._kept()), starts)

    def has_taken_back(self, gathered: Gathered) -> bool:
        """True if an offset was lowered or forgotten since, or checkpoints were written: then `gathered` is
        outdated."""
        return self._checkpoints.changes != gathered.changes  # rule B15/an-old-log-start-comes-back

    def replacing(self, gathered: Gathered) -> None:
        """Take note that from now on the disk may have the gathered contents, or those before."""
        self._checkpoints.replacing(gathered.data)  # schedule 48/what-was-on-the-disk-is-taken-for-what-is

    def replaced(self, gathered: Gathered) -> None:
        """Take note that the disk has the gathered contents, and that none of them is outdated."""
        self._checkpoints.replaced(gathered.data)
        settle(gathered.starts)

    def _write_checkpoints(self) -> None:
        self._note_all()
        starts = self._log_starts()
        self._checkpoints.write(self._kept())
        settle(starts)

    def _note_all(self) -> None:
        """Record the offsets of all logs. Entries of logs that are offline, or missing and not reported yet, stay: they
        prove what those logs held."""
        for tp, log in self.logs.items():
            self._checkpoints.note(tp, log)

    def _kept(self) -> Set[TopicPartition]:
        """Return the partitions that the checkpoints name."""
        return self.logs.keys() | self.offline.keys() | self.findings.all.keys()

    def _log_starts(self) -> dict[PartitionLog, Offset]:
        return {log: log.log_start_offset for log in self.logs.values()}

    def sweep(self) -> None:
        """Delete the files that retention left, after their delay, and forget silent producers. Called every few
        seconds."""
        now_ms = int(self._clock.monotonic_ms())
        for log in self.logs.values():
            log.expire_producers(now_ms)
            if log.removed and log not in self._deletions.values() and (count := _deletable(log)):
                task = spawn(self._delete_removed(log, count), self.on_fatal)
                self._deletions[task] = log
                task.add_done_callback(self._deletions.pop)

    async def _delete_removed(self, log: PartitionLog, count: int) -> None:
        """Delete the `count` oldest removed segments, except for those that a cut has dropped meanwhile."""
        await asyncio.sleep(log.config.file_delete_delay_ms / 1000)
        try:
            while count and _deletable(log):  # schedule 16/what-is-removed-after-a-cut-goes-with-what-was-before
                count -= 1
                await log.delete_oldest_removed()
        except (DiskError, FileNotFoundError) as error:
            name = str(log.topic_partition)
            logger.error("segments below the log's start stay on the disk", partition=name, error=str(error))

    # ------------------------------------------------------------------ the end

    def abandon(self) -> None:
        """Stop writing to a directory that has failed; the next start recovers it."""
        for log in self.logs.values():
            log.close_files()

    def close(self, broker_epoch: int | None) -> None:
        """Stop cleanly, blocking: seal and sync every log, write the checkpoints, and last the marker with the broker
        epoch. Nothing may be appended any more, and no sync may be in flight.

        If any log is offline or fails now, the marker is left out, and the next start recovers.
        """
        failed = bool(self.offline)  # rule B13/clean-marker-although-a-log-is-offline
        logs = list(self.logs.values())
        try:
            for log in logs:
                try:
                    log.seal()
                except (KafkaError, StorageError) as error:
                    self.offline[log.topic_partition] = error
                    failed = True
            # rule B13/clean-marker-before-the-logs-are-synced
            sync_logs(self.disk, [log for log in logs if log.failure is None])
            self._write_checkpoints()
            if not failed:
                epoch = -1 if broker_epoch is None else broker_epoch  # rule B13/clean-marker-without-the-broker-epoch
                # rule B13/clean-marker-not-synced
                write_file_durably(self.disk, f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(epoch))
        finally:
            for log in logs:
                log.close_files()


class Gathered(NamedTuple):
    """Contents that checkpoints should have.

    Attributes:
        changes: value of `OffsetCheckpoints.changes` when they were gathered.
        data: changed checkpoints by name.
        starts: log starts in them.
    """

    changes: int
    data: Mapping[str, bytes]
    starts: Mapping[PartitionLog, Offset]


def _deletable(log: PartitionLog) -> int:
    """Return the number of the oldest removed segments that may be deleted: after a power cut, a start must neither
    need them (their log start is durable) nor miss the next segment (its name is durable)."""
    if not log.removed or log.recovery_point is None:  # schedule 16/files-go-before-the-next-ones-name-is-durable
        return 0
    ends = [*(segment.base_offset for segment in log.removed[1:]), log.bases[0]]
    return bisect_right(ends, log.durable_log_start_offset)  # rule B15/deleted-before-the-start-is-durable


def settle(starts: Mapping[PartitionLog, Offset]) -> None:
    """Mark these log starts as durable, except for logs that were cut meanwhile."""
    for log, start in starts.items():
        log.durable_log_start_offset = max(log.durable_log_start_offset, min(start, log.log_start_offset))


log = structlog.get_logger("strandline.log")


class CheckpointWriter:
    """Replaces the offset checkpoints of a directory off the loop: many changes in one write, one write in flight.
    Calls `on_durable` each time that more log starts are durable.

    A deletion (DeleteRecords) is answered once the new log start is durable on every in-sync replica. Otherwise a power
    cut, or a mere kill before the next checkpoint, would bring the records back. So log starts are written as soon as
    one was raised; recovery points and high watermarks are written with them every few seconds.

    Invariant: contents that were gathered before an offset of the directory was lowered or forgotten never replace a
    checkpoint afterwards. Such an offset may be of a log that was cut since, or of one that was deleted and made anew.
    """

    def __init__(
        self, log_dir: LogDir, on_durable: Callable[[], None], on_full: Callable[[], None], failed: Report
    ) -> None:
        """`on_full` is called when a write found no room; `failed` with an unexpected error, after which nothing would
        be written any more."""
        self._log_dir = log_dir
        self._on_durable = on_durable
        self._on_full = on_full
        self._failed = failed
        self._raised = False
        self._due = False
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def log_start_raised(self) -> None:
        """Write the log starts with the next group. Cheap."""
        self._raised = True
        self._begin()

    def write_all(self) -> None:
        """Write all checkpoints with the next group. If that fails, the caller asks again sooner or later."""
        self._due = True
        self._begin()

    def stop(self) -> asyncio.Task[None] | None:
        """Stop after the write under way; return the task that ends with it, if any."""
        self._stopping = True
        return self._task

    def abandon(self) -> None:
        """Stop at once, without waiting: a sync under way may never end."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None and not self._stopping:
            self._task = spawn(self._run(), self._failed)

    async def _run(self) -> None:
        try:
            while (self._raised or self._due) and not self._stopping:
                raised, self._raised = self._raised, False
                names = OFFSET_CHECKPOINTS if self._due else (LOG_STARTS,)
                self._due = False
                try:
                    await self._write(names)
                except DiskError as error:
                    if isinstance(error, DiskFull):
                        self._on_full()  # rule B18/checkpoints-without-room-are-silent
                    log.warning("checkpoints could not be written; trying again", names=names, error=str(error))
                    self._raised |= raised
                    await asyncio.sleep(RETRY_S)
                else:
                    self._on_durable()
        finally:
            self._task = None  # here, not in a callback of the next turn: what is raised in between begins anew

    async def _write(self, names: tuple[str, ...]) -> None:
        log_dir = self._log_dir
        disk, path = log_dir.disk, log_dir.path
        while True:
            gathered = log_dir.gather(names)
            await write_synced(disk, {f"{path}/{name}{TEMPORARY}": data for name, data in gathered.data.items()})
            if log_dir.has_taken_back(gathered):
                mark("checkpoint-overtaken")
                continue
            log_dir.replacing(gathered)
            for name in gathered.data:
                disk.rename(f"{path}/{name}{TEMPORARY}", f"{path}/{name}")
            if gathered.data:
                await disk.sync([], [path])
            if not log_dir.has_taken_back(gathered):  # rule B15/a-start-is-durable-that-was-lowered
                log_dir.replaced(gathered)
                return
