"""A log that begins behind records that it never had, and how it knows their producers all the same (rule B24).

A replica that is new, or was cut whole, begins where its leader's log on the disk begins; what lies before is in the
object store alone. The producer snapshot at its start stands for that: where it is missing, nobody has told the log of
these producers yet.
"""

from __future__ import annotations

from strandline.log.disk import write_synced
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import ProducerStates

_TEMPORARY = "beginning.tmp"


def lacks_producers(log: PartitionLog) -> bool:
    """It is empty, begins behind records that it never had, and was told nothing of their producers."""
    start = log.log_start_offset
    return 0 < start == log.log_end_offset and not log.size_bytes and not log.snapshots.has(start)


async def begin_with(log: PartitionLog, offset: int, producers: ProducerStates) -> bool:
    """These producers have written what lies before `offset`, where the log begins. Durable when this returns, so that
    no record is ever in the log without them. False: the log has begun elsewhere meanwhile, and is as it was.

    Raises DiskError; FileNotFoundError where the log was deleted.
    """
    path = f"{log.directory}/{_TEMPORARY}"
    await write_synced(log.disk, {path: producers.encode_snapshot()})
    # rule B24/told-of-what-was-cut
    if log.failure is not None or log.log_start_offset != offset or not lacks_producers(log):
        return False
    log.snapshots.take_in(path, offset)
    log.producers = producers
    return True
