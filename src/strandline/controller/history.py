"""The metadata of a data directory, read without a node: every record of the log, and the image at any of them.

Nothing is changed, so that the directory may be a running node's: its log may grow meanwhile, and an end that is not
whole yet counts as not there. A directory does not say which of its last records are committed: all but those behind
`MetadataDirectory.held` are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import MetadataRecord
from strandline.controller.metadata.shown import Flaw
from strandline.controller.metadata.snapshot import load_image
from strandline.controller.metadata.table import decode_record, decode_records
from strandline.controller.quorum.control_records import ControlType, control_type, read_leader, read_voters
from strandline.controller.quorum.quorum import DIRECTORY
from strandline.controller.quorum.snapshots import SnapshotStore
from strandline.controller.quorum.state_file import PROMISE, Remembered, StateFile
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey, VotersChange
from strandline.log.batch import Record
from strandline.log.disk import Disk
from strandline.log.dump import DumpedBatch, Problem, dump_log
from strandline.log.log_dir import read_meta_properties
from strandline.log.segment import LOG_SUFFIX
from strandline.proto.errors import ConfigError, CorruptLogError, FatalError, StrandlineError
from strandline.proto.ids import NodeId


@dataclass(frozen=True, slots=True)
class Batch:
    """One atomic batch of the metadata log.

    Attributes:
        records: those of the metadata; none in a batch of the quorum's own.
        leader: the controller whose epoch begins here.
        voters: who votes from here on.
    """

    base_offset: int
    last_offset: int
    epoch: int
    timestamp_ms: int
    records: tuple[bytes, ...] = ()
    leader: NodeId | None = None
    voters: VotersChange | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One record where it stands, between the images before and after its batch.

    Attributes:
        controller: who leads the quorum in its epoch; None where the log begins behind that.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    controller: NodeId | None
    record: MetadataRecord
    before: MetadataImage
    after: MetadataImage


class MetadataDirectory:
    """The metadata in a node's main log directory, or in its `__cluster_metadata-0`."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Look what is there. `disk` keeps what is written to it to itself (`OverlayDisk`).

        Raises:
            ConfigError: it holds no metadata.
            DiskError
        """
        inner = path.rpartition("/")[2] == DIRECTORY
        self.path = path.rpartition("/")[0] if inner else path
        self.directory = path if inner else f"{path}/{DIRECTORY}"
        self._disk = disk
        if not disk.exists(self.directory):
            expected = f"a node's main log directory, with {DIRECTORY} in it; of several in log.dirs one has it"
            raise ConfigError("DIRECTORY", path, expected)
        try:
            self.cluster_id = read_meta_properties(disk, self.path).cluster_id
        except (StrandlineError, OSError):
            self.cluster_id = ""
        self._snapshots = SnapshotStore(disk, self.directory)
        self._segments = sorted(name for name in disk.listdir(self.directory) if name.endswith(LOG_SUFFIX))
        self.problems: list[Flaw] = []
        """Files that could not be read so far."""

    @property
    def snapshots(self) -> tuple[OffsetAndEpoch, ...]:
        """Snapshots, sorted by the offset at which they end."""
        return tuple(self._snapshots.ids)

    @property
    def held(self) -> int:
        """End of what is known to be committed, and on this disk; 0: nothing is known."""
        best: Remembered | None = None
        for state in (StateFile(self._disk, self.path, PROMISE), StateFile(self._disk, self.directory)):
            try:
                found = state.read()
            except (CorruptLogError, OSError):
                continue
            if found is not None and (best is None or found.sequence > best.sequence):
                best = found
        return 0 if best is None else best.held.offset

    def batches(self) -> Iterator[Batch]:
        """All batches of the log, in order. What does not parse is left out, and is in `problems` then."""
        expected = -1
        for number, name in enumerate(self._segments):
            is_last = number == len(self._segments) - 1
            path = f"{self.directory}/{name}"
            damaged: Problem | None = None
            for item in dump_log(self._disk, path, decode=True):
                if isinstance(item, Problem):
                    damaged = damaged or item
                elif isinstance(item, DumpedBatch):
                    if damaged is not None:
                        self._note(name, damaged.reason, f"byte {damaged.position}")
                        damaged = None
                    batch = _batch(item)
                    if 0 <= expected != batch.base_offset:
                        self._note(name, f"offset {batch.base_offset} follows where {expected} is to come")
                    expected = batch.last_offset + 1
                    yield batch
            if damaged is not None and not is_last:  # the end of the last one may be written just now, or torn
                self._note(name, damaged.reason, f"byte {damaged.position}")

    def _note(self, name: str, found: str, place: str = "") -> None:
        where = f"{DIRECTORY}/{name}" + (f" ({place})" if place else "")
        self.problems.append(Flaw(where, found, _DAMAGED))

    @property
    def beginning(self) -> OffsetAndEpoch | None:
        """The snapshot on which the log goes on; None where it begins with the cluster."""
        first = self._first_offset()
        return None if first == 0 else next((one for one in self.snapshots if one.offset >= first), None)

    def _base(self) -> MetadataImage:
        beginning = self.beginning
        return MetadataImage(self.cluster_id) if beginning is None else self.image_of(beginning)

    def image_of(self, snapshot: OffsetAndEpoch) -> MetadataImage:
        """The image that a snapshot holds. Raises CorruptLogError, FatalError."""
        content = self._snapshots.load(snapshot)
        return load_image(self.cluster_id, decode_records(content.records), snapshot.offset, snapshot.epoch)

    def voters(self, at: int | None = None) -> tuple[ReplicaKey, ...] | None:
        """Voters at an offset, or at the end of the log; None if the directory does not contain them."""
        said: VotersChange | None = None
        for one in self.snapshots:
            if at is None or one.offset - 1 <= at:
                said = self._snapshots.load(one).voters or said
        for batch in self.batches():
            if batch.voters is not None and (at is None or batch.base_offset <= at):
                said = batch.voters
        return None if said is None else said.voters

    def image(self, at: int | None = None) -> MetadataImage:
        """The image at an offset, or at the end of the log.

        Raises:
            ConfigError: the log reaches back to no such offset, or not that far.
            CorruptLogError, FatalError: it cannot be read, or not be replayed.
        """
        useful = [one for one in self.snapshots if at is None or one.offset - 1 <= at]
        image = self.image_of(useful[-1]) if useful else MetadataImage(self.cluster_id)
        if at is not None and not useful and self._first_offset() > 0:
            oldest = self.snapshots[0].offset - 1 if self.snapshots else self._first_offset()
            raise ConfigError("--at", at, f"an offset from {oldest} on: what lies before is deleted")
        end = image.offset
        for batch in self.batches():
            end = max(end, batch.last_offset if at is None else min(at, batch.last_offset))
            if batch.base_offset <= image.offset or not batch.records:
                continue
            if at is not None and batch.last_offset > at:
                if batch.base_offset <= at:
                    raise ConfigError(
                        "--at", at, f"the end of a batch, as {batch.base_offset - 1} or {batch.last_offset}"
                    )
                break
            image = _replayed(image, batch)[1]
        if at is not None and at > end:
            raise ConfigError("--at", at, f"an offset up to {end}, where this log ends")
        return image

    def _first_offset(self) -> int:
        return int(self._segments[0].partition(".")[0]) if self._segments else 0

    def changes(self) -> Iterator[Change]:
        """Every record of the log, oldest first, from the oldest snapshot that the log reaches back to.

        Raises:
            CorruptLogError, FatalError: it cannot be read, or not be replayed.
        """
        image = self._base()
        controllers: dict[int, NodeId] = {}
        for batch in self.batches():
            if batch.leader is not None:
                controllers[batch.epoch] = batch.leader
            if batch.base_offset <= image.offset or not batch.records:
                continue
            records, after = _replayed(image, batch)
            for number, record in enumerate(records):
                yield Change(
                    batch.base_offset + number,
                    batch.epoch,
                    batch.timestamp_ms,
                    controllers.get(batch.epoch),
                    record,
                    image,
                    after,
                )
            image = after

    def check(self) -> Iterator[Flaw]:
        """Replay everything, and name what cannot be: damage, gaps, records that do not fit, snapshots that say
        something else than the log does. The image is judged by `metadata.check`."""
        images: dict[int, MetadataImage] = {}
        for snapshot in self.snapshots:
            try:
                images[snapshot.offset - 1] = self.image_of(snapshot)
            except (CorruptLogError, FatalError) as error:
                yield Flaw(f"snapshot {snapshot.offset}-{snapshot.epoch}", str(error), _DAMAGED)
        beginning = self.beginning
        image = MetadataImage(self.cluster_id)
        if beginning is not None:
            if beginning.offset - 1 not in images:
                return  # the log goes on from what cannot be read
            image = images[beginning.offset - 1]
        epoch = -1
        for batch in self.batches():
            if batch.epoch < epoch:
                yield Flaw(f"offset {batch.base_offset}", f"epoch {batch.epoch} comes after epoch {epoch}", _DAMAGED)
            epoch = max(epoch, batch.epoch)
            if batch.records and batch.base_offset > image.offset:
                try:
                    _, image = _replayed(image, batch)
                except FatalError as error:
                    yield Flaw(f"offset {batch.base_offset}", str(error), _DAMAGED)
                    return
            expected = images.get(batch.last_offset)
            if expected is not None and batch.records and not diff(expected, image).empty:
                found = "it is not what the log says up to there"
                yield Flaw(f"snapshot {batch.last_offset + 1}-{batch.epoch}", found, _DAMAGED)
        yield from self.problems


_DAMAGED = (
    "compare with the other controllers (`strandline metadata check` on a copy of theirs). If a majority of them is "
    "well: stop this node, move its __cluster_metadata-0 away, and start it again; a controller gets its vote back by "
    "`strandline quorum restore-vote`"
)


def _replayed(image: MetadataImage, batch: Batch) -> tuple[list[MetadataRecord], MetadataImage]:
    """Apply a batch to an image. Raises FatalError if a record does not fit it."""
    records = [decode_record(data) for data in batch.records]
    delta = MetadataDelta(image)
    delta.apply_all(records)
    return records, delta.image(batch.last_offset, batch.epoch, batch.timestamp_ms)


def _batch(item: DumpedBatch) -> Batch:
    header, records = item.header, item.records or []
    common = (header.base_offset, header.last_offset, header.leader_epoch, header.max_timestamp)
    if not header.is_control:
        return Batch(*common, records=tuple(record.value or b"" for record in records))
    return Batch(*common, leader=_leader(records), voters=read_voters(records))


def _leader(records: list[Record]) -> NodeId | None:
    for record in records:
        if control_type(record) is ControlType.LEADER_CHANGE:
            return read_leader(record.value or b"")
    return None
