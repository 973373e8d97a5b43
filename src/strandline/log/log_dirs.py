"""The log directories of a node, perhaps on several disks: which replica lies in which, and where a new one goes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

import structlog

from strandline.log.checkpoints import META_PROPERTIES, decode_id, encode_id, read_twice, write_twice
from strandline.log.config import LogConfig
from strandline.log.disk import Disk, DiskError, DiskFull
from strandline.log.findings import NOTHING_LEFT, LogCondition, RecoveryFinding
from strandline.log.loading import DELETED, aside_name
from strandline.log.log_dir import LogDir
from strandline.log.partition_log import PartitionLog
from strandline.log.rewriting import restore_names
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError, NoSpaceLeft, StorageError, StrandlineError
from strandline.proto.ids import NodeId, TopicId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock

logger = structlog.get_logger("strandline.log")

NOT_FORMATTED = "it is not formatted, or its disk is not mounted; `strandline format` formats an empty one"


FILE_NAME = "replica-directories"

_ADVICE = (
    "Restore the file from a backup. Without one: move it and its copy away and restart, with all directories in "
    "place; the replicas outside of the first directory count as lost until they have caught up."
)


class KnownDirectory(NamedTuple):
    """A directory that has, or had, replicas.

    Attributes:
        path: path at which it was last used.
        incarnation: id of the last process that registered while it used the directory.
    """

    path: str
    incarnation: UUID


class Place(NamedTuple):
    """Directory of a replica, named by the directory's id: a new disk under the same path is another directory."""

    topic_id: TopicId
    directory_id: UUID


_NUMBER = "written"
"""Keyword of the line with the number of times that the file was written."""

_Line = int | tuple[UUID, KnownDirectory] | tuple[TopicPartition, Place]


@dataclass(slots=True)
class _Noted:
    """Content of one file. `number` counts the writes: of two files the one with the larger number is newer. A file of
    an older build has none; it was written after the copy beside it, which that build does not know."""

    number: int = 0
    directories: dict[UUID, KnownDirectory] = field(default_factory=dict)
    replicas: dict[TopicPartition, Place] = field(default_factory=dict)


