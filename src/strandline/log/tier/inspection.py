"""Inspection of an object store without a cluster: by keys and sidecars, and by every byte.

Only the metadata log says which segments count: of two that overlap, one may be a failed copy that was repeated. So
offsets that are there twice are not damage; but offsets missing between two segments are, and so is an object that does
not match its sidecar.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from crc32c import crc32c

from strandline.log.batch import parse_header
from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.epochs import LeaderEpochs, intact_end, why_not_intact
from strandline.log.object_store import ObjectStore
from strandline.log.tier.names import LOG_SUFFIX, SIDECAR_SUFFIX, ObjectName, parse_key, segment_key
from strandline.log.tier.sidecar import SidecarHeader, decode_producers, load_head, load_sidecar
from strandline.proto.errors import CorruptLogError, KafkaError, ObjectMissing

CHUNK_BYTES = 4 << 20
_AT_ONCE = 4
_SIDECARS_AT_ONCE = 16

Report = Callable[[int, int], None]
"""Called with the amount that is done, and the whole amount."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The two objects of one copy of a segment.

    Attributes:
        name: parsed key of the log object, even if that does not exist.
        log_bytes, sidecar_bytes: sizes of the objects; -1 if one does not exist.
        header: content of the sidecar; None if it was not read, or cannot be.
    """

    name: ObjectName
    log_bytes: int = -1
    sidecar_bytes: int = -1
    header: SidecarHeader | None = None

    @property
    def log_key(self) -> str:
        """Key of the log object."""
        return segment_key(self.name.prefix, self.name.base_offset, self.name.segment_id, LOG_SUFFIX)

    @property
    def sidecar_key(self) -> str:
        """Key of the sidecar."""
        return segment_key(self.name.prefix, self.name.base_offset, self.name.segment_id, SIDECAR_SUFFIX)


@dataclass(frozen=True, slots=True)
class Flaw:
    """One flaw: something wrong with an object.

    Attributes:
        object: key of the object; for a gap, the prefix of the partition's keys.
        position, offset: place in the object; -1 if it does not apply.
    """

    object: str
    found: str
    position: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Inspected:
    """Result of an inspection.

    Attributes:
        unfinished: number of sidecars without a log: unfinished copies, which do no harm.
        foreign: number of objects whose keys are not ours.
    """

    segments: tuple[StoredSegment, ...]
    unfinished: int
    foreign: int
    flaws: tuple[Flaw, ...]


async def inspect_store(
    store: ObjectStore, *, topic: str | None, every_byte: bool, report: Report, prefix: str = ""
) -> Inspected:
    """Inspect all segments of the store (only those of topics named `topic`, and of keys that begin with `prefix`) by
    their sidecars and, with `every_byte`, by all of their records.

    Raises StoreError if the store does not answer.
    """
    found, foreign = await _listed(store, prefix, topic)
    complete = [segment for segment in found if segment.log_bytes >= 0 and segment.sidecar_bytes >= 0]
    flaws = _without_sidecar(found)
    total = sum(segment.log_bytes if every_byte else 1 for segment in complete)
    done = 0
    room = asyncio.Semaphore(_AT_ONCE if every_byte else _SIDECARS_AT_ONCE)

    def went(amount: int) -> None:
        nonlocal done
        done += amount
        report(done, total)

    async def look(segment: StoredSegment) -> tuple[StoredSegment, Flaw | None] | None:
        async with room:
            try:
                return await _looked_at(store, segment, went if every_byte else None)
            except ObjectMissing:
                return None  # retention or the reaper has taken it meanwhile
            finally:
                if not every_byte:
                    went(1)

    looked = [seen for seen in await asyncio.gather(*map(look, complete)) if seen is not None]
    flaws += [flaw for _, flaw in looked if flaw is not None]
    segments = tuple(segment for segment, _ in looked)
    return Inspected(
        segments=segments,
        unfinished=sum(segment.log_bytes < 0 for segment in found),
        foreign=foreign,
        flaws=(*flaws, *_gaps(segment for segment, flaw in looked if flaw is None or segment.header is not None)),
    )


async def _listed(store: ObjectStore, prefix: str, topic: str | None) -> tuple[list[StoredSegment], int]:
    found: dict[ObjectName, StoredSegment] = {}
    foreign = 0
    async for item in store.list(prefix):
        name = parse_key(item.key)
        if name is None:
            foreign += 1
            continue
        if topic is not None and name.topic != topic:
            continue
        of_log = replace(name, suffix=LOG_SUFFIX)
        segment = found.get(of_log) or StoredSegment(of_log)
        if name.suffix == LOG_SUFFIX:
            found[of_log] = replace(segment, log_bytes=item.size_bytes)
        else:
            found[of_log] = replace(segment, sidecar_bytes=item.size_bytes)
    return sorted(found.values(), key=lambda segment: (segment.name.prefix, segment.name.base_offset)), foreign


def _without_sidecar(found: list[StoredSegment]) -> list[Flaw]:
    """Return logs without a sidecar, which cannot be read. Those before all others are segments being deleted."""
    flaws = []
    for _, partition in groupby(found, key=lambda segment: segment.name.prefix):
        front = True
        for segment in partition:
            front = front and (segment.sidecar_bytes < 0 or segment.log_bytes < 0)
            if segment.sidecar_bytes < 0 and not front:
                flaws.append(Flaw(segment.log_key, "its sidecar is missing: it cannot be read"))
    return flaws


async def _looked_at(
    store: ObjectStore, segment: StoredSegment, went: Callable[[int], None] | None
) -> tuple[StoredSegment, Flaw | None]:
    try:
        header = await _read_sidecar(store, segment, whole=went is not None)
    except CorruptLogError as error:
        return segment, Flaw(segment.sidecar_key, error.reason, error.position)
    segment = replace(segment, header=header)
    name = segment.name
    said = (header.cluster_id, header.topic, header.topic_id, header.partition)
    if said != (name.cluster_id, name.topic, name.topic_id, name.partition):
        return segment, Flaw(segment.sidecar_key, "it is the sidecar of another partition than its key says")
    if not header.base_offset <= name.base_offset < header.end_offset:
        return segment, Flaw(segment.sidecar_key, "it is the sidecar of other offsets than its key says")
    if header.size_bytes != segment.log_bytes:
        return segment, Flaw(segment.log_key, f"it has {segment.log_bytes} bytes instead of {header.size_bytes}")
    return segment, None if went is None else await _read_through(store, segment.log_key, header, went)


async def _read_sidecar(store: ObjectStore, segment: StoredSegment, *, whole: bool) -> SidecarHeader:
    """Read a sidecar's header; with `whole`, also check its producers. Raises CorruptLogError, StoreError."""
    key = segment.sidecar_key
    sidecar = await load_sidecar(store.get, key)
    if whole:
        head = await load_head(store.get, key)
        if head.size_bytes != segment.sidecar_bytes:
            raise CorruptLogError(key, 0, None, f"it has not the {head.size_bytes} bytes that it says", "")
        if head.lengths[3]:
            decode_producers(head, await store.get(key, head.indexes_end, head.size_bytes), key)
    return sidecar.header


