"""DeleteRecords (21): records deleted from the front of partitions (KIP-107)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext, allowed, topic
from strandline.cluster.broker.requested_topics import INTERNAL_TOPICS
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.settings import TopicSettings
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import PendingDeletion


class Deletion(NamedTuple):
    """Delete what lies below `offset`; -1: everything that is committed."""

    topic: str
    partition: int
    offset: int


class Deleted(NamedTuple):
    """What became of one partition: the low watermark, below which no replica in sync has anything (-1: an error)."""

    topic: str
    partition: int
    error: ErrorCode
    low_watermark: int = -1


class DeleteRecordsHandler:
    """Deletes records where this broker leads; answered when the followers in sync have done it too."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        configs: ConfigResolver,
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._authorizer = authorizer
        self._configs = configs

    async def delete(self, call: Call) -> Any:
        """One outcome a partition."""
        timeout_ms = max(call.request.timeout, 0.0)
        return _respond(await self._delete(call.context, _wanted(call), timeout_ms))

    async def _delete(self, context: RequestContext, wanted: Sequence[Deletion], timeout_ms: float) -> list[Deleted]:
        """One outcome a deletion, in order. Errors: TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_TOPIC_EXCEPTION for an internal topic, POLICY_VIOLATION for one that is compacted alone,
        OFFSET_OUT_OF_RANGE beyond the high watermark, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT when a follower in sync
        has not done it in time (the leader has).
        """
        loop = asyncio.get_running_loop()
        outcomes: list[asyncio.Future[tuple[ErrorCode, int]]] = []
        pending: list[PendingDeletion] = []
        for one in wanted:
            outcome: asyncio.Future[tuple[ErrorCode, int]] = loop.create_future()
            outcomes.append(outcome)

            def done(
                error: ErrorCode, _message: str, low: int, outcome: asyncio.Future[tuple[ErrorCode, int]] = outcome
            ) -> None:
                if not outcome.done():  # the client may be gone
                    outcome.set_result((error, low))

            refused = self._undeletable(context, one)
            if refused is not ErrorCode.NONE:
                done(refused, "", -1)
                continue
            trim = self._replicas.delete_records(TopicPartition(one.topic, one.partition), one.offset, done)
            if trim is not None:
                pending.append(trim)
        if pending:
            await asyncio.wait(outcomes, timeout=timeout_ms / 1000)
            for trim in pending:
                trim.cancel()
        return [
            Deleted(one.topic, one.partition, *outcome.result()) for one, outcome in zip(wanted, outcomes, strict=True)
        ]

    def _undeletable(self, context: RequestContext, one: Deletion) -> ErrorCode:
        if not allowed(self._authorizer, context, Operation.DELETE, topic(one.topic)):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        image = self._image()
        if image.partition(one.topic, one.partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if one.topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if "delete" not in self._configs.topic_value(image, one.topic, TopicSettings.cleanup_policy):
            return ErrorCode.POLICY_VIOLATION
        return ErrorCode.NONE


def _wanted(call: Call) -> list[Deletion]:
    return [
        Deletion(topic.name, partition.partition_index, partition.offset)
        for topic in call.request.topics
        for partition in topic.partitions
    ]


def _respond(outcomes: list[Deleted]) -> Any:
    topics: dict[str, list[Any]] = {}
    for outcome in outcomes:
        result = part(
            partition_index=outcome.partition,
            low_watermark=outcome.low_watermark,
            error_code=outcome.error,
        )
        topics.setdefault(outcome.topic, []).append(result)
    return part(
        topics=tuple(part(name=name, partitions=tuple(results)) for name, results in topics.items()),
    )


def _records_deleted(request: Any, answer: Any) -> Iterator[Change]:
    offsets = {(asked.name, one.partition_index): one.offset for asked in request.topics for one in asked.partitions}
    for told in answer.topics:
        for one in told.partitions:
            offset = offsets.get((told.name, one.partition_index))
            yield f"topic {told.name}-{one.partition_index}: records below {offset}", one.error_code


ROWS = (
    by_schema(Api.DELETE_RECORDS, (0, 2), DeleteRecordsHandler, DeleteRecordsHandler.delete, changes=_records_deleted),
)