class ReplicaDirectories:
    """The directory of each replica of a node, stored in the first directory, in a file and its copy. Replicas in the
    first directory are not listed.

    A directory that is missing cannot say what was in it. Without this file, a replica whose directory is offline would
    look like one that the node never had, and be made anew, empty, in another directory. So the directory of each
    replica outside of the first one is durable before its log is made. As a directory's own checkpoints prove what its
    logs had, this file proves that the directory is the one that had them, and no older copy of it.

    Invariant: the newer file never lags behind a log that was made; it may name replicas that were deleted.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        """Read the file and its copy. Raises CorruptLogError, DiskError."""
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self.unwritten = False
        """True if a change in memory is not on disk yet."""
        either = [_noted(entries) for entries in read_twice(disk, self._path, _parse, _ADVICE)]
        # rule B31/any-of-two-notes-counts
        newest = max(either, key=lambda noted: noted.number or math.inf, default=_Noted())
        self._number = max((noted.number for noted in either), default=0)
        self.directories = newest.directories
        self.replicas = newest.replicas

    def know(self, directory_id: UUID, known: KnownDirectory) -> None:
        """Add a directory that is used, in memory; call `write` afterwards."""
        self.directories[directory_id] = known
        self.unwritten = True

    def put(self, tp: TopicPartition, place: Place | None) -> None:
        """Set the directory of a replica, in memory; None: in the first directory, or nowhere. Call `write` before a
        log is made there."""
        if self.replicas.get(tp) != place:
            self.unwritten = True
            if place is None:
                del self.replicas[tp]
            else:
                self.replicas[tp] = place

    def write(self) -> None:
        """Write the file and its copy durably, blocking, if anything changed. Raises DiskError."""
        if not self.unwritten:
            return
        self._number += 1
        lines = [f"{_NUMBER} {self._number}"]
        lines += [
            f"directory {encode_id(key)} {encode_id(known.incarnation)} {known.path}"
            for key, known in self.directories.items()
        ]
        lines += [
            f"replica {tp.topic} {tp.partition} {encode_id(place.topic_id)} {encode_id(place.directory_id)}"
            for tp, place in sorted(self.replicas.items())
        ]
        write_twice(self._disk, self._path, lines)
        self.unwritten = False


def _noted(lines: list[_Line]) -> _Noted:
    """Build the content of a file from its lines."""
    noted = _Noted()
    for line in lines:
        match line:
            case int():
                noted.number = line
            case UUID() as directory_id, KnownDirectory() as known:
                noted.directories[directory_id] = known
            case TopicPartition() as tp, Place() as place:
                noted.replicas[tp] = place
    return noted


def _parse(line: str) -> _Line:
    """Parse one line. Raises ValueError."""
    kind, *words = line.split(" ", 4 if line.startswith("replica ") else 3)
    if kind == "directory":
        directory_id, incarnation, path = words
        return decode_id(directory_id), KnownDirectory(path, decode_id(incarnation))
    if kind == "replica":
        topic, number, topic_id, directory_id = words
        return TopicPartition(topic, int(number)), Place(decode_id(topic_id), decode_id(directory_id))
    if kind == _NUMBER:
        [number] = words
        return int(number)
    raise ValueError(kind)


class LogDirs:
    """The directories that could be opened. The node cannot do without the first.

    Invariants:
    - a replica has a log in one directory at most: the one that `ReplicaDirectories` names;
    - a log is made only where `ReplicaDirectories` durably says so;
    - no log is made for a replica whose directory is offline.
    """

    def __init__(self, dirs: Sequence[LogDir], unusable: Mapping[str, str] | None = None) -> None:
        """Use `LogDirs.open` instead. `unusable`: configured directories that could not be opened, with the reason."""
        self.dirs = list(dirs)
        self.first = dirs[0]
        self.unusable = dict(unusable or {})
        self._places = ReplicaDirectories(self.first.disk, self.first.path)
        self._by_id = {log_dir.directory_id: log_dir for log_dir in dirs}
        missing = (known for key, known in self._places.directories.items() if key not in self._by_id)
        self._unexplained = self.unusable.keys() - {known.path for known in missing}
        """Paths that cannot be used and where none of the missing directories was last: any of them may be there."""
        self._away: dict[TopicPartition, StorageError] = {}
        self._lost: dict[TopicPartition, RecoveryFinding] = {}
        self._chosen: dict[TopicPartition, LogDir] = {}
        if len(self._by_id) < len(dirs):
            paths = ", ".join(log_dir.path for log_dir in dirs)
            raise ConfigError("log.dirs", paths, "directories of their own ids: one of these is a copy of another")
        self._hold_against_file()

    @classmethod
    def open(
        cls, disks: Mapping[str, Disk], clock: Clock, config: LogConfig | None = None, *, node_id: NodeId | None = None
    ) -> LogDirs:
        """Open all directories: see `LogDir.open`. If any but the first cannot be opened, it is offline.

        Args:
            disks: paths of the directories, in order, with their disks.

        Raises:
            ConfigError: one is formatted for another cluster or node; the first is not formatted.
            CorruptLogError, DiskError: the first cannot be used.
        """
        (path, disk), *others = disks.items()
        first = LogDir.open(disk, path, clock, config, node_id=node_id)
        dirs, unusable = [first], {}
        for path, disk in others:
            try:
                if disk.exists(path):
                    restore_names(disk, path)
                if not disk.exists(f"{path}/{META_PROPERTIES}"):
                    unusable[path] = NOT_FORMATTED
                    continue
                dirs.append(
                    LogDir.open(disk, path, clock, config, cluster_id=first.meta.cluster_id, node_id=first.meta.node_id)
                )
            except (DiskError, FileNotFoundError, CorruptLogError) as error:
                unusable[path] = str(error)
        for path, why in unusable.items():
            mark("directory-offline")
            logger.error("a log directory is offline, and the replicas in it with it", path=path, reason=why)
        return cls(dirs, unusable)

    # ------------------------------------------------------------------ what this start found

    def _hold_against_file(self) -> None:
        for log_dir in self.dirs[1:]:
            known = self._places.directories.get(log_dir.directory_id)
            strange = known is None and bool(log_dir.logs or log_dir.offline)
            # rule B12/an-older-copy-of-one-directory-counts
            if strange or (known is not None and known.incarnation not in log_dir.incarnations.ids):
                mark("older-copy-of-one-directory")
                what = "a log directory is an older copy, or was not this node's; its replicas catch up"
                logger.error(what, path=log_dir.path)
                try:
                    log_dir.distrust()
                except DiskError as error:
                    self.fail(log_dir, str(error))
        for tp, place in self._places.replicas.items():
            if place.directory_id not in self._by_id:
                self._note_missing(tp, place)
        held: dict[TopicPartition, list[LogDir]] = {}
        for log_dir in self.dirs:
            for tp in log_dir.logs.keys() | log_dir.offline.keys():
                held.setdefault(tp, []).append(log_dir)
        for tp in sorted(held):
            self._settle(tp, held[tp])

    def _note_missing(self, tp: TopicPartition, place: Place) -> None:
        """Record a replica whose directory is missing. The directory may come back if its path is offline, or if a path
        with no known directory is: disks get other mount points. Otherwise it was replaced or taken away."""
        known = self._places.directories.get(place.directory_id)
        named = {known.path} & self.unusable.keys() if known is not None else set()
        where = min(named or self._unexplained, default=None)  # rule B29/disks-are-known-by-their-mount-points
        if where is not None:  # rule B12/what-is-away-is-made-anew
            mark("replica-away")
            self._away[tp] = StorageError(f"its directory {where} is offline: {self.unusable[where]}")
            self._lost[tp] = replace(NOTHING_LEFT, topic_id=place.topic_id, condition=LogCondition.AWAY)
        else:
            mark("replica-of-lost-directory")
            path = "unknown" if known is None else known.path
            logger.error("the log directory of a replica is gone; it is fetched again", partition=str(tp), path=path)
            self._lost[tp] = replace(NOTHING_LEFT, topic_id=place.topic_id)  # rule B12/a-new-disk-is-the-old-one

    def _settle(self, tp: TopicPartition, holders: list[LogDir]) -> None:
        """Keep one log for a replica. Which of two counts is in the file; a log in a directory that the file does not
        name counts as lacking records; and if the named directory is offline, none counts."""
        place = self._places.replicas.get(tp)
        home = self.first if place is None else self._by_id.get(place.directory_id)
        keep: LogDir | None = home if home in holders else holders[0]  # rule B12/any-of-two-logs-counts
        if tp in self._away:  # rule B12/a-leftover-stands-in-for-what-is-away
            keep = None
        elif keep is not home and keep is not None:
            keep.findings.distrust(tp)  # rule B12/moved-by-hand-is-believed
            self._lost.pop(tp, None)
            topic_id = keep.logs[tp].topic_id if tp in keep.logs else None
            if topic_id is not None:
                self._places.put(tp, self._place(topic_id, keep))
        counts = "none: its directory is offline" if keep is None else keep.path
        for log_dir in (one for one in holders if one is not keep):
            mark("replica-in-two-directories")
            try:
                name = log_dir.set_stray_aside(tp)
            except DiskError as error:
                if log_dir is self.first:
                    raise
                self.fail(log_dir, str(error))
                continue
            what = "a replica lies in a second directory; that one is renamed aside"
            logger.error(what, partition=str(tp), directory=f"{log_dir.path}/{name}", counts=counts)

    @property
    def findings(self) -> Mapping[TopicPartition, RecoveryFinding]:
        """Findings of all directories, until the controller has them."""
        found: dict[TopicPartition, RecoveryFinding] = {}
        for log_dir in self.dirs:
            for tp, finding in log_dir.findings.all.items():
                if tp not in found or self.dir_of(tp) is log_dir:
                    found[tp] = finding
        return {**found, **self._lost}

    @property
    def found(self) -> Counter[LogCondition]:
        """Number of logs that this start found, by condition."""
        found = sum((log_dir.found for log_dir in self.dirs), Counter[LogCondition]())
        found[LogCondition.AWAY] = len(self._away)
        return found

    @property
    def clean_shutdown_broker_epoch(self) -> int | None:
        """Broker epoch of the last life if that ended cleanly in every directory that has logs, else None."""
        epoch = self.first.clean_shutdown_broker_epoch
        # rule B12/one-clean-directory-vouches-for-all
        rest = [log_dir for log_dir in self.dirs[1:] if log_dir.logs or log_dir.offline]
        return epoch if all(log_dir.clean_shutdown_broker_epoch == epoch for log_dir in rest) else None

    def begin_life(self, incarnation_id: UUID) -> tuple[UUID, ...]:
        """Begin a life in each directory, as `LogDir.begin_life` does; return the ids of the first, by which the
        controller judges. Raises DiskError."""
        for log_dir in self.dirs[1:]:
            try:
                log_dir.begin_life(incarnation_id)
            except DiskError as error:
                self.fail(log_dir, str(error))
        return self.first.begin_life(incarnation_id)

    def registered(self, incarnation_id: UUID) -> None:
        """Take note that the registration that reported the findings is committed. Raises DiskError."""
        self.first.registered(incarnation_id)
        self._lost.clear()
        noted = [log_dir for log_dir in self.usable[1:] if log_dir.incarnations.noted]
        for log_dir in noted:
            self._places.know(log_dir.directory_id, KnownDirectory(log_dir.path, incarnation_id))
        try:
            self._places.write()
        except DiskFull:
            noted = []  # their longer lists of lives agree with what is written there
        for log_dir in self.usable[1:]:
            try:
                if log_dir in noted:
                    log_dir.registered(incarnation_id)
                else:
                    log_dir.findings.committed()
            except DiskError as error:
                self.fail(log_dir, str(error))

    # ------------------------------------------------------------------ directories of replicas

    @property
    def usable(self) -> list[LogDir]:
        """Directories that have not failed, starting with the first."""
        return [log_dir for log_dir in self.dirs if not log_dir.failed]

    @property
    def offline(self) -> dict[str, str]:
        """Paths of directories that cannot be used, since the start or since they failed, with the reason."""
        return {**self.unusable, **{log_dir.path: log_dir.failed for log_dir in self.dirs if log_dir.failed}}

    def dir_of(self, tp: TopicPartition) -> LogDir | None:
        """Return the directory that holds a replica, whether its log is sound or not; None if none does."""
        return next((one for one in self.dirs if tp in one.logs or tp in one.offline), None)

    def log_of(self, tp: TopicPartition) -> PartitionLog | None:
        """Return the log of a replica; None if it has none."""
        return next((log_dir.logs[tp] for log_dir in self.dirs if tp in log_dir.logs), None)

    def damage_of(self, tp: TopicPartition) -> StrandlineError | None:
        """Error that makes a replica here unusable, or None. No new log is created in its place."""
        log_dir = self.dir_of(tp)
        if log_dir is None:
            return self._away.get(tp)
        if log_dir.failed:
            return StorageError(f"its directory {log_dir.path} is offline: {log_dir.failed}")
        return log_dir.offline.get(tp)

    def high_watermark_of(self, tp: TopicPartition) -> int:
        """Return the checkpointed high watermark of a replica; 0 if there is none."""
        log_dir = self.dir_of(tp)
        return 0 if log_dir is None else log_dir.high_watermarks.get(tp, 0)

    def fail(self, log_dir: LogDir, why: str) -> None:
        """Mark a directory as failed: nothing in it can be relied on any more, and its logs are fenced."""
        mark("directory-offline")
        logger.error("a log directory is offline, and the replicas in it with it", path=log_dir.path, reason=why)
        log_dir.failed = why
        for log in log_dir.logs.values():
            log.sync_failed(StorageError(why))

    # ------------------------------------------------------------------ making and deleting logs

    def choose(self, wanted: Iterable[tuple[TopicPartition, TopicId]]) -> None:
        """Choose the directories of logs that are about to be made: each goes where most space is left once all
        replicas there have a full segment, then where the fewest logs are. One write covers all of them.

        Raises:
            NoSpaceLeft: the first directory is full.
            StorageError: its disk failed.
        """
        rooms = {log_dir: self._room(log_dir) for log_dir in self._candidates()}
        for tp, topic_id in wanted:
            takes = [one for one in rooms if len(rooms) == 1 or not one.disk.exists(f"{one.path}/{tp}")] or [self.first]
            best = max(takes, key=lambda log_dir: (rooms[log_dir], -len(log_dir.logs), -self.dirs.index(log_dir)))
            rooms[best] -= best.default_config.segment_bytes
            self._chosen[tp] = best
            self._places.put(tp, self._place(topic_id, best))
        try:
            self._places.write()  # rule B12/places-are-noted-afterwards
        except DiskFull as error:
            raise NoSpaceLeft(f"to note where replicas are, in {self.first.path}") from error
        except DiskError as error:
            raise StorageError(f"where replicas are cannot be noted: {error}") from error

    def _candidates(self) -> list[LogDir]:
        """Return the directories that take new replicas: those with free space, or all if none has any. A directory
        that the first one does not know yet takes none, as an older copy of it could not be told apart."""
        known = self._places.directories
        usable = [log_dir for log_dir in self.usable if log_dir is self.first or log_dir.directory_id in known]
        # schedule 57/full-directories-get-replicas
        return [log_dir for log_dir in usable if not log_dir.full] or usable

    def _room(self, log_dir: LogDir) -> int:
        """Return the free bytes, less the growth of the logs there to a full segment each. Otherwise a burst of new
        replicas would all go to the disk with one byte more."""
        if len(self.dirs) == 1:
            return 0
        try:
            free = log_dir.disk.free_bytes(log_dir.path)
        except OSError:
            return -1 << 62
        return free - sum(max(0, log.config.segment_bytes - log.size_bytes) for log in log_dir.logs.values())

    def _place(self, topic_id: TopicId, log_dir: LogDir) -> Place | None:
        return None if log_dir is self.first else Place(topic_id, log_dir.directory_id)

    def create(self, tp: TopicPartition, topic_id: TopicId, config: LogConfig | None = None) -> PartitionLog:
        """Create an empty log for a partition that this node did not hold: see `LogDir.create`.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the partition is offline here; NoSpaceLeft.
            StorageError: the disk failed.
        """
        damage = self.damage_of(tp)
        if damage is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline here: {damage}")
        if tp not in self._chosen or self._chosen[tp].failed or self._places.unwritten:
            self.choose([(tp, topic_id)])
        log_dir = self._chosen.pop(tp)
        try:
            return log_dir.create(tp, topic_id, config)
        except NoSpaceLeft:
            log_dir.on_full()
            raise

    def target(self, tp: TopicPartition, path: str) -> LogDir:
        """Return the directory to which a replica may be moved.

        Raises KafkaError: LOG_DIR_NOT_FOUND; KAFKA_STORAGE_ERROR if a directory of the replica's name is there, or the
        disk cannot tell.
        """
        log_dir = next((one for one in self.usable if one.path == path), None)
        if log_dir is None:
            known = ", ".join(one.path for one in self.usable)
            why = f"it is offline ({self.offline[path]})" if path in self.offline else "it is not in log.dirs"
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path}: {why}; a replica may be moved to {known}")
        if log_dir is not self.first and log_dir.directory_id not in self._places.directories:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} takes no replicas before the node has registered")
        try:
            is_there = self.dir_of(tp) is not log_dir and log_dir.disk.exists(f"{path}/{tp}")
        except DiskError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}") from error
        if is_there:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}/{tp} is there already; move it away")
        return log_dir

    def moved(self, log: PartitionLog, target: LogDir, unique: str) -> str:
        """Let a copy in `target` replace the replica's log; it is whole, durable and under the replica's own name.
        Return the name (with `unique`) of the old directory, for `LogDir.delete_aside`; "" if it could not be set
        aside, which the next start does. The write of the file is the switch: a start before it uses the old log, a
        start after it the new one, and sets the other one aside.

        Raises:
            NoSpaceLeft, DiskError: nothing has changed.
            StorageError: it is not known which of the two the disk names; neither may go on.
        """
        tp = log.topic_partition
        source = self.dir_of(tp)
        if source is None:
            raise ValueError(f"there is no log of {tp} to be replaced")
        target.adopt(log)
        self._places.put(tp, self._place(log.topic_id, target))
        try:
            self._places.write()  # rule B12/a-copy-counts-before-it-is-noted
        except DiskFull as error:
            self._places.put(tp, self._place(log.topic_id, source))
            del target.logs[tp]
            raise NoSpaceLeft(f"to note where {tp} is, in {self.first.path}") from error
        except DiskError as error:
            raise StorageError(f"whether {tp} was moved to {target.path} is not known: {error}") from error
        mark("replica-moved")
        try:
            name = aside_name(tp, unique, DELETED)
            source.take_out(tp, name)
        except DiskError as error:
            source.logs.pop(tp).close_files()
            logger.error("the old directory of a moved replica stays", partition=str(tp), error=str(error))
            return ""
        return name

    async def delete(self, tp: TopicPartition) -> None:
        """Do what `LogDir.delete` does. In a directory that is offline the log goes as a stray once that is back."""
        log_dir = self.dir_of(tp)
        self.forget(tp)
        if log_dir is not None:
            await log_dir.delete(tp)

    def forget_unassigned(self, assigned: Mapping[TopicPartition, TopicId]) -> None:
        """Forget replicas whose directory is away or lost, and that are no longer assigned to this node."""
        for tp, place in list(self._places.replicas.items()):
            if assigned.get(tp) != place.topic_id and place.directory_id not in self._by_id:
                self.forget(tp)

    def forget(self, tp: TopicPartition) -> None:
        """Forget a replica that must not have a log here, and its directory."""
        self._away.pop(tp, None)
        self._chosen.pop(tp, None)
        self._places.put(tp, None)

    def set_rotten_aside(self, tp: TopicPartition) -> str:
        """Do what `LogDir.set_rotten_aside` does. Raises DiskError."""
        return (self.dir_of(tp) or self.first).set_rotten_aside(tp)

    def asides(self) -> list[str]:
        """Do what `LogDir.asides` does, for all directories."""
        return [stem for log_dir in self.usable for stem in log_dir.asides()]

    async def remove_asides(self, tp: TopicPartition) -> None:
        """Do what `LogDir.remove_asides` does, in all directories. Raises DiskError."""
        for log_dir in self.usable:
            await log_dir.remove_asides(tp)

    # ------------------------------------------------------------------ the end

    def close(self, broker_epoch: int | None) -> None:
        """Do what `LogDir.close` does, for the first directory last. Errors of others are logged: their next start
        recovers.

        Raises KafkaError, StorageError, DiskError.
        """
        for log_dir in reversed(self.dirs):
            if log_dir.failed:
                log_dir.abandon()
                continue
            try:
                log_dir.close(broker_epoch)
            except (KafkaError, StorageError, DiskError) as error:
                if log_dir is self.first:
                    raise
                logger.error("a log directory is not closed cleanly", path=log_dir.path, error=str(error))