async def _read_through(
    store: ObjectStore, key: str, header: SidecarHeader, went: Callable[[int], None]
) -> Flaw | None:
    """Return a flaw for the first batch that is not what was written, or None."""
    epochs = LeaderEpochs(list(header.epochs))
    position, offset, crc = 0, header.base_offset, 0
    while position < header.size_bytes:
        data = await store.get(key, position, min(position + CHUNK_BYTES, header.size_bytes))
        end, following = intact_end(data, offset, epochs, 0, header.end_offset)
        if not end and len(data) < (size := _batch_bytes(data)) <= min(header.size_bytes - position, BATCH_BYTES_MAX):
            data = await store.get(key, position, position + size)
            end, following = intact_end(data, offset, epochs, 0, header.end_offset)
        if not end:
            return Flaw(key, why_not_intact(data, offset, epochs.epoch_at(offset)), position, offset)
        crc = crc32c(memoryview(data)[:end], crc)
        position, offset = position + end, following
        went(end)
    if offset != header.end_offset:
        return Flaw(key, f"it ends at offset {offset} instead of {header.end_offset}", position, offset)
    return None if crc == header.log_crc else Flaw(key, "the CRC of the object does not hold")


def _batch_bytes(data: bytes) -> int:
    try:
        return parse_header(data).size
    except KafkaError:
        return 0


def _gaps(segments: Iterable[StoredSegment]) -> list[Flaw]:
    """Return the gaps: offsets between two segments of a partition that are in none."""
    flaws = []
    for prefix, partition in groupby(segments, key=lambda segment: segment.name.prefix):
        end = -1
        for segment in partition:
            if 0 <= end < segment.name.base_offset:
                flaws.append(Flaw(prefix, f"offsets {end} to {segment.name.base_offset - 1} are missing", offset=end))
            if segment.header is not None:
                end = max(end, segment.header.end_offset)
    return flaws
