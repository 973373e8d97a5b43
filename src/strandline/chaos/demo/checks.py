"""Checks after the load, whatever was killed in its middle. Each check raises, or returns a sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from strandline.chaos.demo.dataset import Flights
from strandline.chaos.demo.load import FlightLoad
from strandline.client import Admin, Consumer
from strandline.log.batch import iter_batches
from strandline.proto.ids import TopicPartition


class CheckFailed(Exception):
    """The claim does not hold; the message says where."""


def check_acks(load: FlightLoad, flights: Flights) -> str:
    """Every record was acknowledged, at an offset of its own."""
    if load.errors:
        raise CheckFailed(f"{len(load.errors)} records failed, the first: {load.errors[0]}")
    count = len(flights.values)
    places = set(zip(load.partitions, load.offsets, strict=True))
    if load.acked != count or len(places) != count:
        raise CheckFailed(f"{load.acked} of {count} records acknowledged, at {len(places)} different offsets")
    return f"{count:,} acks, each at its own offset"


def check_read_back(
    load: FlightLoad, flights: Flights, bootstrap: str, topic: str, progress: Callable[[int], None]
) -> str:
    """Every acked offset is read once, in order per partition, with the key and value that were sent there."""
    row_at = {place: row for row, place in enumerate(zip(load.partitions, load.offsets, strict=True))}
    partitions = [TopicPartition(topic, number) for number in range(len(load.ack_times_ms))]
    read = 0
    last_offset = dict.fromkeys(range(len(partitions)), -1)
    last_row = dict.fromkeys(range(len(partitions)), -1)
    with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=5000) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        total = sum(ends.values())
        while read < total:
            records = consumer.poll(timeout_s=10)
            if not records:
                raise CheckFailed(f"read {read:,} of {total:,} records, then none for 10 s")
            for record in records:
                place = (record.partition, record.offset)
                row = row_at.get(place)
                if row is None:
                    raise CheckFailed(
                        f"partition {place[0]} offset {place[1]} holds a record that was never acked there"
                    )
                if record.offset <= last_offset[record.partition] or row <= last_row[record.partition]:
                    raise CheckFailed(f"partition {place[0]} offset {place[1]} is out of order or read twice")
                if record.value != flights.values[row] or record.key != flights.keys[row]:
                    raise CheckFailed(f"partition {place[0]} offset {place[1]} differs from row {row} of the CSV")
                last_offset[record.partition] = record.offset
                last_row[record.partition] = row
            read += len(records)
            progress(read)
    if read != len(flights.values):
        raise CheckFailed(f"read {read:,} records, {len(flights.values):,} were acknowledged")
    return f"{read:,} records read once, in order, equal to the CSV"


def check_in_every_isr(bootstrap: str, topic: str, node_id: int) -> str:
    """The killed node is back in the in-sync replicas of every partition."""
    with Admin(bootstrap) as admin:
        [description] = admin.describe_topics([topic])
    out = [p.partition for p in description.partitions if node_id not in p.isr or len(p.isr) != len(p.replicas)]
    if out:
        raise CheckFailed(f"not every replica is in sync in partitions {out}")
    return f"node {node_id} is back in the ISR of all {len(description.partitions)} partitions"


def check_replicas_identical(data_dirs: Mapping[int, Path], topic: str, ends: Mapping[int, int]) -> str:
    """The committed prefix of each partition is the same bytes on every node.

    Args:
        data_dirs: the log directory of each node.
        ends: the high watermark of each partition.
    """
    total = 0
    for partition, end in ends.items():
        digests = {node: committed_digest(path / f"{topic}-{partition}", end) for node, path in data_dirs.items()}
        if len({digest for digest, _ in digests.values()}) != 1:
            raise CheckFailed(f"the replicas of {topic}-{partition} differ below offset {end}: {digests}")
        total += next(iter(digests.values()))[1]
    return f"{len(ends)} partitions x {len(data_dirs)} replicas, {total / 1e6:,.1f} MB each, byte for byte"


def committed_digest(directory: Path, end_offset: int) -> tuple[str, int]:
    """SHA-256 and length of the record batches below `end_offset`, read from the segment files."""
    digest, length, next_offset = hashlib.sha256(), 0, 0
    for path in sorted(directory.glob("*.log")):
        for header, batch in iter_batches(memoryview(path.read_bytes())):
            digest.update(batch)
            length += len(batch)
            next_offset = header.next_offset
            if next_offset >= end_offset:
                break  # what follows is not committed, or the zeros of preallocated space
    if next_offset != end_offset:
        raise CheckFailed(f"{directory} ends at offset {next_offset}, the high watermark is {end_offset}")
    return digest.hexdigest(), length
