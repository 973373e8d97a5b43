"""The offset checkpoints of a log directory: what a start may rely on, and what it must find.

Recovery point and high watermark name only durable offsets. So below the recovery point nothing has to be scanned after
a crash, and a log that ends below either of them has lost records.

The cleaner's checkpoint proves nothing, but compaction believes it: it does not look below it for older values of a
key. Each entry names its topic, and is removed with the replica (rule B28).

All of them are Kafka's text files, which have no checksum: one flipped bit gives a well-formed offset that is wrong, by
which records are deleted or missed. So their contents are also in one more file, the copy, under a checksum (rule B31,
schedule 99). A start that finds a checkpoint damaged uses the copy. If both can be read and differ, one of them is
older or damaged, or the node died between the two writes. Then neither offset is proven, and the lower one counts, as
it promises and deletes less. An older build knows nothing of the copy, and its directories have none.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from crc32c import crc32c

from strandline.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    Cleaned,
    decode_cleaned,
    decode_offsets,
    encode_cleaned,
    encode_offsets,
)
from strandline.log.disk import Disk, DiskFull, read_file, write_synced_now
from strandline.log.epochs import LeaderEpochs
from strandline.log.partition_log import PartitionLog
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import Offset, TopicId, TopicPartition
from strandline.proto.marks import mark

log = structlog.get_logger("strandline.log")

CHECKPOINT_COPY = "offset-checkpoints-copy"

_VERSION = b"0"
_ADVICE = "It is written anew with the next checkpoint."


@dataclass(frozen=True, slots=True)
class LastLife:
    """Knowledge of the state in which the last process left a log."""

    clean: bool = False
    """True if the clean-shutdown marker was there."""
    same_boot: bool = False
    """True if the machine has not rebooted since: every completed write is still there."""
    recovery_point: int = 0
    """Recovery point of the checkpoint: everything below it was durable."""
    high_watermark: int = 0
    """High watermark of the checkpoint. Records below it were durable, too, though perhaps not yet the names and epochs
    that let a scan begin there."""
    log_start_offset: int = 0
    """Log start on which checkpoint and copy agree; the lower one if they differ."""
    start_claimed: int = 0
    """Higher log start, named by one of the two only: it counts as far as the log's leader epochs begin no earlier."""
    start_is_known: bool = False
    """True if there is a checkpoint of log starts: a log that it does not name begins at 0."""
    short_is_refused: bool = True
    """True if a whole log that ends below `recovery_point` is damaged; else the caller judges by its end."""

    @property
    def durable_end(self) -> int:
        """Offset below which everything was durable once, so that any damage there is a loss."""
        return max(self.recovery_point, self.high_watermark)  # rule E5/committed-once-is-cut

    def start_by(self, epochs: LeaderEpochs | None) -> int:
        """Return the log start that two of three files agree on: checkpoint, copy, and the leader epochs, which begin
        there."""
        entries = epochs.entries() if epochs is not None else []
        # rule B31/log-starts-are-believed
        return max(self.log_start_offset, min(self.start_claimed, entries[0][1] if entries else 0))

    def has_lost_start(self, base_offset: int) -> bool:
        """True if a log whose first segment begins at `base_offset` has lost an earlier segment (schedule 48).

        After a clean stop no log begins after its log start. After any other stop it may: it was cut whole and begins
        anew. But then no checkpoint promises anything of it until the new log start is durable
        (`OffsetCheckpoints.raise_start`).
        """
        # schedule 48/first-segment-may-vanish-before-a-kill
        held = self.clean or self.durable_end > self.log_start_offset
        return held and self.start_is_known and base_offset > max(self.log_start_offset, self.start_claimed)


