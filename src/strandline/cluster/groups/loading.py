"""Loading of a coordinator's shard: its partition is read from beginning to end and replayed."""

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
"""Bytes read between two turns of the event loop."""

RECORDS_PER_TURN = 500
"""Records replayed between two turns of the event loop, which takes some milliseconds."""


class Latest:
    """Records of a log that a shard needs: the last valid one of each key, and all records of open transactions.

    A record is valid if it belongs to no transaction or to a committed one. The last record is the one with the highest
    offset; the offset of the marker does not matter (KAFKA-14505).
    """

    def __init__(self) -> None:
        self._latest: dict[bytes, LogRecord] = {}
        self._open: dict[int, list[LogRecord]] = {}
        self._in_order = True

    def take(self, records: Iterable[LogRecord]) -> None:
        """Add records that belong to no transaction, in the order of the log."""
        latest = self._latest
        for record in records:
            if record.key is not None:
                latest.pop(record.key, None)
                latest[record.key] = record

    def take_pending(self, records: Iterable[LogRecord], producer_id: int) -> None:
        """Add records of an open transaction."""
        self._open.setdefault(producer_id, []).extend(records)

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker: make the transaction's records valid (`commit`), or drop them."""
        for record in self._open.pop(producer_id, ()):
            if commit and self._is_last(record):
                self.take([record])
                self._in_order = False  # this record comes before others that were added since

    def _is_last(self, record: LogRecord) -> bool:
        known = None if record.key is None else self._latest.get(record.key)
        return known is None or known.offset < record.offset  # rule C17/loading-goes-by-the-marker

    def replay(self, shard: Shard) -> Iterator[None]:
        """Replay the records, one in each step: the valid ones in the order of the log, then the pending ones."""
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
    """Replay the leader's whole log, including uncommitted records: they will be committed with its next record, and no
    other broker appends. Returns the end offset of the log.

    Only the records that `Latest` keeps are replayed. The topic may be compacted, so a shard cannot depend on the
    others, and a log that was not compacted yet has many of them.

    Raises:
        KafkaError: this broker no longer leads the partition in that leader epoch, or cannot read its log.
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
    """Start and end offset of the leader's log. Raises KafkaError NOT_LEADER_OR_FOLLOWER if this broker no longer leads
    the partition in that leader epoch."""
    partition = replicas.partition(tp)
    if (
        partition is None
        or partition.leader is None
        or partition.log is None
        or partition.state.leader_epoch != leader_epoch
    ):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is not led here in leader epoch {leader_epoch}")
    return partition.log.log_start_offset, partition.log.log_end_offset
