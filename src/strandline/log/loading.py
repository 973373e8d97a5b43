"""Opening of all logs of a directory at start: each is examined, the findings are stored, then each is opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import structlog

from strandline.log.checkpoints import PARTITION_METADATA, decode_partition_metadata
from strandline.log.config import LogConfig
from strandline.log.disk import METADATA_DIRECTORY, Disk, DiskFull, File, read_file
from strandline.log.findings import NOTHING_LEFT, Findings, LogCondition, RecoveryFinding
from strandline.log.log_state import IndexCache
from strandline.log.offset_checkpoints import LastLife, OffsetCheckpoints
from strandline.log.partition_log import PartitionLog
from strandline.log.recovery import ExaminedLog
from strandline.log.rewriting import Rewriting, restore_names
from strandline.proto.errors import CorruptLogError, StorageError, StrandlineError
from strandline.proto.ids import NO_EPOCH, ZERO_UUID, Offset, TopicId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.log")

LOGS_IN_ONE_SYNC = 256
"""Maximum logs loaded between two syncs: files that are written again keep their descriptors until they are synced."""

_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
DELETED = "-delete"
STRAY = "-stray"
KEPT_STRAY = f"-kept{STRAY}"
"""Suffix of a stray that is never removed, because the cluster that did not know it knew no topic at all."""
ROTTEN = "-rotten"
FUTURE = "-future"
"""Suffix of a copy of a replica from another directory, which is not whole yet and never used (KIP-113)."""
_TOPIC_MAX = 190
"""Characters of a topic's name kept in the name of a directory set aside, which also has an id and a suffix."""


def aside_name(tp: TopicPartition, unique: str, suffix: str) -> str:
    """Return the name of a partition's directory that no longer counts: deleted (until its files are gone), stray, or
    rotten. `unique` has no dot."""
    return f"{aside_stem(tp)}.{unique}{suffix}"


def aside_stem(tp: TopicPartition) -> str:
    """Return the beginning of that name, which is the same for all suffixes."""
    return f"{tp.topic[:_TOPIC_MAX]}-{tp.partition}"


def delete_directory(disk: Disk, path: str) -> None:
    """Delete a directory of files at once, blocking."""
    for entry in disk.listdir(path):
        disk.unlink(f"{path}/{entry}")
    disk.rmdir(path)


def sync_logs(disk: Disk, logs: Iterable[PartitionLog]) -> None:
    """Sync all logs that need it, in groups, blocking. Raises StorageError."""
    dirty = [plog for plog in logs if plog.needs_sync]
    while dirty:
        files: list[File] = []
        directories: dict[str, None] = {}
        for plog in dirty:
            log_files, log_directories = plog.begin_sync()
            files += log_files
            directories.update(dict.fromkeys(log_directories))
        disk.sync_now(files, list(directories))
        for plog in dirty:
            plog.end_sync()
        dirty = [plog for plog in dirty if plog.needs_sync]