class OffsetCheckpoints:
    """Recovery points, high watermarks, log starts and compacted offsets of logs, in memory and on disk.

    Invariants:
    - none is above what is durable: truncations lower them first;
    - a recovery point or high watermark above a log's start is never durable without that log start: a first segment
      that begins later then proves that one is missing (`LastLife.has_lost_start`);
    - an entry of a partition that this node was told to delete does not prove that it is missing: `forget`.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        """Read the checkpoints of a directory. Raises DiskError."""
        self._disk = disk
        self._directory = directory
        self._written: dict[str, bytes] = {}
        self._must_forget = False
        self.changes = 0
        """Number of changes: offsets lowered or forgotten, and checkpoints written here. Contents gathered before a
        change must not be written after it."""
        self._told: dict[TopicPartition, int] = {}
        believed = read_checkpoints(disk, directory)
        self.high_watermarks = believed.offsets.get(HIGH_WATERMARKS, {})
        self.recovery_points = believed.offsets.get(RECOVERY_POINTS, {})
        self.log_starts = believed.offsets.get(LOG_STARTS, {})
        self.starts_claimed = believed.starts_claimed
        """Log starts named by one file only (`LastLife.start_claimed`). An entry of a log that could not be opened
        stays."""
        self.starts_are_known = LOG_STARTS in believed.offsets
        """True if there is a checkpoint of log starts: a log that it does not name begins at 0."""
        self.in_doubt = believed.in_doubt
        """True if it is not known what was durable: logs may lack their ends, and nothing proves it."""
        self.cleaned = {tp: one.offset for tp, one in believed.cleaned.items()}
        self._cleaned_topics: dict[TopicPartition, TopicId] = {tp: one.topic_id for tp, one in believed.cleaned.items()}
        self._copied = {name: encode_offsets(offsets) for name, offsets in believed.offsets.items()}
        """Content of the copy of the checkpoints, as last passed to the disk."""
        if self.cleaned:
            self._copied[CLEANER_OFFSETS] = self._encode_cleaned()

    def durable_end(self, tp: TopicPartition) -> int:
        """Return the offset below which the log was durable; a log that ends below it has lost records."""
        return max(self.recovery_points.get(tp, 0), self.high_watermarks.get(tp, 0))

    def cleaned_to(self, plog: PartitionLog) -> Offset:
        """Return the offset up to which a log was compacted, when it is opened. An entry for another topic of its name,
        or beyond the log's end, is dropped; then call `write_forgotten`."""
        tp = plog.topic_partition
        offset = self.cleaned.get(tp, 0)
        # rule B28/any-topic-of-the-name-was-compacted, rule B28/compacted-by-name, rule B28/compacted-beyond-the-end
        if self._cleaned_topics.get(tp) == plog.topic_id and 0 <= offset <= plog.log_end_offset:
            return Offset(offset)
        self._must_forget |= self.cleaned.pop(tp, 0) != 0
        return Offset(0)

    def proven(self) -> list[TopicPartition]:
        """Return the partitions of which the checkpoints prove that they held records."""
        named = self.recovery_points.keys() | self.high_watermarks.keys()
        return sorted(tp for tp in named if self.durable_end(tp))

    def tell(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Take the replicas' present high watermarks; `note` decides how much of them is written."""
        self._told.update(high_watermarks)

    def note(self, tp: TopicPartition, plog: PartitionLog) -> None:
        """Record the offset up to which a log is durable. More may be committed (under flush.policy=replicate, and on a
        follower that catches up); a high watermark that is too low only costs a moment after an election."""
        point = plog.recovery_point
        if point is not None:
            self.recovery_points[tp] = point
        self.note_start(plog)
        # rule B28/any-topic-of-the-name-was-compacted/3
        self.cleaned[tp], self._cleaned_topics[tp] = plog.cleaned_to, plog.topic_id
        if tp in self._told:
            # schedule 48/high-watermark-above-what-is-durable
            self.high_watermarks[tp] = min(self._told[tp], plog.durable_offset)

    def note_start(self, plog: PartitionLog) -> None:
        """Record the present log start."""
        self.log_starts[plog.topic_partition] = plog.log_start_offset
        self.starts_claimed.pop(plog.topic_partition, None)

    def gather(self, names: Iterable[str], kept: Container[TopicPartition]) -> dict[str, bytes]:
        """Return the changed contents of the checkpoints `names`, for the `CheckpointWriter`."""
        self._keep(kept)
        by_name = self._by_name()
        return self._changed({name: by_name[name] for name in names})

    def replacing(self, data: Mapping[str, bytes]) -> None:
        """Take note that the caller is replacing these checkpoints: until `replaced`, the disk may have either
        content."""
        for name in data:
            self._written.pop(name, None)
        self._hand_over(data)

    def replaced(self, data: Mapping[str, bytes]) -> None:
        """Take note that these contents are durable."""
        self._written.update(data)

    def write(self, kept: Container[TopicPartition]) -> None:
        """Write the checkpoints of the partitions `kept`, if they have changed. Raises DiskError."""
        self._keep(kept)
        self._write(self._by_name())

    def _keep(self, kept: Container[TopicPartition]) -> None:
        self.high_watermarks = {tp: at for tp, at in self.high_watermarks.items() if tp in kept}
        self.recovery_points = {tp: at for tp, at in self.recovery_points.items() if tp in kept and at}
        self.log_starts = {tp: at for tp, at in self.log_starts.items() if tp in kept and at}
        self.starts_claimed = {tp: at for tp, at in self.starts_claimed.items() if tp in kept}
        self.cleaned = {tp: at for tp, at in self.cleaned.items() if tp in kept and at}

    def lower(self, plog: PartitionLog, offset: int) -> None:
        """Lower a log's checkpoints, as it is about to be cut. A higher promise would make the next start miss the cut
        records, a higher log start would hide later ones. Raises DiskError; DiskFull if it must be tried again."""
        tp = plog.topic_partition
        if self._told.get(tp, 0) > offset:
            self._told[tp] = offset
        by_name = self._by_name()
        starts = {LOG_STARTS: by_name.pop(LOG_STARTS)}  # rule B28/what-was-cut-counts-as-compacted
        # schedule 48/log-start-is-lowered-first
        for checkpoints in (by_name, starts):  # one after the other: see the invariants
            # schedule 48/cut-keeps-the-high-watermark
            promising = {name: offsets for name, offsets in checkpoints.items() if offsets.get(tp, 0) > offset}
            before = {name: offsets[tp] for name, offsets in promising.items()}
            for offsets in promising.values():
                offsets[tp] = offset
            if promising:
                self.changes += 1  # schedule 48/a-promise-is-lowered-and-not-counted
                try:
                    self._write(promising)
                except DiskFull:
                    for name, offsets in promising.items():
                        # schedule 57/cut-forgets-what-is-promised
                        offsets[tp] = before[name]  # the files still say so: the next attempt has to lower them
                    raise

    def raise_start(self, plog: PartitionLog) -> None:
        """Write the higher start of a log that begins anew; durable before any checkpoint promises something of it.

        Raises DiskError; DiskFull if it is left to the next checkpoint.
        """
        self.note_start(plog)
        self.changes += 1
        self._write({LOG_STARTS: self.log_starts})

    def forget(self, tp: TopicPartition) -> bool:
        """Forget a partition that was deleted or is made anew. True if `write_forgotten` must be called."""
        self.changes += 1  # schedule 48/a-promise-is-forgotten-and-not-counted
        self._told.pop(tp, None)
        self.starts_claimed.pop(tp, None)
        # rule B28/any-topic-of-the-name-was-compacted/2, rule B28/what-was-compacted-outlives-its-log
        for offsets in self._by_name().values():
            self._must_forget |= offsets.pop(tp, 0) > 0
        return self._must_forget

    def write_forgotten(self) -> None:
        """Make forgotten partitions durable, all in one write. Raises DiskError."""
        if self._must_forget:
            self._must_forget = False
            by_name = self._by_name()
            starts = by_name.pop(LOG_STARTS)
            try:
                self._write(by_name)
                self._write({LOG_STARTS: starts})
            except DiskFull:
                self._must_forget = True
                raise

    def _by_name(self) -> dict[str, dict[TopicPartition, int]]:
        return {
            HIGH_WATERMARKS: self.high_watermarks,
            RECOVERY_POINTS: self.recovery_points,
            LOG_STARTS: self.log_starts,
            CLEANER_OFFSETS: self.cleaned,
        }

    def _changed(self, checkpoints: Mapping[str, Mapping[TopicPartition, int]]) -> dict[str, bytes]:
        """Return the encoded contents of the checkpoints that differ from the disk's, and then the copy of all."""
        encoded = {
            name: self._encode_cleaned() if name == CLEANER_OFFSETS else encode_offsets(values)
            for name, values in checkpoints.items()
        }
        copied = dict(encoded)  # rule B31/one-files-word-is-copied
        if self.starts_claimed and LOG_STARTS in encoded:  # what one file alone says does not become what two say
            encoded[LOG_STARTS] = encode_offsets({**self.log_starts, **self.starts_claimed})
        changed = {name: data for name, data in encoded.items() if self._written.get(name) != data}
        if not changed:
            return {}
        copied = {name: data for name, data in copied.items() if name in changed}
        return {**changed, CHECKPOINT_COPY: encode_copy(self._copied | copied)}

    def _hand_over(self, data: Mapping[str, bytes]) -> None:
        if CHECKPOINT_COPY in data:
            self._copied = decode_copy(CHECKPOINT_COPY, data[CHECKPOINT_COPY])

    def _encode_cleaned(self) -> bytes:
        return encode_cleaned({tp: Cleaned(self._cleaned_topics[tp], offset) for tp, offset in self.cleaned.items()})

    def _write(self, checkpoints: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Replace the changed checkpoints as `write_file_durably` does, but with one sync for all."""
        changed = self._changed(checkpoints)
        if not changed:
            return
        self.changes += 1
        write_synced_now(self._disk, {f"{self._directory}/{name}.tmp": data for name, data in changed.items()})
        self._hand_over(changed)
        for name in changed:
            self._disk.rename(f"{self._directory}/{name}.tmp", f"{self._directory}/{name}")
        self._disk.sync_dir(self._directory)
        self._written.update(changed)


def encode_copy(checkpoints: Mapping[str, bytes]) -> bytes:
    """Encode the copy: version and checksum, then the name, size and bytes of each checkpoint."""
    body = b"".join(b"%s %d\n%s" % (name.encode(), len(data), data) for name, data in sorted(checkpoints.items()))
    return b"%s %d\n%s" % (_VERSION, crc32c(body), body)


def decode_copy(path: str, data: bytes) -> dict[str, bytes]:
    """Return the contents encoded by `encode_copy`, by name of the checkpoint. Raises CorruptLogError."""
    head, _, body = data.partition(b"\n")
    if head != b"%s %d" % (_VERSION, crc32c(body)):
        raise CorruptLogError(path, 0, None, "its checksum does not hold", _ADVICE)
    found: dict[str, bytes] = {}
    while body:
        line, _, body = body.partition(b"\n")
        name, _, size = line.decode().partition(" ")
        found[name], body = body[: int(size)], body[int(size) :]
    return found


class Believed(NamedTuple):
    """Offsets that the checkpoints of one directory and their copy give together.

    Attributes:
        offsets: offsets by checkpoint; the lower one if the two files differ. A checkpoint that is missing here is
            missing on disk, with its copy.
        starts_claimed: log starts named by one file only, all higher than those in `offsets`. The log's own leader
            epochs may confirm them.
        cleaned: offsets up to which logs were compacted, as far as both files agree; the rest is compacted again.
        in_doubt: True if a checkpoint and its copy are both damaged: what was durable is not known.
    """

    offsets: dict[str, dict[TopicPartition, int]]
    starts_claimed: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, Cleaned]
    in_doubt: bool


def read_checkpoints(disk: Disk, directory: str) -> Believed:
    """Compare the checkpoints of a directory with their copy. Raises DiskError."""
    copies = _read_copy(disk, directory)
    believed = Believed({}, {}, {}, False)
    for name in OFFSET_CHECKPOINTS:
        path = f"{directory}/{name}"
        if name == CLEANER_OFFSETS:
            believed.cleaned.update(_read_cleaned(disk, path, copies.get(name)))
            continue
        there = disk.exists(path)
        # rule B31/a-damaged-checkpoint-has-no-copy
        copy = None if name not in copies else decode_offsets(path, copies[name])
        own = _read_own(disk, path, has_copy=copy is not None) if there else None
        if own is not None and copy is not None and own != copy:
            _tell_difference(path, own, copy)
        if own is not None and name == LOG_STARTS:
            highest = {tp: max(own.get(tp, 0), (copy or {}).get(tp, 0)) for tp in own.keys() | (copy or {}).keys()}
            believed.offsets[name] = lower = _lower(own, copy or {})
            believed.starts_claimed.update((tp, at) for tp, at in highest.items() if at > lower.get(tp, 0))
        elif own is not None or copy is not None:
            believed.offsets[name] = copy or {} if own is None else own if copy is None else _lower(own, copy)
        elif there and name != LOG_STARTS:
            believed = believed._replace(in_doubt=True)
    return believed


def _read_cleaned(disk: Disk, path: str, copy: bytes | None) -> dict[TopicPartition, Cleaned]:
    if not disk.exists(path):
        return {}
    copied = {} if copy is None else decode_cleaned(path, copy)
    try:
        own = decode_cleaned(path, read_file(disk, path))
    except CorruptLogError as error:
        mark("checkpoint-damaged")
        log.warning("a checkpoint is damaged: what its copy does not say is compacted again", error=str(error))
        return copied
    both = {
        tp: min(own[tp], copied[tp]) for tp in own.keys() & copied.keys() if own[tp].topic_id == copied[tp].topic_id
    }
    if both != copied or both != own:
        mark("checkpoints-differ")
        log.warning("one file alone says how far some logs were compacted; they are compacted again", file=path)
    return both


def _tell_difference(path: str, own: Mapping[TopicPartition, int], copy: Mapping[TopicPartition, int]) -> None:
    mark("checkpoints-differ")
    differ = sorted(str(tp) for tp in own.keys() | copy.keys() if own.get(tp, 0) != copy.get(tp, 0))
    log.warning(
        "a checkpoint and its copy differ: the lower offset counts, and both are written anew",
        file=path,
        partitions=len(differ),
        first=differ[:3],
    )


def _lower(own: Mapping[TopicPartition, int], copy: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: min(own[tp], copy[tp]) for tp in own.keys() & copy.keys()}  # rule B31/the-higher-promise-counts


def _read_copy(disk: Disk, directory: str) -> dict[str, bytes]:
    path = f"{directory}/{CHECKPOINT_COPY}"
    if not disk.exists(path):
        return {}
    try:
        return decode_copy(path, read_file(disk, path))
    except CorruptLogError as error:
        mark("checkpoint-copy-damaged")
        log.warning("the copy of the checkpoints is damaged, and is written anew", error=str(error))
        return {}


def _read_own(disk: Disk, path: str, *, has_copy: bool) -> dict[TopicPartition, int] | None:
    try:
        return decode_offsets(path, read_file(disk, path))
    except CorruptLogError as error:
        mark("checkpoint-damaged")
        if has_copy:
            log.warning("a checkpoint is damaged, and is built anew from its copy", error=str(error))
        else:
            log.error("a checkpoint is damaged and has no copy: the logs alone say what it said", error=str(error))
        return None
