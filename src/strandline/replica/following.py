"""One partition that is followed: what the leader says of it, and what that does to its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.partition_log import PartitionLog
from strandline.log.segment import Hole, Segment
from strandline.proto.errors import NoSpaceLeft, ProtocolError, StorageError
from strandline.proto.marks import mark
from strandline.replica import frames
from strandline.replica.core.effects import Committed, Cut, FollowerEffects, KeepLog, Truncate
from strandline.replica.core.follower import FollowerCore
from strandline.replica.partition import Partition
from strandline.replica.rot import TRY_AGAIN_MS
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")


class Feed(Protocol):
    """The stream from the leader's broker."""

    def acknowledge(self, following: Following) -> None:
        """Tell the leader how far the log got."""

    def tell_deleted(self, following: Following) -> None:
        """Tell the leader where the log begins."""

    def unfollow(self, following: Following) -> None:
        """Follow it no longer."""

    def heal(self, following: Following) -> None:
        """Fetch what has rotted in its log."""


class Following:
    """Following one leader in one leader epoch. It gives the core what the leader said, and carries out the effects
    that the core returns.

    A storage error takes the partition offline, which ends this; a method that raises KafkaError has changed nothing.

    Attributes:
        id: of the latest FETCH; -1 while none is out (it waits for a connection, or to be asked for again).
        channel: on which data come; -1 until the fetch was accepted.
        fetch_offset, last_epoch: what the latest FETCH said.
        acked: log end and durable offset that the leader was sent last.
        attempts: refusals in a row.
        cuts: truncations since the leader last accepted a fetch.
        retry_ms: when to fetch again after a refusal.
        log_start_due_ms: when to ask for the leader's log start while the disk is full.
        leader_high_watermark: as it was told last; -1 before that.
        without_room: what came last, or a cut, found the disk full.
        hole: what has rotted in the log and is fetched now; None while it is fetched from the end of the log.
        parts_at: where the log is to be cut once that hole is filled up to there (schedule 88); -1: nowhere.
        heal_after_ms: not before then is it tried again.
    """

    __slots__ = (
        "_feed",
        "_shared",
        "acked",
        "attempts",
        "channel",
        "core",
        "cuts",
        "fetch_offset",
        "heal_after_ms",
        "hole",
        "id",
        "last_epoch",
        "leader_high_watermark",
        "log",
        "log_start_due_ms",
        "partition",
        "parts_at",
        "retry_ms",
        "without_room",
    )

    def __init__(self, shared: Shared, feed: Feed, partition: Partition) -> None:
        core, plog = partition.follower, partition.log
        if core is None or plog is None:
            raise ValueError(f"{partition.topic_partition} is {partition.role.value} and follows nobody")
        self._shared = shared
        self._feed = feed
        self.partition = partition
        self.core: FollowerCore = core
        self.log: PartitionLog = plog
        self.id = -1
        self.channel = -1
        self.fetch_offset = -1
        self.last_epoch = -1
        self.acked = (-1, -1)
        self.attempts = 0
        self.cuts = 0
        self.retry_ms = 0.0
        self.log_start_due_ms = 0.0
        self.leader_high_watermark = -1
        self.without_room = False
        self.hole: tuple[Segment, Hole] | None = None
        self.parts_at = -1
        self.heal_after_ms = float("-inf")

    # The partition's source

    def synced(self) -> None:
        """More of the log is durable here."""
        self._feed.acknowledge(self)

    def deleted(self) -> None:
        """The log start is durable here."""
        self._feed.tell_deleted(self)

    def heal(self) -> None:
        """Get from the leader what has rotted in the log, if it is time to."""
        if self.must_heal:
            self._feed.heal(self)

    def end(self) -> None:
        """Follow no longer."""
        self._feed.unfollow(self)

    @property
    def is_throttled(self) -> bool:
        """The follower's quota is for it (KIP-73): the topic says so, it is not in the ISR, and lacks what the leader
        has committed. Else it may be about to join, and the leader waits for it."""
        state = self.partition.state
        lags = self.log.log_end_offset < self.leader_high_watermark
        return lags and state.follower_throttled and self._shared.node_id not in state.isr

    def waits_to_begin(self, then: Callable[[Following], None]) -> bool:
        """The log begins behind what only the object store has, and does not know yet who wrote that (rule B24);
        `then` is called once it does, if it still follows."""
        return self._shared.beginnings.awaits(
            self.partition, lambda: then(self) if self.partition.source is self else None
        )

    # Healing (schedule 80)

    @property
    def must_heal(self) -> bool:
        """There is a hole in the log, and the leader has not failed to fill it a moment ago."""
        rot = self.log.rot
        # schedule 80/holes-stay
        return bool(rot) and self._shared.clock.monotonic_ms() >= self.heal_after_ms and any(rot.holes())

    def next_hole(self) -> None:
        """What is fetched next: the first hole, or what follows on the log. Where the log is to be cut that comes
        first."""
        self.hole = next(self.log.rot.holes(), None) if self.must_heal and self.parts_at < 0 else None
        self.parts_at = -1

    def from_end(self) -> None:
        """What is fetched next is what follows on the log."""
        self.hole, self.parts_at = None, -1

    def position(self) -> tuple[int, int, int]:
        """What the next FETCH says: offset, epoch of the record before it, and how far the log is durable. Before a
        hole the log is what it was, so it is a prefix of the leader's there as well."""
        plog = self.log
        if self.hole is None:
            return plog.log_end_offset, plog.latest_epoch, plog.durable_offset
        offset = max(self.hole[1].offset, plog.log_start_offset)
        return offset, plog.epochs.epoch_at(offset - 1), min(offset, plog.durable_offset)

    def fill(self, batches: memoryview) -> bool:
        """Write what the leader sent over the hole that is fetched; true once nothing is left of it, but for what is to
        be cut.

        Raises:
            KafkaError: it does not belong there, or cannot be written.
        """
        assert self.hole is not None
        segment, hole = self.hole
        try:
            left = self.log.rot.mend(segment, hole, batches)
        except StorageError as error:
            self.partition.fail(str(error))
            return False
        filled = left is None or 0 <= self.parts_at <= left.offset  # schedule 88/a-hole-is-filled-beyond-the-cut
        self.hole = None if left is None or filled else (segment, left)
        if filled:
            self._shared.rot.mended(self.partition)
        return filled

    def not_healed(self, reason: str) -> None:
        """The leader cannot fill the hole; go on at the end of the log meanwhile."""
        mark("rot-stays")
        assert self.hole is not None
        offset = self.hole[1].offset
        self.from_end()
        self.heal_after_ms = self._shared.clock.monotonic_ms() + TRY_AGAIN_MS
        name = str(self.partition.topic_partition)
        log.warning(
            "what has rotted in a log was not healed by its leader; it is tried again. If this stays, stop this node, "
            "move the partition's directory away and start it: the replica is fetched anew",
            partition=name,
            leader=self.core.leader,
            offset=offset,
            reason=reason,
        )

    # What the leader says

    def append(self, batches: memoryview, leader_high_watermark: int, leader_log_start: int) -> None:
        """Append what the leader sent; its high watermark counts only after that (KAFKA-14704, schedule 7).

        Raises:
            KafkaError: it cannot be appended.
        """
        shared = self._shared
        durable_log_start = self.log.durable_log_start_offset
        try:
            self.log.append_as_follower(batches)
        except NoSpaceLeft:
            self._no_room()
            raise
        except StorageError as error:
            self.partition.fail(str(error))
            return
        self.attempts = 0  # not before: pauses grow though the leader accepts each fetch
        self.without_room = False
        if self.log.durable_log_start_offset < durable_log_start:  # rule B16/a-start-inside-a-batch-is-durable
            mark("log-start-to-be-made-durable-again")
            self.partition.log_start_durable()
        self.learn(leader_high_watermark, leader_log_start)
        shared.counters.replicated_in_bytes += len(batches)
        if shared.directories.trace is not None:
            shared.directories.trace.followed_up(self.partition.topic_partition, self.log.log_end_offset)
        if shared.config.sync_before_ack:
            shared.directories.of(self.log.home).syncer.mark(self.log)
        else:
            self._feed.acknowledge(self)

    def learn(self, leader_high_watermark: int, leader_log_start: int) -> None:
        """The leader gave its high watermark and its log start. While a hole is filled before a cut, the log is a
        prefix of the leader's up to there, and maybe no further."""
        plog = self.log
        self.leader_high_watermark = leader_high_watermark
        if self.hole is not None and self.parts_at >= 0:  # schedule 88/watermark-beyond-a-hole
            leader_high_watermark = min(leader_high_watermark, self.hole[1].offset)
        effects = self.core.learned(
            leader_high_watermark, leader_log_start, log_start=plog.log_start_offset, log_end=plog.log_end_offset
        )
        if effects:
            self._carry_out(effects)

    def _carry_out(self, effects: FollowerEffects) -> None:
        """Do what the core wants done, in order."""
        for effect in effects:
            if isinstance(effect, Committed):
                self.partition.watchers.wake()
                continue
            self.partition.raise_log_start(effect.offset)  # rule B15/follower-tells-before-its-log-start-is-durable

    def diverged(self, epoch: int, end_offset: int) -> bool:
        """The leader's log differs: cut this one, or else set `hole` to what is to be healed before that. False if that
        changed nothing.

        Raises:
            KafkaError: it cannot be cut.
        """
        plog = self.log
        cut = self.core.diverged(plog, plog.log_start_offset, plog.log_end_offset, epoch, end_offset)
        if self.hole is not None and cut.offset >= self.hole[1].offset:  # schedule 88/logs-part-behind-every-hole
            self.not_healed("its log is another one")
            return True
        self.from_end()
        mark("truncated")
        self.cuts += 1
        if self.cuts > 1:
            mark("diverged-over-epochs")
        return self._cut(cut)

    def out_of_range(self, leader_start: int, leader_end: int) -> bool:
        """The leader has nothing where this log ends: begin anew where its log begins. Otherwise as `diverged`."""
        mark("restarted-at-log-start")
        return self._cut(self.core.out_of_range(self.log.log_end_offset, leader_start, leader_end))

    def _cut(self, cut: Cut) -> bool:
        plog, core, partition = self.log, self.core, self.partition
        before = (plog.log_end_offset, plog.latest_epoch)
        if isinstance(cut, KeepLog):
            mark("truncation-refused")
            partition.fail(
                f"node {core.leader}, leader in epoch {core.leader_epoch}, lacks records below the high watermark "
                f"{core.high_watermark}: the log would have to be cut at {cut.offset}. If an unclean election explains "
                "that, set unclean.leader.election.enable=true on the topic and restart this node"
            )
            return False
        # schedule 88/what-rotted-before-a-cut-stays
        if isinstance(cut, Truncate) and self.must_heal and (hole := plog.rot.before_cut(cut.offset)) is not None:
            mark("healed-before-a-cut")
            self.hole, self.parts_at = hole, cut.offset
            return False
        if cut.below_high_watermark:
            self._report_loss(cut.offset)
        try:
            if isinstance(cut, Truncate):
                new_end = plog.truncate_to(cut.offset)
                if new_end == cut.offset:
                    # Epochs without records begin at the very end: they go although no record does (KAFKA-10706,
                    # schedule 5).
                    plog.epochs.truncate_from_end(new_end)  # rule B8/empty-epochs-stay
                core.truncated(new_end)
            else:
                plog.truncate_fully_and_start_at(cut.offset)
                core.started_at(cut.offset)
        except NoSpaceLeft:
            self._no_room()
            raise
        except StorageError as error:
            partition.fail(str(error))
            return False
        after = (plog.log_end_offset, plog.latest_epoch)
        name = str(partition.topic_partition)
        log.info("cut a diverging log", partition=name, leader=core.leader, before=before, after=after)
        self._shared.directories.of(plog.home).syncer.mark(plog)
        return after != before

    def _report_loss(self, offset: int) -> None:
        """Committed records are given up, as an unclean election (or flush.policy = replicate) allows."""
        mark("truncated-below-high-watermark")
        self._shared.counters.truncations_below_high_watermark += 1
        log.error(
            "records that were committed are given up after an unclean election",
            partition=str(self.partition.topic_partition),
            high_watermark=self.core.high_watermark,
            truncated_to=offset,
        )

    def _no_room(self) -> None:
        self.without_room = True
        self._shared.directories.of(self.log.home).room.ran_out()  # schedule 57/full-follower-says-nothing


