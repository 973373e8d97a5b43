"""Snapshots of the committed state: taken when the log has grown enough, or put in the log's place (rule A10)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial

import structlog

from strandline.controller.quorum.dispatch import Dispatcher
from strandline.controller.quorum.fetched import Fetched
from strandline.controller.quorum.metadata_log import MetadataLog
from strandline.controller.quorum.snapshots import Snapshot, SnapshotStore
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.messages import OffsetAndEpoch
from strandline.log.disk import DiskFull
from strandline.proto.errors import CorruptLogError, FatalError
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.steps import Steps, at_once

log = structlog.get_logger("strandline.quorum")

_NOT_KEPT = "it could not be loaded. Nothing is deleted: the metadata log stays, and grows until a snapshot is whole"


class Snapshotting:
    """Link between the core, the listeners' state and the snapshot files.

    Invariants:
    - the log is deleted only up to a snapshot that was read back and tried;
    - a fetched snapshot replaces the log only after it was tried: one that cannot be loaded replaces nothing.
    """

    def __init__(
        self,
        *,
        core: RaftCore,
        log: MetadataLog,
        snapshots: SnapshotStore,
        dispatcher: Dispatcher,
        clock: Clock,
        fetched: Fetched | None,
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        """`fetched` tries a snapshot before it counts; None: it is loaded untried. `spawn` reports what it raises."""
        self._core = core
        self._log = log
        self._snapshots = snapshots
        self._dispatcher = dispatcher
        self._clock = clock
        self._fetched = fetched
        self._spawn = spawn
        self._taking = False
        self._closed = False
        self.wanted = False
        """One is due, however little was committed."""
        self.reloads = 0
        """Fetched snapshots that replaced the log so far."""

    def close(self) -> None:
        """Take no more; one that is being written does not count."""
        self._closed = True

    def take_if_due(self, new_record_bytes_max: int) -> None:
        """Write a snapshot of what the listeners hold, once enough was committed since the last one, or one is wanted,
        and delete the log before the oldest that is kept. One at a time, and none of what a listener has not been
        handed yet: it could not go on without the log, and one that leads loads no snapshot."""
        due = self.wanted or self._dispatcher.new_record_bytes >= new_record_bytes_max
        if self._taking or self._closed or not due:
            return
        if not self._dispatcher.is_level:  # rule A10/snapshot-ahead-of-a-listener
            return
        self._taking = True
        self.wanted = False
        self._spawn(self._take())

    async def _take(self) -> None:
        """Raises FatalError if a listener's state does not end at a committed record."""
        try:
            taken = self._dispatcher.take_snapshot()
            self._dispatcher.new_record_bytes = 0
            if taken is not None:
                await self._write(*taken)
        finally:
            self._taking = False

    async def _write(self, offset: int, epoch: int, records: Iterable[bytes]) -> None:
        snapshots = self._snapshots
        snapshot = OffsetAndEpoch(offset, epoch)
        if offset <= (0 if snapshots.latest is None else snapshots.latest.offset):
            return
        # rule A10/snapshot-of-uncommitted-records
        if offset > self._core.high_watermark or self._core.log.epoch_before(offset) != epoch:
            raise FatalError(f"a listener's snapshot {snapshot} does not end at a committed record of its epoch")
        try:
            voters = self._core.log.voters_at(offset)
            wall_ms = self._clock.wall_ms()
            await snapshots.write(
                snapshot, records, timestamp_ms=wall_ms, voters=voters, check=partial(self._try, snapshot)
            )
        except DiskFull:
            return  # the log simply stays longer until there is room
        except (CorruptLogError, FatalError) as error:
            mark("snapshot-not-kept")
            log.error("a metadata snapshot was not kept: " + _NOT_KEPT, node=self._core.key.node_id, error=str(error))
            return
        if self._closed:
            return
        if self._core.log.start.offset > offset:
            snapshots.drop_before(self._core.log.start)  # a newer one was fetched meanwhile
            return
        mark("quorum-snapshot-taken")
        start = snapshots.drop_old()
        self._core.snapshot_taken(snapshot, max(start, self._core.log.start))
        self._log.delete_before(self._core.log.start.offset)  # rule A10/log-deleted-past-the-snapshot
        await self._log.delete_removed()

    def install(self, snapshot: OffsetAndEpoch, now_ms: float) -> None:
        """Put a fetched snapshot in the place of the log: freeze, truncate fully, reload.

        Raises:
            FatalError: no listener could load it; nothing has changed.
            DiskError
        """
        try:
            content = self._snapshots.fetched(snapshot)
        except CorruptLogError:
            self._core.snapshot_refused(now_ms)
            return
        at_once(self._try(snapshot, content))  # before anything is replaced: it would stop this node for good
        self._snapshots.install(snapshot)
        mark("quorum-snapshot-installed")
        self._log.reset_to(snapshot)  # rule A10/log-kept-when-a-snapshot-is-installed
        self._snapshots.drop_before(snapshot)
        self._core.snapshot_installed(snapshot, now_ms, content.voters)
        self.reloads += 1
        self._dispatcher.reload(snapshot.offset, snapshot.epoch, content.records)  # rule A10/listeners-not-reloaded

    def _try(self, snapshot: OffsetAndEpoch, content: Snapshot) -> Steps[None]:
        """Raises FatalError if this node could not load it."""
        if self._fetched is not None:  # rule A16/snapshot-replaces-the-log-untried
            yield from self._fetched.snapshot(snapshot.offset, snapshot.epoch, content.records)