class Loading:
    """Loading of one start. Results: `logs`, the unusable ones in `offline`, and the `findings`.

    Nothing is cut, and no missing partition is made anew, before the findings are durable.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        clock: Clock,
        config: LogConfig,
        *,
        checkpoints: OffsetCheckpoints,
        cache: IndexCache,
        rewriting: Rewriting | None,
    ) -> None:
        """`rewriting`: set if data that are read may be only in the page cache (same boot, and no clean stop)."""
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._config = config
        self._checkpoints = checkpoints
        self._cache = cache
        self._rewriting = rewriting
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, StrandlineError] = {}

    def run(self, *, clean: bool, same_boot: bool) -> Findings:
        """Open the logs of the directory, and sync what an earlier life may have left unsynced. Raises DiskError."""
        names = self._disk.listdir(self._directory)
        present = {
            TopicPartition(match[1], int(match[2])): f"{self._directory}/{name}"
            for name in names
            if name != METADATA_DIRECTORY and (match := _PARTITION_NAME.fullmatch(name))
        }
        self._finish_deletions([name for name in names if name.endswith((DELETED, STRAY))], present)
        for name in (name for name in names if name.endswith(FUTURE)):  # rule B12/a-copy-stays-for-ever
            delete_directory(self._disk, f"{self._directory}/{name}")
        self.findings = Findings(self._disk, self._directory, present)
        left = LastLife(clean=clean, same_boot=same_boot, short_is_refused=False)
        examined: dict[TopicPartition, ExaminedLog | None] = {}
        for tp, path in present.items():
            examined[tp] = self.examine(tp, path, left)
            if self._rewriting is not None and len(examined) % LOGS_IN_ONE_SYNC == 0:
                self._rewriting.sync()
        # schedule 48/missing-directory-is-silent
        for tp in self.findings.add_missing(tp for tp in self._checkpoints.proven() if tp not in examined):
            self._tell_lacking(tp, "its directory is missing", 0)
        self.keep_findings()  # schedule 45/cut-before-it-is-noted
        for tp, one in examined.items():
            if one is not None and tp not in self.offline:
                self.open_one(tp, one)
                if len(self.logs) % LOGS_IN_ONE_SYNC == 0:
                    sync_logs(self._disk, self.logs.values())
        self.keep_findings()
        if self._rewriting is not None:
            self._rewriting.names_in(self._directory)
            self._disk.sync_dir(self._directory)
        sync_logs(self._disk, self.logs.values())
        return self.findings

    def _finish_deletions(self, names: list[str], present: Mapping[TopicPartition, str]) -> None:
        """Finish deletions of an earlier life, and those of strays that it set aside: first their checkpoints are
        forgotten."""
        aside = {name.rpartition(".")[0] for name in names}
        for tp in self._checkpoints.proven():
            if tp not in present and aside_stem(tp) in aside:
                self._checkpoints.forget(tp)
        try:
            self._checkpoints.write_forgotten()
        except DiskFull as error:
            log.warning("deleted partitions are still named by the checkpoints", error=str(error))
        for name in names:
            if name.endswith(DELETED):
                delete_directory(self._disk, f"{self._directory}/{name}")

    # One log

    def examine(self, tp: TopicPartition, path: str, left: LastLife) -> ExaminedLog | None:
        """Examine the log in a partition's directory; None if it cannot be used, or never held anything."""
        checkpoints = self._checkpoints
        topic_id: TopicId | None = ZERO_UUID
        restore_names(self._disk, path)
        try:
            topic_id = self._topic_id(tp, path, left)
            if topic_id is None:
                delete_directory(self._disk, path)
                return None
            examined = ExaminedLog(
                self._disk,
                path,
                tp,
                clock=self._clock,
                topic_id=topic_id,
                config=self._config,
                last_life=replace(
                    left,
                    recovery_point=checkpoints.recovery_points.get(tp, 0),
                    high_watermark=checkpoints.high_watermarks.get(tp, 0),
                    log_start_offset=checkpoints.log_starts.get(tp, 0),
                    start_claimed=checkpoints.starts_claimed.get(tp, 0),
                    start_is_known=checkpoints.starts_are_known,
                ),
                rewriting=self._rewriting,
            )
        except CorruptLogError as error:
            self._refuse(tp, topic_id or ZERO_UUID, error)
            return None
        end = Offset(examined.log_end_offset)
        # rule B31/lost-promises-are-no-doubt
        condition = LogCondition.CUT if examined.is_cut or checkpoints.in_doubt else LogCondition.INTACT
        # schedule 48/short-log-is-whole, schedule 48/clean-mark-covers-everything
        if end < checkpoints.durable_end(tp):
            condition = LogCondition.LACKING
            self._tell_lacking(tp, "it ends too early", end)
        elif examined.is_cut:
            log.warning("the end of a partition's log is cut: a torn write, or damage", partition=str(tp), log_end=end)
        self.findings.add(tp, RecoveryFinding(topic_id, end, NO_EPOCH, condition))
        return examined

    def _refuse(self, tp: TopicPartition, topic_id: TopicId, error: CorruptLogError) -> None:
        self.offline[tp] = error
        self.findings.add(tp, replace(NOTHING_LEFT, topic_id=topic_id))

    def open_one(self, tp: TopicPartition, examined: ExaminedLog) -> None:
        try:
            plog = examined.open(self._cache, sync=False)
        except CorruptLogError as error:
            self._refuse(tp, examined.topic_id, error)
            return
        if not examined.last_life.clean:  # a life that was killed may have made the log and not come to syncing it
            metadata = self._disk.open(f"{plog.directory}/{PARTITION_METADATA}")
            if self._rewriting is not None:
                self._rewriting.whole(metadata)  # rule A9/topic-id-not-written-again
            plog.must_sync([], [metadata], [plog.directory, self._directory])
        plog.cleaned_to = self._checkpoints.cleaned_to(plog)
        self.logs[tp] = plog
        found = RecoveryFinding(plog.topic_id, plog.log_end_offset, plog.latest_epoch, LogCondition.INTACT)
        self.findings.add(tp, found)

    def _topic_id(self, tp: TopicPartition, path: str, left: LastLife) -> TopicId | None:
        """Return the topic that the directory belongs to; None if it never held acknowledged records.

        The file is synced with the first records. So a life that ended before may leave it missing or torn, beside
        records that were never acknowledged; any other damage is an error. Raises CorruptLogError.
        """
        file = f"{path}/{PARTITION_METADATA}"
        try:
            data = read_file(self._disk, file) if self._disk.exists(file) else b""
            return decode_partition_metadata(file, data)
        except CorruptLogError:
            power_was_cut = not left.same_boot and not left.clean
            if not self._checkpoints.durable_end(tp) and (power_was_cut or not self._holds_data(path)):
                return None
            raise

    def _holds_data(self, path: str) -> bool:
        for name in self._disk.listdir(path):
            if name.endswith(".log"):
                file = self._disk.open(f"{path}/{name}")
                size = file.size()
                file.close()
                if size:
                    return True
        return False

    # Findings

    def keep_findings(self) -> None:
        """Store the findings. If the disk is full, logs whose finding cannot be stored stay offline in this life,
        unchanged."""
        try:
            self.findings.keep()
        except DiskFull as error:
            for tp in self.findings.unkept():
                why = (
                    f"no room in {self._directory} to note what recovery found of {tp}; make room and restart ({error})"
                )
                self.offline.setdefault(tp, StorageError(why))

    def _tell_lacking(self, tp: TopicPartition, what: str, end: int) -> None:
        mark("log-lacking")
        log.error(
            "a partition's log lacks what was durable here; it is fetched again from its leader",
            partition=str(tp),
            found=what,
            log_end=end,
            durable_once=self._checkpoints.durable_end(tp),
        )
