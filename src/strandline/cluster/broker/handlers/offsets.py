"""ListOffsets (2): offsets by time. OffsetForLeaderEpoch (23): end offsets of leader epochs, by which a consumer
detects that the leader's log has diverged from what it has read (KIP-320)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext, topic
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import READ_COMMITTED
from strandline.proto.steps import ITEMS, Mapped, Steps, each, grouped
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
"""First version of ListOffsets that may ask for each special timestamp."""


class OffsetQuery(NamedTuple):
    """Request for a partition's first offset at or after a time in ms, or for a special offset (`LATEST`, ...)."""

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int = -1


class OffsetAnswer(NamedTuple):
    """Answer to an `OffsetQuery`; timestamp, offset and epoch are -1 if there is no such record."""

    query: OffsetQuery
    error: ErrorCode
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


class EpochQuery(NamedTuple):
    """Request for the end offset of a leader epoch in one partition."""

    topic: str
    partition: int
    current_leader_epoch: int
    leader_epoch: int


class EpochAnswer(NamedTuple):
    """The largest leader epoch not above the requested one, and its end offset, where the next one begins (rule B33).
    If the log has only larger epochs, the requested epoch; -1 and -1 for a negative epoch or an error."""

    query: EpochQuery
    error: ErrorCode
    leader_epoch: int = -1
    end_offset: int = -1


A = TypeVar("A", OffsetAnswer, EpochAnswer)


class OffsetsHandler:
    """Answers from the logs of partitions that this broker leads."""

    def __init__(self, *, replicas: ReplicaManager, image: Callable[[], MetadataImage], authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._image = image
        self._authorizer = authorizer

    # ListOffsets

    async def list_offsets(self, call: Call) -> Any:
        """Answer ListOffsets: one answer per partition, in order.

        `LATEST` means the high watermark, or with read_committed the last stable offset; queries by time look no
        further either.

        Errors: UNSUPPORTED_VERSION for a special timestamp that the version does not know, INVALID_REQUEST for a
        partition listed twice, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_NOT_AVAILABLE while a
        new leader's high watermark is below the start of its epoch, and the errors of leadership and leader epoch.
        """
        stepped, each_awaited = call.connection.stepped, call.connection.each
        queries = await stepped(each(_offset_query, _partitions(call)))
        asked = await stepped(grouped(((query.topic, query.partition), query) for query in queries))

        async def answer(query: OffsetQuery) -> OffsetAnswer:
            return await self._list_offset(call, query, len(asked[query.topic, query.partition]) > 1)

        def topic(name: str, found: list[OffsetAnswer]) -> Any:
            return part(name=name, partitions=Mapped(_offset_found, found))

        return part(topics=Mapped(topic, *await stepped(_by_topic(await each_awaited(answer, queries)))))

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

    def ends_of_epochs(self, call: Call) -> Steps[Any]:
        """Answer OffsetForLeaderEpoch: one answer per partition, in order. Errors as for `list_offsets`."""
        answers = yield from each(partial(self._end_of_epoch, call.context), _partitions(call))

        def topic(name: str, found: list[EpochAnswer]) -> Any:
            return part(topic=name, partitions=Mapped(_epoch_found, found))

        return part(topics=Mapped(topic, *(yield from _by_topic(answers))))

    def _end_of_epoch(self, context: RequestContext, asked: tuple[Any, Any]) -> EpochAnswer:
        topic, one = asked
        query = EpochQuery(topic.topic, one.partition, one.current_leader_epoch, one.leader_epoch)
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


def _partitions(call: Call) -> Iterator[tuple[Any, Any]]:
    return ((topic, one) for topic in call.request.topics for one in topic.partitions)


def _by_topic(answers: Sequence[A]) -> Steps[tuple[list[str], list[list[A]]]]:
    """Group neighbouring answers of the same topic: (topic names, answers of each)."""
    names: list[str] = []
    found: list[list[A]] = []
    for number, answer in enumerate(answers, 1):
        if not names or names[-1] != answer.query.topic:
            names.append(answer.query.topic)
            found.append([])
        found[-1].append(answer)
        if number % ITEMS == 0:
            yield
    return names, found


def _offset_query(asked: tuple[Any, Any]) -> OffsetQuery:
    topic, one = asked
    epoch = getattr(one, "current_leader_epoch", -1)  # since version 4
    return OffsetQuery(topic.name, one.partition_index, one.timestamp, epoch)


def _offset_found(answer: OffsetAnswer) -> Any:
    return part(
        partition_index=answer.query.partition,
        error_code=answer.error,
        timestamp=answer.timestamp_ms,
        offset=answer.offset,
        leader_epoch=answer.leader_epoch,
    )


def _epoch_found(answer: EpochAnswer) -> Any:
    return part(
        error_code=answer.error,
        partition=answer.query.partition,
        leader_epoch=answer.leader_epoch,
        end_offset=answer.end_offset,
    )


ROWS = (
    by_schema(Api.LIST_OFFSETS, (1, 11), OffsetsHandler, OffsetsHandler.list_offsets),
    by_schema(Api.OFFSET_FOR_LEADER_EPOCH, (2, 4), OffsetsHandler, OffsetsHandler.ends_of_epochs),
)
