"""Reading a shard's partition from its beginning to its end."""

from __future__ import annotations

import asyncio

from strandline.cluster.groups.machine import Shard
from strandline.log.batch import decode_records, iter_batches
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.keyed_record import Record
from strandline.replica.manager import ReplicaManager

LOAD_BYTES = 128 * 1024
"""Read at once, between two turns of the event loop."""

RECORDS_PER_TURN = 500
"""Replayed at once: some milliseconds."""


async def replay_log(replicas: ReplicaManager, tp: TopicPartition, leader_epoch: int, shard: Shard) -> int:
    """Replay what stands in the log of this leadership, committed or not: what the leader has will be committed with
    its next record, and nobody else appends. Returns where the log ended.

    Of each key only the last record is replayed, in the order of those: the topic is one that may be compacted, so a
    shard can make nothing of the others, and a log that nobody has compacted has many of them.

    Raises:
        KafkaError: the partition is not led here in that leader epoch any more, or its log cannot be read.
        ProtocolError: a record does not parse.
    """
    offset, end = log_bounds(replicas, tp, leader_epoch)
    latest: dict[bytes, bytes | None] = {}
    while offset < end:
        found = replicas.read(tp, offset, LOAD_BYTES, current_leader_epoch=leader_epoch, committed_only=False)
        if found is None:
            found = await replicas.read_cold(
                tp, offset, LOAD_BYTES, current_leader_epoch=leader_epoch, committed_only=False
            )
        if found.error is not ErrorCode.NONE:
            raise KafkaError(found.error, found.message)
        for header, batch in iter_batches(found.data):
            if not header.is_control:
                for record in decode_records(batch):
                    if record.key is not None:
                        latest.pop(record.key, None)
                        latest[record.key] = record.value
        offset = found.next_offset
        await asyncio.sleep(0)
    for number, (key, value) in enumerate(latest.items()):
        shard.replay(Record(key, value))
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
