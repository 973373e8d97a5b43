"""Cutting a partition's log: at its end, whole, and at its start.

The order of steps allows for a crash after any of them: checkpoints that promise more are lowered first; producer state
is rolled back before the offsets move (KAFKA-12153); names are durably gone before other data takes their place
(KIP-101 and KIP-279 say where a log is cut).
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.log.batch import BatchHeader
from strandline.log.disk import DiskError, DiskFull
from strandline.log.epochs import intact_end
from strandline.log.log_state import LogState
from strandline.log.producer_state import ProducerStates
from strandline.log.segment import Segment, delete_files, pread_blocking
from strandline.proto.errors import NoSpaceLeft
from strandline.proto.ids import Offset
from strandline.proto.marks import mark


class LogCutter(LogState):
    """The cutting part of a `PartitionLog`."""

    __slots__ = ()

    def truncate_to(self, offset: int) -> Offset:
        """Drop every batch that reaches `offset` or lies after it. Return the new log end, which is below `offset` if
        that was inside a batch. At or above the log end, only epochs without records are dropped (schedule 5: they may
        conflict with the leader's).

        Producer state is rolled back before the offsets move (KAFKA-12153).

        Raises KafkaError and StorageError as `append_as_leader` does.
        """
        self._check_usable()
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)  # rule B8/empty-epochs-stay/2
            return self.log_end_offset
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return self.log_end_offset
        self._cut(lambda now_ms: self._cut_end(offset, now_ms))
        return self.log_end_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the empty log begins at `offset` (the leader has nothing older, or a snapshot is loaded).

        Raises KafkaError and StorageError as `append_as_leader` does.
        """
        self._check_usable()
        self._cut(lambda now_ms: self._cut_whole(offset, now_ms))

    def _cut(self, cut: Callable[[int], None]) -> None:
        try:
            cut(self._now_ms())
        except DiskError as error:
            raise self._fence(error) from error

    def _cut_end(self, offset: int, now_ms: int) -> None:
        """Drop every batch that reaches `offset` (below the log end) or lies after it.

        Raises DiskError. Raises NoSpaceLeft, or CORRUPT_MESSAGE if `offset` lies inside of a hole, with nothing
        changed: a log cut before the hole would lack committed records, without saying any more that it has rotted
            (schedule 88).
        """
        if self.swap is not None and offset < self.swap.end:
            self.swap.settle()
        keep = max(i for i, base in enumerate(self.bases) if base <= offset)
        segment = self.segments[keep]
        segment.active_indexes()
        self.aborted_in(segment, pread_blocking)
        hole = segment.holes.around(offset)  # rule B8/a-cut-goes-on-behind-the-hole
        found = segment.find(offset, pread_blocking) if hole is None else None
        if hole is not None:
            position, new_end = hole.position, hole.offset
        else:
            # rule B8/half-a-batch-is-kept
            position, new_end = (segment.size, offset) if found is None else (found[0], found[1].base_offset)
        # schedule 88/a-cut-takes-what-rotted-before-it
        if new_end < offset and (found is None or not self._is_whole(segment, *found)):
            why = f"a log cannot be cut at {offset}, inside of what has rotted"
            raise segment.damaged(position, why, offset=new_end)
        self._lower_checkpoints(new_end)  # rule B8/checkpoint-promises-what-is-cut
        # rule C2/snapshots-survive-a-cut, rule C2/offsets-move-before-producers
        names_changed = self.snapshots.delete_above(new_end)
        if len(self.producers):
            mark("producer-state-rolled-back")
            self.producers = self.snapshots.load(self.segments, new_end, now_ms)  # rule C2/producers-survive-a-cut
        while len(self.segments) > keep + 1:
            self._delete_last_segment()
        if names_changed:
            self.disk.sync_dir(self.directory)
        segment.truncate(position, new_end - segment.base_offset)
        self.cache.forget(segment)
        self.unsynced.add(segment.file)
        self.epochs.truncate_from_end(new_end)  # rule B8/epochs-outlive-the-cut
        self.move_end(new_end)

    def _cut_whole(self, offset: int, now_ms: int) -> None:
        """Drop everything and begin at `offset`. The newest segments are deleted first, so that a crash leaves no gap.

        Raises DiskError; NoSpaceLeft with nothing changed.
        """
        if self.swap is not None:
            self.swap.settle()  # schedule 75/a-cut-forgets-the-swap
        self._lower_checkpoints(0)
        self.producers.clear()  # rule C2/starting-anew-keeps-producers
        self.snapshots.delete_above(-1)
        while self.segments:
            self._delete_last_segment()
        while self.removed:
            delete_files(self.disk, self.directory, self.removed.pop().base_offset)
        self.epochs.clear()
        self.begin_segment(offset, now_ms)
        self.disk.sync_dir(self.directory)  # the new start is told to others as durable
        self.log_start_offset = Offset(offset)
        self.move_end(offset)
        self.durable_offset = self.log_end_offset
        self.durable_log_start_offset = self.log_start_offset  # the segment's name says it
        if self.on_begun_anew is not None:
            self.on_begun_anew()

    def _begin_earlier(self, offset: int, now_ms: int) -> None:
        """Begin an empty log earlier, at `offset`: with the batch that the log start lies inside of. The producers of
        the records before both offsets stay known, durably (rule B24). Raises as `_cut_whole` does."""
        producers, told = self.producers, self.snapshots.has(self.log_start_offset)
        self.producers = ProducerStates()
        self._cut_whole(offset, now_ms)
        self.producers = producers
        if told:
            file = self.snapshots.write(offset, producers)
            try:
                self.disk.sync_now([file], [self.directory])
            finally:
                file.close()

    def _cut_start(self, offset: int) -> None:
        """Make `offset` the log start. Whole segments below it move to `removed`, and their producer snapshots stay as
        long: until the new log start is durable, a start of the node needs them (schedule 89). Raises DiskError."""
        self.log_start_offset = Offset(offset)
        self.epochs.truncate_from_start(offset)
        while len(self.segments) > 1 and self.bases[1] <= offset:
            segment = self.segments.pop(0)
            del self.bases[0]
            self.cache.forget(segment)
            # Until the log start is durable, a start of the node needs the segment (schedule 76).
            if not self.unsynced.close_later(segment.file):  # schedule 76/expired-segments-are-not-synced
                segment.close()
            self.size_bytes -= segment.size
            self.removed.append(segment)  # schedule 89/snapshots-go-before-the-log-start-is-durable

    def _is_whole(self, segment: Segment, position: int, header: BatchHeader) -> bool:
        """True if the batch is what was written; its header alone may claim offsets that are not its own."""
        data = pread_blocking(segment.file, header.size, position)
        return intact_end(data, header.base_offset, self.epochs, self.log_start_offset)[0] > 0

    def _lower_checkpoints(self, offset: int) -> None:
        """Lower checkpoints above `offset` before anything is cut. Writing them takes disk space, which the rest of the
        cut frees; if there is none, the cut can be tried again (schedule 57)."""
        if self.on_cut_below is None:
            return
        try:
            self.on_cut_below(offset)
        except DiskFull as error:
            mark("cut-without-room")
            # schedule 57/full-disk-fences-a-truncation
            raise NoSpaceLeft(f"to write down that {self.topic_partition} is cut") from error

    def _delete_last_segment(self) -> None:
        """Delete the last segment durably, before anything else changes: a power cut could bring it back beside newer
        data."""
        segment = self.segments.pop()
        self.bases.pop()
        self.cache.forget(segment)
        self.unsynced.drop(segment.file)
        segment.close()
        delete_files(self.disk, self.directory, segment.base_offset)
        self.disk.sync_dir(self.directory)  # rule B8/cut-segments-come-back

    def delete_records_before(self, offset: int, *, keep_active: bool = False) -> None:
        """Raise the log start to `offset`, which the caller has clamped at the high watermark (schedule 16). Segments
        wholly below it leave the log at once, and the disk by `delete_oldest_removed` once the new log start is
        durable. At the log end a new segment is begun, so that the active one can go as well, unless `keep_active`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE if `offset` is beyond the log end.
            StorageError: the disk failed; the log is fenced from now on.
        """
        if offset > self.log_end_offset:
            raise self.out_of_range(offset)  # rule B15/start-beyond-the-end
        if offset > self.log_start_offset:
            try:
                if offset == self.log_end_offset and self.segments[-1].size and not keep_active:
                    self._begin_anew()
                self._cut_start(offset)
            except DiskError as error:
                raise self._fence(error) from error

    def _begin_anew(self) -> None:
        try:
            self._roll(self._now_ms())
        except DiskFull:
            mark("no-room-to-begin-anew")  # the active segment stays until there is

    async def delete_oldest_removed(self) -> None:
        """Delete the oldest segment of `removed` and its snapshot; that their names are gone is not durable yet."""
        segment = self.removed.pop(0)
        self.snapshots.delete_below((self.removed or self.segments)[0].base_offset)
        await segment.delete_slowly()
