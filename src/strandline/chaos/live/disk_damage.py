"""Damage to the files of a node that is down, as a disk does it."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

from strandline.log.batch import HEADER_SIZE, BatchHeader, iter_batches, verify_crc
from strandline.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, decode_offsets
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition

_LOST_MAX = 30
_CUT_PROBABILITY = 0.3


class NothingToDamage(StrandlineError):
    """No batch of the log is newer than what the checkpoints vouch for; the message says up to where that is."""


def rot_newest_batch(directory: Path, seed: int) -> str:
    """Flip one bit of the records of a partition's newest batch, which a start then takes for a torn write.

    Damage below what the node's own checkpoints vouch for is another case: that log is refused, and waits for an
    operator.

    Args:
        directory: the partition's, of a node that is down.
        seed: decides which bit.

    Returns:
        Which bit of which file, and the offset of its batch.

    Raises:
        NothingToDamage: such a batch does not exist.
    """
    vouched_for = _vouched_for(directory)
    path = max(directory.glob("*.log"))
    raw = bytearray(path.read_bytes())
    newest = _newest(raw)
    if newest is None or newest[1].base_offset < vouched_for:
        raise NothingToDamage(f"{directory} has no batch from offset {vouched_for} on, where its checkpoints end")
    position, header = newest
    rng = random.Random(seed)
    byte, bit = position + rng.randrange(HEADER_SIZE, header.size), rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(byte)
        file.write(bytes([raw[byte] ^ 1 << bit]))
    return f"bit {bit} of byte {byte} of {directory.name}/{path.name} rots, in the batch of offset {header.base_offset}"


def lose_newest_batches(directory: Path, seed: int) -> str:
    """Give back zeros for the newest batches of a partition, or a file that ends before them, as a disk does that said
    that it had synced them. A start finds nothing wrong (rule B30).

    Args:
        directory: the partition's, of a node that is down.
        seed: decides how many of those that its checkpoints do not vouch for, and which of the two.

    Returns:
        What is gone from which file.

    Raises:
        NothingToDamage: such a batch does not exist.
    """
    vouched_for = _vouched_for(directory)
    path = max(directory.glob("*.log"))
    raw = bytearray(path.read_bytes())
    places = [(position, header) for position, header in _batches(raw) if header.base_offset >= vouched_for]
    if not places:
        raise NothingToDamage(f"{directory} has no batch from offset {vouched_for} on, where its checkpoints end")
    rng = random.Random(seed)
    count = rng.randint(1, min(len(places), _LOST_MAX))
    position, first = places[-count]
    if rng.random() < _CUT_PROBABILITY:
        os.truncate(path, position)
        return f"{directory.name}/{path.name} ends before its newest {count} batches, from offset {first.base_offset}"
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(len(raw) - position))
    return f"{directory.name}/{path.name} has zeros for its newest {count} batches, from offset {first.base_offset}"


def _vouched_for(directory: Path) -> int:
    """Offset up to which a start misses what is gone, by the node's checkpoints."""
    topic, _, number = directory.name.rpartition("-")
    where = TopicPartition(topic, int(number))
    return max(_checkpoint(directory.parent / name, where) for name in (RECOVERY_POINTS, HIGH_WATERMARKS))


def _newest(segment: bytearray) -> tuple[int, BatchHeader] | None:
    """Position and header of the last batch that holds its checksum."""
    return next(reversed(_batches(segment)), None)


def _batches(segment: bytearray) -> list[tuple[int, BatchHeader]]:
    """Position and header of each batch up to the last one that holds its checksum."""
    found: list[tuple[int, BatchHeader]] = []
    position = 0
    with suppress(KafkaError):  # behind it are zeros, or a torn write
        for header, batch in iter_batches(segment):
            verify_crc(batch)
            found.append((position, header))
            position += header.size
    return found


def _checkpoint(path: Path, where: TopicPartition) -> int:
    """Offset of a partition in a checkpoint; 0: none yet."""
    try:
        return decode_offsets(str(path), path.read_bytes()).get(where, 0)
    except FileNotFoundError:
        return 0