class Pieces:
    """What one stream has brought of a batch that is too large for one entry, and not whole yet (schedule 54).

    It is kept for one followed partition at a time, and no batch is larger than any setting allows: that bounds the
    memory that a leader can take here. The buffer grows as bytes arrive, whatever size was announced.
    """

    __slots__ = ("_batch", "_following")

    def __init__(self) -> None:
        self._batch = bytearray()
        self._following: Following | None = None

    def take(self, following: Following, piece: frames.Piece) -> memoryview | None:
        """Keep a piece; the whole batch if this was its last one, else None.

        Raises:
            ProtocolError: it does not go on where the last one ended, or another partition's batch is not whole yet, or
                the batch is larger than any that can have been appended.
        """
        name, size = following.partition.topic_partition, len(piece.part)
        if self._following not in (None, following):
            raise ProtocolError(f"{name}: a piece came before another partition's batch was whole")
        if piece.batch_size > BATCH_BYTES_MAX:
            raise ProtocolError(f"{name}: a batch of {piece.batch_size} bytes; the largest has {BATCH_BYTES_MAX}")
        # rule B16/a-piece-goes-on-anywhere
        if piece.position != len(self._batch) or not 0 < size <= piece.batch_size - piece.position:
            raise ProtocolError(
                f"{name}: a piece of {size} bytes at byte {piece.position} of {piece.batch_size} came after "
                f"{len(self._batch)} bytes of the batch"
            )
        self._following = following
        self._batch += piece.part
        if len(self._batch) < piece.batch_size:
            return None
        batch = memoryview(self._batch)
        self._batch, self._following = bytearray(), None
        return batch

    def begun(self, following: Following) -> bool:
        """A part of a batch of it is here, and not the whole."""
        return self._following is following

    def drop(self, following: Following) -> None:
        """The rest of its batch is not wanted, or will not come."""
        if self._following is following:
            self._batch, self._following = bytearray(), None
