"""ListOffsets (2), and OffsetForLeaderEpoch (23): a consumer finds out whether its log and the leader's have parted
(KIP-320)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext, topic
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import READ_COMMITTED
from strandline.replica.manager import ReplicaManager

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The version of ListOffsets from which on each special timestamp may be asked for."""


class OffsetQuery(NamedTuple):
    """Ask one partition for the first offset at or after a time, or for a special one."""

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int = -1


class OffsetAnswer(NamedTuple):
    """-1s where there is no such record."""

    query: OffsetQuery
    error: ErrorCode
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


class EpochQuery(NamedTuple):
    """Ask the leader of one partition where a leader epoch ended."""

    topic: str
    partition: int
    current_leader_epoch: int
    leader_epoch: int


class EpochAnswer(NamedTuple):
    """The largest epoch not above the one asked for, and its end offset: where the next larger one begins (rule B33).
    Where all that is left is of larger ones, the epoch asked for; -1s for a negative one."""

    query: EpochQuery
    error: ErrorCode
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetsHandler:
    """Answers from the logs that this broker leads."""

    def __init__(self, *, replicas: ReplicaManager, image: Callable[[], MetadataImage], authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._image = image
        self._authorizer = authorizer

    # ListOffsets

    async def list_offsets(self, call: Call) -> Any:
        """One answer a partition, in order.

        Latest means the high watermark, or the last stable offset where the client reads committed transactions: it
        sees no further, also by time.

        Errors: UNSUPPORTED_VERSION for a special timestamp the version does not know, INVALID_REQUEST for a partition
        asked twice, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_NOT_AVAILABLE while a new leader's
        high watermark has not reached its epoch's start, and the errors of leadership and its epoch.
        """
        queries = _offset_queries(call)
        counts = Counter((query.topic, query.partition) for query in queries)
        return _offsets_found(
            [await self._list_offset(call, query, counts[query.topic, query.partition] > 1) for query in queries]
        )

    async def _list_offset(self, call: Call, query: OffsetQuery, twice: bool) -> OffsetAnswer:
        context = call.context
        if twice:
            return OffsetAnswer(query, ErrorCode.INVALID_REQUEST)
        refused = self._refused(context, query.topic, query.partition)
        if refused is not None:
            return OffsetAnswer(query, refused)
        timestamp = query.timestamp
        if timestamp < 0 and context.version < SPECIAL_SINCE.get(timestamp, 1 << 15):
            return OffsetAnswer(query, ErrorCode.UNSUPPORTED_VERSION)
        where = TopicPartition(query.topic, query.partition), timestamp
        by: dict[str, Any] = {
            "current_leader_epoch": query.current_leader_epoch,
            "read_committed": getattr(call.request, "isolation_level", None) == READ_COMMITTED,  # since version 2
        }
        found = self._replicas.list_offset(*where, **by)
        if found is None:
            found = await self._replicas.list_offset_cold(*where, **by)
        if found.error is not ErrorCode.NONE:
            return OffsetAnswer(query, found.error)
        return OffsetAnswer(query, ErrorCode.NONE, found.timestamp_ms, found.offset, found.leader_epoch)

    # OffsetForLeaderEpoch

    def ends_of_epochs(self, call: Call) -> Any:
        """One answer a partition, in order. Errors as for `list_offsets`."""
        return _epochs_found([self._end_of_epoch(call.context, query) for query in _epoch_queries(call)])

    def _end_of_epoch(self, context: RequestContext, query: EpochQuery) -> EpochAnswer:
        refused = self._refused(context, query.topic, query.partition)
        if refused is not None:
            return EpochAnswer(query, refused)
        end = self._replicas.epoch_end_offset(
            TopicPartition(query.topic, query.partition),
            current_leader_epoch=query.current_leader_epoch,
            epoch=query.leader_epoch,
        )
        if end.error is not ErrorCode.NONE:
            return EpochAnswer(query, end.error)
        return EpochAnswer(query, ErrorCode.NONE, end.leader_epoch, end.end_offset)

    def _refused(self, context: RequestContext, name: str, partition: int) -> ErrorCode | None:
        if not self._authorizer.authorize(context, ((Operation.DESCRIBE, topic(name)),))[0]:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if self._image().partition(name, partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return None


def _offset_queries(call: Call) -> list[OffsetQuery]:
    return [
        OffsetQuery(
            one.name,
            partition.partition_index,
            partition.timestamp,
            getattr(partition, "current_leader_epoch", -1),  # since version 4
        )
        for one in call.request.topics
        for partition in one.partitions
    ]


def _offsets_found(answers: list[OffsetAnswer]) -> Any:
    topics = tuple(
        part(
            name=name,
            partitions=tuple(
                part(
                    partition_index=answer.query.partition,
                    error_code=answer.error,
                    timestamp=answer.timestamp_ms,
                    offset=answer.offset,
                    leader_epoch=answer.leader_epoch,
                )
                for answer in group
            ),
        )
        for name, group in groupby(answers, lambda answer: answer.query.topic)
    )
    return part(topics=topics)


def _epoch_queries(call: Call) -> list[EpochQuery]:
    return [
        EpochQuery(one.topic, partition.partition, partition.current_leader_epoch, partition.leader_epoch)
        for one in call.request.topics
        for partition in one.partitions
    ]


def _epochs_found(answers: list[EpochAnswer]) -> Any:
    topics = tuple(
        part(
            topic=name,
            partitions=tuple(
                part(
                    error_code=answer.error,
                    partition=answer.query.partition,
                    leader_epoch=answer.leader_epoch,
                    end_offset=answer.end_offset,
                )
                for answer in group
            ),
        )
        for name, group in groupby(answers, lambda answer: answer.query.topic)
    )
    return part(topics=topics)


ROWS = (
    by_schema(Api.LIST_OFFSETS, (1, 11), OffsetsHandler, OffsetsHandler.list_offsets),
    by_schema(Api.OFFSET_FOR_LEADER_EPOCH, (2, 4), OffsetsHandler, OffsetsHandler.ends_of_epochs),
)
