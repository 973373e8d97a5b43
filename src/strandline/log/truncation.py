"""Cutting a log: its end after a divergence (KIP-101, KIP-279), its start by retention, or the whole of it.

The order in each is what a crash in between leaves: checkpoints that promise more are lowered first; producer state is
rolled back before the offsets move (KAFKA-12153); names are gone durably before other data takes their place.
"""

from __future__ import annotations

from strandline.log.batch import BatchHeader
from strandline.log.disk import DiskFull
from strandline.log.epochs import intact_end
from strandline.log.log_state import LogState
from strandline.log.producer_state import ProducerStates
from strandline.log.segment import Segment, delete_files, pread_blocking
from strandline.proto.errors import NoSpaceLeft
from strandline.proto.ids import Offset
from strandline.proto.marks import mark


def cut_end(log: LogState, offset: int, now_ms: int) -> None:
    """Drop every batch that reaches `offset` (below the log end) or lies after it.

    Raises DiskError; NoSpaceLeft, or CORRUPT_MESSAGE where `offset` lies inside of what has rotted, with everything as
    it was: a log that was cut before `offset` would lack committed records, and say no more that it has rotted
    (schedule 88).
    """
    if log.swap is not None and offset < log.swap.end:
        log.swap.settle()
    keep = max(i for i, base in enumerate(log.bases) if base <= offset)
    segment = log.segments[keep]
    segment.active_indexes()
    hole = segment.holes.around(offset)  # rule B8/a-cut-goes-on-behind-the-hole
    found = segment.find(offset, pread_blocking) if hole is None else None
    if hole is not None:
        position, new_end = hole.position, hole.offset
    else:
        # rule B8/half-a-batch-is-kept
        position, new_end = (segment.size, offset) if found is None else (found[0], found[1].base_offset)
    # schedule 88/a-cut-takes-what-rotted-before-it
    if new_end < offset and (found is None or not _is_whole(log, segment, *found)):
        raise segment.damaged(position, f"a log cannot be cut at {offset}, inside of what has rotted", offset=new_end)
    _promise_less(log, new_end)  # rule B8/checkpoint-promises-what-is-cut
    # rule C2/snapshots-survive-a-cut, rule C2/offsets-move-before-producers
    names_changed = log.snapshots.delete_above(new_end)
    if len(log.producers):
        mark("producer-state-rolled-back")
        log.producers = log.snapshots.load(log.segments, new_end, now_ms)  # rule C2/producers-survive-a-cut
    while len(log.segments) > keep + 1:
        _delete_last_segment(log)
    if names_changed:
        log.disk.sync_dir(log.directory)
    segment.truncate(position, new_end - segment.base_offset)
    log.cache.forget(segment)
    log.unsynced.add(segment.file)
    log.epochs.truncate_from_end(new_end)  # rule B8/epochs-outlive-the-cut
    log.move_end(new_end)


def cut_whole(log: LogState, offset: int, now_ms: int) -> None:
    """Drop everything and begin at `offset`. Newest segments go first, so that a crash leaves a log without a gap.

    Raises DiskError; NoSpaceLeft with everything as it was.
    """
    if log.swap is not None:
        log.swap.settle()  # schedule 75/a-cut-forgets-the-swap
    _promise_less(log, 0)
    log.producers.clear()  # rule C2/starting-anew-keeps-producers
    log.snapshots.delete_above(-1)
    while log.segments:
        _delete_last_segment(log)
    while log.removed:
        delete_files(log.disk, log.directory, log.removed.pop().base_offset)
    log.epochs.clear()
    log.begin_segment(offset, now_ms)
    log.disk.sync_dir(log.directory)  # the new start is told to others as durable
    log.log_start_offset = Offset(offset)
    log.move_end(offset)
    log.durable_offset = log.log_end_offset
    log.durable_log_start_offset = log.log_start_offset  # the segment's name says it
    if log.on_begun_anew is not None:
        log.on_begun_anew()


def begin_earlier(log: LogState, offset: int, now_ms: int) -> None:
    """An empty log begins at `offset` after all, with the batch that its start lies inside of. Who wrote what lies
    before both stays known, durably (rule B24). Raises as `cut_whole`."""
    producers, told = log.producers, log.snapshots.has(log.log_start_offset)
    log.producers = ProducerStates()
    cut_whole(log, offset, now_ms)
    log.producers = producers
    if told:
        file = log.snapshots.write(offset, producers)
        try:
            log.disk.sync_now([file], [log.directory])
        finally:
            file.close()


def cut_start(log: LogState, offset: int) -> None:
    """Make `offset` the log start; whole segments below it move to `log.removed`, and their producer snapshots stay as
    long: a start that does not know of the new log start yet needs them (schedule 89). Raises DiskError."""
    log.log_start_offset = Offset(offset)
    log.epochs.truncate_from_start(offset)
    while len(log.segments) > 1 and log.bases[1] <= offset:
        segment = log.segments.pop(0)
        del log.bases[0]
        log.cache.forget(segment)
        # schedule 76/expired-segments-are-not-synced
        if not log.unsynced.close_later(segment.file):  # until the log start is durable a start needs it (schedule 76)
            segment.close()
        log.size_bytes -= segment.size
        log.removed.append(segment)  # schedule 89/snapshots-go-before-the-log-start-is-durable


def _is_whole(log: LogState, segment: Segment, position: int, header: BatchHeader) -> bool:
    """The batch is what was written; its header alone may claim offsets that are not its own."""
    data = pread_blocking(segment.file, header.size, position)
    return intact_end(data, header.base_offset, log.epochs, log.log_start_offset)[0] > 0


def _promise_less(log: LogState, offset: int) -> None:
    """The checkpoints that say more take room, before anything is cut; the rest of a cut gives room back. Without any
    the cut can be tried again (schedule 57)."""
    if log.on_cut_below is None:
        return
    try:
        log.on_cut_below(offset)
    except DiskFull as error:
        mark("cut-without-room")
        # schedule 57/full-disk-fences-a-truncation
        raise NoSpaceLeft(f"to write down that {log.topic_partition} is cut") from error


def _delete_last_segment(log: LogState) -> None:
    """Durably, before anything else changes: a segment that came back after a power cut would stand on other data."""
    segment = log.segments.pop()
    log.bases.pop()
    log.cache.forget(segment)
    log.unsynced.drop(segment.file)
    segment.close()
    delete_files(log.disk, log.directory, segment.base_offset)
    log.disk.sync_dir(log.directory)  # rule B8/cut-segments-come-back
