"""DeleteRecords (21): deletes records from the beginning of partitions (KIP-107)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext, allowed, topic
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.settings import TopicSettings
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.kafka.apis import Api
from strandline.proto.steps import Mapped, each, grouped
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import PendingDeletion


class Deletion(NamedTuple):
    """Request to delete the records of a partition below `offset`; -1: all below the high watermark."""

    topic: str
    partition: int
    offset: int


class Deleted(NamedTuple):
    """Result for one partition. `low_watermark`: smallest log start offset of the in-sync replicas; -1 on an error."""

    topic: str
    partition: int
    error: ErrorCode
    low_watermark: int = -1


class DeleteRecordsHandler:
    """Deletes records of partitions that this broker leads; answers when in-sync followers have deleted them too."""

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
        """Answer DeleteRecords: one outcome per partition."""
        timeout_ms = max(call.request.timeout, 0.0)
        outcomes = await self._delete(call, timeout_ms)
        topics = await call.connection.stepped(grouped((outcome.topic, outcome) for outcome in outcomes))
        return part(topics=Mapped(_deleted, topics, topics.values()))

    async def _delete(self, call: Call, timeout_ms: float) -> list[Deleted]:
        """Return one outcome per deletion, in order. Errors: TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_TOPIC_EXCEPTION for an internal topic, POLICY_VIOLATION for a cleanup.policy without delete,
        OFFSET_OUT_OF_RANGE above the high watermark, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT if an in-sync follower
        has not deleted in time (the leader has).
        """
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        pending: list[PendingDeletion] = []

        def begin(one: Deletion) -> list[Deleted]:
            """Begin one deletion. Returns a list that gets its outcome, now or later."""
            refused = self._undeletable(call.context, one)
            if refused is not ErrorCode.NONE:
                return [Deleted(one.topic, one.partition, refused)]
            outcome: list[Deleted] = []
            over: asyncio.Future[None] = loop.create_future()

            def done(error: ErrorCode, _message: str, low: int) -> None:
                outcome.append(Deleted(one.topic, one.partition, error, low))
                if not over.done():  # the client may be gone
                    over.set_result(None)

            trim = self._replicas.delete_records(TopicPartition(one.topic, one.partition), one.offset, done)
            if trim is not None:
                pending.append(trim)
                waiting.append(over)
            return outcome

        outcomes = await call.connection.stepped(each(begin, _wanted(call)))
        if pending:
            await asyncio.wait(waiting, timeout=timeout_ms / 1000)
            for trim in pending:
                trim.cancel()
        return [outcome[0] for outcome in outcomes]

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


def _wanted(call: Call) -> Iterator[Deletion]:
    return (
        Deletion(topic.name, partition.partition_index, partition.offset)
        for topic in call.request.topics
        for partition in topic.partitions
    )


def _deleted(name: str, outcomes: list[Deleted]) -> Any:
    return part(name=name, partitions=Mapped(_result, outcomes))


def _result(outcome: Deleted) -> Any:
    return part(
        partition_index=outcome.partition,
        low_watermark=outcome.low_watermark,
        error_code=outcome.error,
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
