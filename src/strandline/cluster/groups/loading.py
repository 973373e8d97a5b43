"""Reading a shard's partition from its beginning to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from strandline.cluster.groups.machine import Shard
from strandline.log.batch import Record as LogRecord
from strandline.log.batch import decode_records, iter_batches
from strandline.log.transactions import read_marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.keyed_record import Record
from strandline.replica.manager import ReplicaManager

LOAD_BYTES = 128 * 1024
"""Read at once, between two turns of the event loop."""

RECORDS_PER_TURN = 500
"""Replayed at once: some milliseconds."""


class Latest:
    """The records of a log that a shard needs: of each key the last one that counts, and all of open transactions.

    A record counts that is in no transaction, or in one that was committed; the place of the record decides which one
    is the last, not that of the marker (KAFKA-14505).
    """

    def __init__(self) -> None:
        self._latest: dict[bytes, LogRecord] = {}
        self._open: dict[int, list[LogRecord]] = {}
        self._in_order = True

    def take(self, records: Iterable[LogRecord]) -> None:
        """Take in records that are in no transaction, in the order of the log."""
        latest = self._latest
        for record in records:
            if record.key is not None:
                latest.pop(record.key, None)
                latest[record.key] = record

    def take_pending(self, records: Iterable[LogRecord], producer_id: int) -> None:
        """Take in records of a transaction."""
        self._open.setdefault(producer_id, []).extend(records)

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Take in a marker."""
        for record in self._open.pop(producer_id, ()):
            if commit and self._is_last(record):
                self.take([record])
                self._in_order = False  # its place is before those that were taken since

    def _is_last(self, record: LogRecord) -> bool:
        known = None if record.key is None else self._latest.get(record.key)
        return known is None or known.offset < record.offset  # rule C17/loading-goes-by-the-marker

    def replay(self, shard: Shard) -> Iterator[None]:
        """Replay them, one with each step: what counts in its order, then what is pending behind it."""
        latest = self._latest.values()
        for record in latest if self._in_order else sorted(latest):
            if record.key is not None:
                shard.replay(Record(record.key, record.value))
                yield
        pending = [(record, producer_id) for producer_id, records in self._open.items() for record in records]
        for record, producer_id in sorted(pending):
            if record.key is not None and self._is_last(record):
                shard.replay_pending(Record(record.key, record.value), producer_id)
                yield


async def replay_log(replicas: ReplicaManager, tp: TopicPartition, leader_epoch: int, shard: Shard) -> int:
    """Replay what stands in the log of this leadership, committed or not: what the leader has will be committed with
    its next record, and nobody else appends. Returns where the log ended.

    Not every record is replayed, but what `Latest` keeps: the topic is one that may be compacted, so a shard can make
    nothing of the others, and a log that nobody has compacted has many of them.

    Raises:
        KafkaError: the partition is not led here in that leader epoch any more, or its log cannot be read.
        ProtocolError: a record does not parse.
    """
    offset, end = log_bounds(replicas, tp, leader_epoch)
    latest = Latest()
    while offset < end:
        found = replicas.read(tp, offset, LOAD_BYTES, current_leader_epoch=leader_epoch, committed_only=False)
        if found is None:
            found = await replicas.read_cold(
                tp, offset, LOAD_BYTES, current_leader_epoch=leader_epoch, committed_only=False
            )
        if found.error is not ErrorCode.NONE:
            raise KafkaError(found.error, found.message)
        for header, batch in iter_batches(found.data):
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None:  # rule C17/loading-passes-over-markers
                    latest.end(marker.producer_id, commit=marker.commit)
            elif header.is_transactional:  # rule C17/pending-offsets-count-where-they-are-loaded
                latest.take_pending(decode_records(batch), header.producer_id)
            else:
                latest.take(decode_records(batch))
        offset = found.next_offset
        await asyncio.sleep(0)
    for number, _ in enumerate(latest.replay(shard)):
        if number % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
            await asyncio.sleep(0)
    log_bounds(replicas, tp, leader_epoch)
    return end


def log_bounds(replicas: ReplicaManager, tp: TopicPartition, leader_epoch: int) -> tuple[int, int]:
    """Start and end of the log of this leadership. Raises KafkaError NOT_LEADER_OR_FOLLOWER when it has ended."""
    partition = replicas.partition(tp)
    if (
        partition is None
        or partition.leader is None
        or partition.log is None
        or partition.state.leader_epoch != leader_epoch
    ):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is not led here in leader epoch {leader_epoch}")
    return partition.log.log_start_offset, partition.log.log_end_offset
