"""Hands committed batches, snapshots and leader changes to the listeners, in order and each batch once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strandline.controller.quorum.api import CommittedBatch, LeaderAndEpoch, QuorumListener
from strandline.controller.quorum.metadata_log import MetadataLog
from strandline.controller.quorum.snapshots import Snapshot, SnapshotStore
from strandline.proto.ensure import ensure
from strandline.proto.ids import NodeId
from strandline.proto.tasks import spawn

_TURN_BYTES_MAX = 64 * 1024
"""Replayed in one turn of the loop, about a thousand records, so that a long replay never costs an election."""


_NO_LEADER = LeaderAndEpoch(None, 0)


@dataclass(slots=True)
class _Replay:
    """Position of one listener in the log."""

    listener: QuorumListener
    next_offset: int = 0
    loaded: bool = False
    notified: LeaderAndEpoch = _NO_LEADER


class Dispatcher:
    """Drives every listener up to the high watermark.

    Invariants:
    - a listener's next offset never passes the high watermark;
    - a listener learns of this node's own leadership only once it has everything up to the epoch's start.
    """

    def __init__(
        self,
        node_id: NodeId,
        log: MetadataLog,
        snapshots: SnapshotStore,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._snapshots = snapshots
        self._on_fatal = on_fatal
        self._replays: list[_Replay] = []
        self._high_watermark = 0
        self._leader = _NO_LEADER
        self._epoch_start = 0
        self._running = False
        self._scheduled = False
        self._cold: asyncio.Task[None] | None = None
        self._closed = False
        self._memo: tuple[int, list[CommittedBatch], int] | None = None
        """Batches read last, for the next listener of the same turn: (offset, batches, bytes)."""
        self.new_record_bytes = 0
        """Bytes handed to the first listener since the last snapshot."""

    def register(self, listener: QuorumListener) -> None:
        """Start a listener from the beginning."""
        self._replays.append(_Replay(listener))

    def load_latest_snapshot(self, content: Snapshot | None) -> None:
        """Load it into every listener."""
        for replay in self._replays:
            self._load(replay, content)

    @property
    def handed_over(self) -> int:
        """Offset up to which the first listener has the log."""
        return self._replays[0].next_offset if self._replays else 0

    def advance(self, high_watermark: int) -> None:
        """Hand over what is committed: everything below the offset."""
        self._high_watermark = high_watermark

    def set_leader(self, leader: LeaderAndEpoch, epoch_start: int) -> None:
        """Leadership moved; `epoch_start` matters where this node leads."""
        self._leader = leader
        self._epoch_start = epoch_start

    def reload(self, end_offset: int, epoch: int, records: list[bytes]) -> None:
        """Let all listeners load a fetched snapshot, which replaced the log."""
        self._memo = None
        self.new_record_bytes = 0
        for replay in self._replays:
            replay.listener.handle_load_snapshot(end_offset, epoch, records)
            replay.next_offset = end_offset
            replay.loaded = True

    @property
    def is_level(self) -> bool:
        """True if no listener is behind the first one. The others may be, while the disk is slow with what comes
        next."""
        return all(replay.next_offset >= self.handed_over for replay in self._replays)

    def take_snapshot(self) -> tuple[int, int, Iterable[bytes]] | None:
        """Ask the listeners in order for their state."""
        for replay in self._replays:
            taken = replay.listener.take_snapshot()
            if taken is not None:
                return taken
        return None

    def run(self) -> None:
        """Hand over what there is, up to a limit a turn; the rest follows in later turns by itself. Who leads is told
        while the disk is slow, too: a controller that was deposed may be sent a snapshot."""
        if self._running or self._closed:  # rule A10/leadership-waits-for-the-disk
            return
        self._running = True
        try:
            for replay in self._replays:
                self._notify_leader(replay)
                self._catch_up(replay)
                self._notify_leader(replay)
        except Exception as error:
            self._closed = True
            self._on_fatal(error)
        finally:
            self._running = False
            self._memo = None

    def close(self) -> None:
        """Hand over nothing more."""
        self._closed = True
        if self._cold is not None:
            self._cold.cancel()

    def _notify_leader(self, replay: _Replay) -> None:
        if replay.notified == self._leader:
            return
        # rule A13/leadership-told-before-the-replay
        if self._leader.leader_id == self._node_id and replay.next_offset <= self._epoch_start:
            return
        replay.notified = self._leader
        replay.listener.handle_leader_change(self._leader)

    def _catch_up(self, replay: _Replay) -> None:
        if not replay.loaded or replay.next_offset < self._log.start_offset:  # rule A10/listeners-not-reloaded/2
            latest = self._snapshots.latest
            self._load(replay, None if latest is None else self._snapshots.load(latest))
        budget = _TURN_BYTES_MAX
        while replay.next_offset < self._high_watermark and not self._closed and self._cold is None:
            if budget <= 0:
                self._run_later()
                return
            limit = self._high_watermark
            memo = self._memo
            if memo is None or memo[0] != replay.next_offset:
                read = self._log.committed(replay.next_offset, limit, budget)
                if read is None:
                    self._cold = spawn(self._warm(replay.next_offset, limit, budget), self._on_fatal)
                    return
                memo = self._memo = (replay.next_offset, *read)
            _, batches, size = memo
            if not batches:
                return
            budget -= size
            if replay is self._replays[0]:
                self.new_record_bytes += size
            next_offset = replay.next_offset
            for batch in batches:
                in_order = next_offset <= batch.base_offset and batch.last_offset < limit
                ensure(in_order, "OnceAndInOrder", next=next_offset, base=batch.base_offset, limit=limit)
                next_offset = replay.next_offset = batch.last_offset + 1
                if batch.records:
                    replay.listener.handle_commit(batch)

    def _load(self, replay: _Replay, content: Snapshot | None) -> None:
        replay.loaded = True
        latest = self._snapshots.latest
        if latest is not None and content is not None:
            replay.listener.handle_load_snapshot(latest.offset, latest.epoch, content.records)
            replay.next_offset = latest.offset

    async def _warm(self, offset: int, limit: int, max_bytes: int) -> None:
        try:
            read = await self._log.committed_cold(offset, limit, max_bytes)
        finally:
            self._cold = None
        if read[0]:
            self._memo = (offset, *read)
        self.run()

    def _run_later(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._scheduled = False
        self.run()
