"""In which file of a broker's directory an offset lies, where that directory is on this machine: by names and sizes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from strandline.log.checkpoints import META_PROPERTIES, MetaProperties
from strandline.log.index import TIME_ENTRY_BYTES
from strandline.log.segment import LOG_SUFFIX, TIME_INDEX_SUFFIX
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import TopicPartition

_TIME_ENTRY = struct.Struct(">qI")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment of one broker.

    Attributes:
        is_active: it is written to.
        newest_ms: the newest timestamp in it; None while it is active, for it may grow.
        bytes_behind: bytes of the segments after it.
    """

    node: int
    path: str
    base_offset: int
    bytes: int
    is_active: bool
    newest_ms: int | None
    bytes_behind: int


def find_segment(
    directory: str, tp: TopicPartition, offset: int, *, node_id: int, cluster_id: str | None
) -> SegmentFile | None:
    """The segment of `offset`; None where the directory is not on this machine, or is another node's.

    A path that a broker names may exist here and be somebody else's, so that meta.properties has to agree. Nothing is
    opened but that file and the end of one time index.
    """
    root = Path(directory)
    try:
        path = root / META_PROPERTIES
        meta = MetaProperties.decode(str(path), path.read_bytes())
        if (meta.node_id, meta.cluster_id) != (node_id, cluster_id):
            return None
        sizes = {int(path.stem): path.stat().st_size for path in (root / str(tp)).glob(f"*{LOG_SUFFIX}")}
        bases = sorted(sizes)
        base = max((base for base in bases if base <= offset), default=None)
        if base is None:
            return None
        found = root / str(tp) / f"{base:020d}{LOG_SUFFIX}"
        is_active = base == bases[-1]
        return SegmentFile(
            node=node_id,
            path=str(found),
            base_offset=base,
            bytes=sizes[base],
            is_active=is_active,
            newest_ms=None if is_active else _newest_ms(found.with_suffix(TIME_INDEX_SUFFIX)),
            bytes_behind=sum(size for other, size in sizes.items() if other > base),
        )
    except (OSError, ValueError, CorruptLogError):  # not here, not ours to read, or deleted a moment ago
        return None


def _newest_ms(path: Path) -> int | None:
    """A closed segment notes its newest timestamp last."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < TIME_ENTRY_BYTES or size % TIME_ENTRY_BYTES:
            return None
        file.seek(size - TIME_ENTRY_BYTES)
        return int(_TIME_ENTRY.unpack(file.read(TIME_ENTRY_BYTES))[0])
