"""Snapshots of the metadata state as Kafka has them: `<offset, 20 digits>-<epoch, 10 digits>.checkpoint` (KIP-630).

A snapshot is a row of record batches: a control batch with the header, data batches, a control batch with the footer.
It exists once its name exists: bytes go to a `.part` file that is synced, renamed, and made durable by a sync of the
directory (rule A10, "freeze"). A damaged one is refused, never used in part (schedule 31).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import structlog

from strandline.controller.quorum.api import DAMAGE_ADVICE
from strandline.controller.quorum.control_records import (
    ControlType,
    control_type,
    read_voters,
    snapshot_footer,
    snapshot_header,
    voters_records,
)
from strandline.controller.raft.messages import OffsetAndEpoch, VotersChange
from strandline.log.batch import Record, build_batch, check_content, decode_records, iter_batches
from strandline.log.disk import Disk, File
from strandline.proto.errors import CorruptLogError, FatalError, KafkaError, ProtocolError
from strandline.proto.marks import mark
from strandline.proto.steps import ITEMS, Steps, whole
from strandline.proto.tasks import in_turns

log = structlog.get_logger("strandline.quorum")

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_PART = ".checkpoint.part"
_BATCH_BYTES_MAX = 128 * 1024
_KEPT = 2
"""The latest, and the one before it: the log reaches back to that, so that a follower a little behind needs none."""


class Snapshot(NamedTuple):
    """Content of a snapshot."""

    records: list[bytes]
    voters: VotersChange | None
    """Voters at its end; None where the log had not said so by then."""


def _nothing_more(_: Snapshot) -> Steps[None]:
    yield from ()


class SnapshotStore:
    """The snapshots in one directory.

    Invariants:
    - `ids` ascend in offset and do not descend in epoch; each names a complete, durable file.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        """Scan the directory and drop what an earlier process left half-written."""
        self._disk = disk
        self._directory = directory
        self._part: tuple[OffsetAndEpoch, File] | None = None
        self.ids: list[OffsetAndEpoch] = []
        for name in disk.listdir(directory):
            match = _NAME.fullmatch(name)
            if match is not None:
                self.ids.append(OffsetAndEpoch(int(match[1]), int(match[2])))
            elif name.endswith(_PART):
                disk.unlink(f"{directory}/{name}")
        self.ids.sort()

    @property
    def latest(self) -> OffsetAndEpoch | None:
        """The newest snapshot."""
        return self.ids[-1] if self.ids else None

    def path(self, snapshot: OffsetAndEpoch) -> str:
        """Path of a snapshot's file."""
        return f"{self._directory}/{snapshot.offset:020d}-{snapshot.epoch:010d}.checkpoint"

    def open_latest(self) -> Snapshot | None:
        """The content of the latest snapshot. A damaged one is dropped where an older one is whole, to which the log
        reaches back.

        Raises:
            CorruptLogError: no snapshot is whole; nothing was changed.
        """
        whole: Snapshot | None = None
        damage: CorruptLogError | None = None
        for snapshot in reversed(self.ids):
            try:
                whole = self.load(snapshot)
            except CorruptLogError as error:
                damage = damage or error  # rule A14/damaged-latest-snapshot-ends-the-start
                continue  # rule A14/damaged-latest-snapshot-ends-the-start/2
            break
        if whole is None and damage is not None:
            raise damage
        if damage is not None:
            log.warning("a damaged snapshot is dropped, an older one is whole", error=str(damage))
            mark("snapshot-damaged-dropped")
            while self.ids[-1] != snapshot:
                self._disk.unlink(self.path(self.ids.pop()))
            self._disk.sync_dir(self._directory)
        return whole

    # --- own snapshots -----------------------------------------------------------------------------------------------

    async def write(
        self,
        snapshot: OffsetAndEpoch,
        records: Iterable[bytes],
        *,
        timestamp_ms: int,
        voters: VotersChange | None = None,
        check: Callable[[Snapshot], Steps[None]] = _nothing_more,
    ) -> int:
        """Make a new snapshot durable, in many turns of the loop; returns its size in bytes.

        It is read back before it gets its name: the log below it goes on its word.

        Args:
            check: called with what was read back; what it raises, this raises.

        Raises:
            CorruptLogError: what was read back is no whole snapshot. As after an error of `check`, nothing has changed.
            DiskError
        """
        steps = encode_steps(records, epoch=snapshot.epoch, timestamp_ms=timestamp_ms, voters=voters)
        data = await in_turns(steps)
        part = f"{self._directory}/own{_PART}"
        file = self._disk.open(part, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            await self._disk.sync([file])  # rule A10/own-snapshot-not-synced
        finally:
            file.close()
        try:
            content = await in_turns(_load_steps(self._disk, part))
            await in_turns(check(content))  # rule A10/own-snapshot-is-trusted-unread
        except Exception:
            self._disk.unlink(part)
            raise
        self._freeze(part, snapshot)
        return len(data)

    def load(self, snapshot: OffsetAndEpoch) -> Snapshot:
        """The content of a snapshot.

        Raises:
            CorruptLogError: a batch does not parse, its CRC does not hold, or header or footer is missing.
        """
        return _load(self._disk, self.path(snapshot))

    def drop_old(self) -> OffsetAndEpoch:
        """Delete all but the last two; returns the oldest kept, below whose end the log may be deleted."""
        while len(self.ids) > _KEPT:
            self._disk.unlink(self.path(self.ids.pop(0)))
        return self.ids[0]

    def drop_before(self, snapshot: OffsetAndEpoch) -> None:
        """Delete every snapshot older than this one."""
        while self.ids and self.ids[0] < snapshot:
            self._disk.unlink(self.path(self.ids.pop(0)))

    async def read(self, snapshot: OffsetAndEpoch, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        """(size of the entire snapshot, bytes from `position`); None if there is no such snapshot (any more)."""
        if snapshot not in self.ids:
            return None
        try:
            return await self._read(snapshot, position, max_bytes)
        except FileNotFoundError:
            if snapshot in self.ids:
                raise
            return None

    async def _read(self, snapshot: OffsetAndEpoch, position: int, max_bytes: int) -> tuple[int, bytes]:
        file = self._disk.open(self.path(snapshot))
        try:
            size = file.size()
            length = max(0, min(max_bytes, size - position))
            data = file.pread_nowait(length, position)
            if data is None:
                data = await self._disk.pread_cold(file, length, position)
            return size, data
        finally:
            file.close()

    # --- fetched snapshots -------------------------------------------------------------------------------------------

    def store_chunk(self, snapshot: OffsetAndEpoch, position: int, data: bytes) -> None:
        """Write bytes of a snapshot that is being fetched; position 0 starts anew. Raises DiskError."""
        if self._part is None or self._part[0] != snapshot:
            self.forget_part()
            self._part = snapshot, self._disk.open(self.path(snapshot) + _PART, create=True)
        file = self._part[1]
        if position == 0:
            file.truncate(0)
        file.pwrite(data, position)

    def fetched(self, snapshot: OffsetAndEpoch) -> Snapshot:
        """The content of a snapshot that was fetched whole.

        Raises:
            CorruptLogError: it is damaged; the part is dropped and nothing else has changed.
            DiskError
        """
        part = self.path(snapshot) + _PART
        if self._part is None or self._part[0] != snapshot:
            raise CorruptLogError(part, 0, None, "no bytes of it were stored", "It will be fetched anew")
        try:
            return _load(self._disk, part)
        except CorruptLogError:
            self.forget_part()
            raise

    def install(self, snapshot: OffsetAndEpoch) -> None:
        """Make a fetched snapshot durable, once `fetched` has found it whole. Raises DiskError."""
        if self._part is None or self._part[0] != snapshot:
            raise FatalError(f"internal error: snapshot {snapshot} is installed, but was not fetched")
        _, file = self._part
        self._disk.sync_now([file])  # rule A10/fetched-snapshot-not-synced
        file.close()
        self._part = None
        self._freeze(self.path(snapshot) + _PART, snapshot)

    def forget_part(self) -> None:
        """Drop a half-fetched snapshot."""
        if self._part is not None:
            snapshot, file = self._part
            self._part = None
            file.close()
            self._disk.unlink(self.path(snapshot) + _PART)

    def _freeze(self, part: str, snapshot: OffsetAndEpoch) -> None:
        self._disk.rename(part, self.path(snapshot))
        self._disk.sync_dir(self._directory)  # rule A10/snapshot-name-not-synced
        if snapshot not in self.ids:
            self.ids.append(snapshot)
            self.ids.sort()


def encode_steps(
    records: Iterable[bytes], *, epoch: int, timestamp_ms: int, voters: VotersChange | None = None
) -> Steps[bytes]:
    """The bytes of a snapshot file. `timestamp_ms` is wall-clock time; 0 stands for the last contained record's."""
    build = partial(build_batch, leader_epoch=epoch)
    head = [snapshot_header(timestamp_ms, timestamp_ms)]
    said = [] if voters is None else voters_records(voters, timestamp_ms)
    if said:  # rule A11/snapshot-forgets-the-voters
        head += said
    out = build(head, base_offset=0, control=True)
    offset = len(head)
    run: list[Record] = []
    run_bytes = 0
    for number, value in enumerate(records, 1):
        if number % ITEMS == 0:  # rule A39/snapshots-are-encoded-in-one-turn
            yield
        if run and run_bytes + len(value) > _BATCH_BYTES_MAX:
            out += build(run, base_offset=offset)
            offset += len(run)
            run, run_bytes = [], 0
        run.append(Record(0, timestamp_ms, None, value))
        run_bytes += len(value)
    if run:
        out += build(run, base_offset=offset)
        offset += len(run)
    out += build([snapshot_footer(timestamp_ms)], base_offset=offset, control=True)
    return bytes(out)


encode_snapshot = whole(encode_steps)


def _load_steps(disk: Disk, path: str) -> Steps[Snapshot]:
    file = disk.open(path)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    values: list[bytes] = []
    voters: VotersChange | None = None
    controls: list[ControlType | None] = []
    position = 0
    try:
        for header, view in iter_batches(data):
            check_content(header, view)  # rule A10/snapshot-with-a-flipped-bit-is-loaded
            records = decode_records(view)
            if header.is_control:
                controls += [control_type(record) for record in records]
                voters = read_voters(records) or voters
            else:
                values += [record.value or b"" for record in records]
            if controls[:1] != [ControlType.SNAPSHOT_HEADER]:
                raise ProtocolError("it does not begin with a snapshot header")
            position += header.size
            if position < len(data) and len(values) > ITEMS:
                yield
    except (KafkaError, ProtocolError) as error:
        raise CorruptLogError(path, position, None, f"the snapshot is damaged: {error}", DAMAGE_ADVICE) from error
    if controls[-1:] != [ControlType.SNAPSHOT_FOOTER]:  # rule A10/snapshot-without-a-footer-is-loaded
        raise CorruptLogError(path, position, None, "the snapshot has no footer: it is incomplete", DAMAGE_ADVICE)
    return Snapshot(values, voters)


_load = whole(_load_steps)
