"""Moves of replicas between log directories of this broker (KIP-113): a copy grows until it replaces the log.

One copy grows at a time, in the order of the requests; a move that has to wait lets the next go on. A start forgets the
moves under way (`strandline.log.future` says which log counts then).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from strandline.log.disk import DiskError, delete_directory
from strandline.log.free_space import reserve_of
from strandline.log.future import BROKEN, FutureLog
from strandline.log.log_dir import LogDir
from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.tasks import spawn
from strandline.replica.compaction import Pace
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared
from strandline.replica.states import Role
from strandline.replica.streams import Streams

log = structlog.get_logger("strandline.replica")

CHUNK_BYTES = 1 << 20
"""Bytes copied in one turn of the loop."""

HELD_BYTES = 4 << 20
"""Maximum bytes copied while the partition is held; if more have been appended, the copy goes on first."""

SYNC_BYTES = 32 << 20
"""Bytes copied between two syncs, so that the last sync, for which the partition is held, is short."""

WAIT_MS = 500
"""Pause before a copy that cannot go on (rot in the log, a busy disk, a swap of segments) is tried again."""

_MOVABLE = (Role.LEADER, Role.FOLLOWER, Role.IDLE)


@dataclass(slots=True, eq=False)
class Move:
    """A replica's move that is under way.

    Attributes:
        target: log directory to move to.
        future: the copy; None before it is begun (anew).
        not_before_ms: monotonic time until which the move has to wait.
        unsynced: bytes copied since the last sync.
    """

    topic_partition: TopicPartition
    partition: Partition
    target: LogDir
    future: FutureLog | None = None
    not_before_ms: float = 0.0
    unsynced: int = 0

    @property
    def lag(self) -> int:
        """Offsets by which the copy is behind the log."""
        if self.future is not None:
            return self.future.lag
        current = self.partition.log
        return 0 if current is None else current.log_end_offset - current.log_start_offset

    @property
    def size_bytes(self) -> int:
        """Size of the copy, in bytes."""
        return 0 if self.future is None else self.future.log.size_bytes


class Mover:
    """The moves of this broker's replicas.

    Invariants:
    - a replica is on its way to one directory at most;
    - a partition's log is the one that a start would use; both change within one turn of the loop.
    """

    def __init__(
        self, shared: Shared, partitions: Mapping[TopicPartition, Partition], log_dirs: LogDirs, streams: Streams
    ) -> None:
        self._shared = shared
        self._partitions = partitions
        self._log_dirs = log_dirs
        self._streams = streams
        self._task: asyncio.Task[None] | None = None
        self._deletions: set[asyncio.Task[None]] = set()
        self._number = 0
        self._stopped = False
        self.moves: dict[TopicPartition, Move] = {}

    def ask(self, tp: TopicPartition, path: str) -> None:
        """Begin to move a replica to the log directory at `path`. If the replica is in it already, give up a move that
        is under way.

        Raises:
            KafkaError: LOG_DIR_NOT_FOUND if the directory is not in log.dirs or is offline, REPLICA_NOT_AVAILABLE if
                this broker has no replica, KAFKA_STORAGE_ERROR if the replica is offline or rotten, or finds no room.
        """
        target = self._log_dirs.target(tp, path)
        partition = self._partitions.get(tp)
        if partition is None:
            what = "this broker has no replica of it; one that is made later goes where most room is"
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{tp}: {what}")
        current = partition.log
        if current is None or partition.role not in _MOVABLE or current.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline here: {partition.reason}")
        under_way = self.moves.get(tp)
        if current.home == path:
            if under_way is not None:
                mark("move-cancelled")
                self._give_up(under_way, "it is to stay where it is")
            return
        if under_way is not None and under_way.target is target:
            return
        if current.rot:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} has rotten batches here; it is healed first")
        self._check_room(tp, current, target)
        if under_way is not None:
            self._give_up(under_way, "it is to go elsewhere")
        self.moves[tp] = Move(tp, partition, target)
        if self._task is None and not self._stopped:
            self._task = spawn(self._run(), self._shared.on_fatal)

    def _check_room(self, tp: TopicPartition, current: PartitionLog, target: LogDir) -> None:
        try:
            total = target.disk.total_bytes(target.path)
            reserve = reserve_of(self._shared.config.disk_reserve_bytes, total)
            free = target.disk.free_bytes(target.path) - reserve
        except DiskError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{target.path}: {error}") from error
        promised = sum(
            max(0, (0 if move.partition.log is None else move.partition.log.size_bytes) - move.size_bytes)
            for move in self.moves.values()
            if move.target is target and move.topic_partition != tp
        )
        if target.full or free < current.size_bytes + promised:
            what = f"it takes {current.size_bytes} bytes, beside {promised} of other moves"
            why = f"{tp}: {what}; {target.path} has room for {max(free, 0)} beside log.dir.reserve.bytes"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why)

    def stop(self) -> list[asyncio.Task[None]]:
        """Give up all moves; return the tasks that end now."""
        self._stopped = True
        ending = [*self._deletions, *(task for task in (self._task,) if task is not None)]
        for task in ending:
            task.cancel()
        for move in self.moves.values():
            self._drop(move, delete=False)
        self.moves.clear()
        return ending

    # Steps of a move

    async def _run(self) -> None:
        shared = self._shared
        pace = Pace(shared.clock, shared.pauses, lambda: shared.config.alter_log_dirs_io_max_bytes_per_second)
        try:
            while self.moves:
                now_ms = self._shared.clock.monotonic_ms()
                move = next((move for move in self.moves.values() if move.not_before_ms <= now_ms), None)
                if move is None:
                    await asyncio.sleep(WAIT_MS / 1000)
                    continue
                copied = await self._go_on(move)
                await pace(copied)
        finally:
            self._task = None

    async def _go_on(self, move: Move) -> int:
        """Do one step of the move; return the bytes copied."""
        try:
            return await self._step(move)
        except NoSpaceLeft as error:
            move.target.on_full()
            self._give_up(move, str(error))
        except BROKEN as error:
            self._give_up(move, str(error))
        except KafkaError as error:
            self._wait(move)
            if move.future is None or error.code is not ErrorCode.CORRUPT_MESSAGE:
                self._drop(move)  # begin anew
            else:
                move.partition.cannot_read(error)
        return 0

    def _wait(self, move: Move) -> None:
        move.not_before_ms = self._shared.clock.monotonic_ms() + WAIT_MS

    def _current(self, move: Move) -> PartitionLog | None:
        """Return the log that is copied, while the move can go on; else give the move up and return None."""
        partition = move.partition
        current = partition.log
        if self.moves.get(move.topic_partition) is not move:
            return None
        hosted = self._partitions.get(move.topic_partition) is partition and partition.role in _MOVABLE
        why = "" if hosted and current is not None and current.failure is None else "its log is gone or offline"
        if move.target.failed or (move.future is not None and move.future.log.failure is not None):
            why = f"{move.target.path} is offline"
        if why:
            self._give_up(move, why)
            return None
        return current

    async def _step(self, move: Move) -> int:
        current = self._current(move)
        if current is None:
            return 0
        future = move.future
        if future is not None and not future.stands:
            mark("move-begun-anew")
            self._drop(move)
            future = None
        if future is None:
            self._number += 1
            future = move.future = FutureLog(move.target, current, self._shared.clock, self._number)
        copied = await self._copy(move, future, current)
        if future.lag or self._current(move) is None:
            return copied
        await self._sync(move, future)
        if self._current(move) is current and move.future is future and future.stands:
            self._switch(move, future, current)
        return copied

    async def _copy(self, move: Move, future: FutureLog, current: PartitionLog) -> int:
        if not future.lag:
            return 0
        offset = future.log.log_end_offset
        found = current.read(offset, CHUNK_BYTES, current.log_end_offset)
        if found is None:
            found = await current.read_cold(offset, CHUNK_BYTES, current.log_end_offset)
            if self._current(move) is not current or move.future is not future or not future.stands:
                return 0
        future.append(found.data)
        move.unsynced += len(found.data)
        if move.unsynced >= SYNC_BYTES and future.lag:
            await self._sync(move, future)
        return len(found.data)

    async def _sync(self, move: Move, future: FutureLog) -> None:
        move.unsynced = 0
        await future.sync()

    # The switch

    def _switch(self, move: Move, future: FutureLog, current: PartitionLog) -> None:
        """Replace the log by its copy. The partition is held: nothing is appended until this returns."""
        disks = (move.target.disk, current.disk, self._log_dirs.first.disk)
        if current.rot or current.swap is not None or any(disk.busy for disk in disks):
            self._wait(move)
            return
        held = 0
        while future.lag:
            found = current.read(future.log.log_end_offset, CHUNK_BYTES, current.log_end_offset)
            if found is None or held > HELD_BYTES:
                return
            future.append(found.data)
            held += len(found.data)
        try:
            self._log_dirs.target(move.topic_partition, move.target.path)
        except KafkaError as error:
            self._give_up(move, str(error))
            return
        new = future.finish()
        source = self._shared.directories.of(current.home).log_dir
        try:
            aside = self._log_dirs.moved(new, move.target, future.unique)
        except NoSpaceLeft:
            raise
        except StorageError as error:
            current.sync_failed(error)
            new.sync_failed(error)
            move.partition.fail(str(error))
            self._shared.on_fatal(FatalError(str(error)))
            return
        del self.moves[move.topic_partition]
        replace_log(self._shared, self._streams, move.partition, new)
        if aside:
            self._later(source, aside, moved=True)
        name = str(move.topic_partition)
        log.info("a replica was moved", partition=name, source=source.path, target=new.home, end=new.log_end_offset)

    # Moves that are given up

    def _give_up(self, move: Move, reason: str) -> None:
        if self.moves.get(move.topic_partition) is move:
            del self.moves[move.topic_partition]
        mark("move-given-up")
        name = str(move.topic_partition)
        log.warning("a move is given up: the replica stays", partition=name, target=move.target.path, reason=reason)
        self._drop(move)

    def _drop(self, move: Move, *, delete: bool = True) -> None:
        future, move.future = move.future, None
        move.unsynced = 0
        if future is None:
            return
        try:
            name = future.drop()
        except (DiskError, FileNotFoundError) as error:
            log.warning("a copy stays until the next start", directory=future.directory, error=str(error))
            return
        if delete:
            self._later(move.target, name, moved=False)

    def _later(self, log_dir: LogDir, name: str, *, moved: bool) -> None:
        task = spawn(_delete(log_dir, name, moved=moved), self._shared.on_fatal)
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)


def replace_log(shared: Shared, streams: Streams, partition: Partition, new: PartitionLog) -> None:
    """Let the partition go on with a log that has the same records, within its leader epoch. Followers at the log's end
    need not know; lagging ones, and this replica if it follows, fetch anew."""
    partition.log = new
    for node, subscription in list(partition.subscriptions.items()):
        if subscription.lagging:
            partition.subscriptions.pop(node).end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            subscription.log = new
    source, partition.source = partition.source, None
    if source is not None:
        source.end()
        streams.follow(partition)
    directory = shared.directories.of(new.home)
    directory.log_dir.tell({partition.topic_partition: partition.high_watermark})
    directory.checkpoints.write_all()
    directory.syncer.mark(new)
    partition.synced()
    partition.log_start_durable()
    partition.wake_all()


async def _delete(log_dir: LogDir, name: str, *, moved: bool) -> None:
    try:
        await (log_dir.delete_aside(name) if moved else delete_directory(log_dir.disk, f"{log_dir.path}/{name}"))
    except (DiskError, FileNotFoundError) as error:
        log.warning("a directory that counts no more stays until the next start", directory=name, error=str(error))
