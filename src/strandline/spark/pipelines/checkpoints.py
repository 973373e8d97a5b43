"""What the checkpoint of a query of one source says: Spark's own files, whose form has not changed since Spark 2.1.

offsets/N    what batch N reads, fixed before it runs: a version, the batch's settings, a line for each source
commits/N    there once batch N is done
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from strandline.proto.json_text import read_json
from strandline.spark.stream_offsets import StreamOffset

Ranges = Mapping[tuple[str, int], tuple[int, int]]
"""(topic, partition) -> (first offset, end offset)."""


def batch_ranges(checkpoint: Path, batch: int) -> Ranges:
    """Offset ranges of a micro-batch; the same whenever it is repeated."""
    end = _planned(checkpoint, batch)
    begin = end.since or (_planned(checkpoint, batch - 1) if batch else StreamOffset({}))
    return {(where.topic, where.partition): (begin.offsets.get(where, 0), stop) for where, stop in end.offsets.items()}


def reached(checkpoint: Path) -> dict[int, int]:
    """Each partition's next offset after the last batch that is done; the query reads one topic."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not done:
        return {}
    return {where.partition: offset for where, offset in _planned(checkpoint, max(done)).offsets.items()}


def _planned(checkpoint: Path, batch: int) -> StreamOffset:
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return StreamOffset.from_json(read_json(lines[2]))
