"""Committed offsets of groups: commit, fetch, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.cluster.broker.service.authorizer import Operation, allowed, group, topic
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.topics import find_topic
from strandline.cluster.groups.commands import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffsets,
    FetchOffsets,
    OffsetToCommit,
)
from strandline.controller.metadata.image import TopicInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicId
from strandline.proto.kafka.group_records import OffsetValue


class PartitionOffset(NamedTuple):
    """`leader_epoch` -1 and `metadata` None where the client does not tell them."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class OffsetsOfTopic(NamedTuple):
    """Offsets to commit; the topic by its name or (OffsetCommit 10 and later) by its id."""

    name: str | None
    topic_id: TopicId | None
    offsets: tuple[PartitionOffset, ...]


class OffsetCommit(NamedTuple):
    """See `CommitOffsets`, which it becomes."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int | None
    topics: tuple[OffsetsOfTopic, ...]


class PartitionsOfTopic(NamedTuple):
    """Partitions asked for; the topic by its name or by its id."""

    name: str | None
    topic_id: TopicId | None
    partitions: tuple[int, ...]


class Asker(NamedTuple):
    """A member of the consumer protocol that asks for offsets (OffsetFetch 9 and later), or nobody in particular."""

    member_id: str | None = None
    epoch: int = -1


OUTSIDE = Asker()


class FetchedOffset(NamedTuple):
    """`value` None: nothing is committed, or there is an error."""

    partition: int
    value: OffsetValue | None
    error: ErrorCode = ErrorCode.NONE


class FetchedTopic(NamedTuple):
    name: str
    topic_id: TopicId | None
    offsets: list[FetchedOffset]


GROUP_NOT_FOUND_SINCE = 9
"""OffsetCommit: from this version on a client understands that there is no such group."""


class GroupOffsets(Base):
    """The operations on committed offsets. All raise KafkaError as those of `GroupMembers` do."""

    async def commit_offsets(self, context: RequestContext, request: OffsetCommit) -> list[list[ErrorCode]]:
        """One error an offset, in the order of the request.

        Errors of an offset: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED,
        OFFSET_METADATA_TOO_LARGE, COORDINATOR_NOT_AVAILABLE (not written, or not
        known to be), INVALID_COMMIT_OFFSET_SIZE.

        Raises:
            KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS,
                GROUP_ID_NOT_FOUND (version 9 and later); for members of the consumer protocol STALE_MEMBER_EPOCH, and
                UNSUPPORTED_VERSION before version 9.
        """
        self._check_group(context, Operation.READ, request.group_id)
        accepted: list[OffsetToCommit] = []
        errors: list[list[ErrorCode]] = []
        for wanted in request.topics:
            found, fault = self._topic(context, wanted.name, wanted.topic_id)
            own: list[ErrorCode] = []
            for one in wanted.offsets:
                if found is None or one.partition not in found.partitions:
                    own.append(fault if found is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    own.append(ErrorCode.NONE)
                    what = (one.partition, one.offset, one.leader_epoch, one.metadata or "")
                    accepted.append(OffsetToCommit(found.name, *what, topic_id=found.topic_id))
            errors.append(own)
        if request.topics and not accepted:
            return errors
        v9 = context.version >= GROUP_NOT_FOUND_SINCE
        command = CommitOffsets(
            group_id=request.group_id,
            generation=request.generation,
            member_id=request.member_id,
            instance_id=request.instance_id,
            offsets=tuple(accepted),
            retention_ms=request.retention_ms,
            unknown_group=ErrorCode.GROUP_ID_NOT_FOUND if v9 else ErrorCode.ILLEGAL_GENERATION,
            knows_epochs=v9,
        )
        outcome: list[ErrorCode] = await self.groups.ask(request.group_id, command)
        told = iter(outcome)
        return [[next(told) if error is ErrorCode.NONE else error for error in own] for own in errors]

    async def fetch_offsets(
        self,
        context: RequestContext,
        group_id: str,
        topics: Sequence[PartitionsOfTopic] | None,
        asker: Asker = OUTSIDE,
    ) -> list[FetchedTopic]:
        """What is committed, in the order of the request; `topics` None: everything, of topics that may be described.

        Unknown groups and topics have nothing committed; unknown ids of topics answer UNKNOWN_TOPIC_ID.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH for an asker that is no such member.
        """
        self._check_group(context, Operation.DESCRIBE, group_id)
        if topics is None:
            return await self._fetch_all(context, group_id, asker)
        asked: list[tuple[str, tuple[int, ...]]] = []
        answers: list[FetchedTopic | None] = []
        for wanted in topics:
            found, fault = self._topic(context, wanted.name, wanted.topic_id, Operation.DESCRIBE)
            name = wanted.name if found is None else found.name
            if name is None or fault is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                refused = [FetchedOffset(partition, None, fault) for partition in wanted.partitions]
                answers.append(FetchedTopic(name or "", wanted.topic_id, refused))
            else:
                asked.append((name, wanted.partitions))
                answers.append(None)
        values: FetchedOffsets = await self.groups.ask(group_id, FetchOffsets(group_id, tuple(asked), *asker))
        found_values = iter(values)
        return [
            self._fetched(next(found_values), wanted.topic_id) if answer is None else answer
            for answer, wanted in zip(answers, topics, strict=True)
        ]

    async def _fetch_all(self, context: RequestContext, group_id: str, asker: Asker) -> list[FetchedTopic]:
        values: FetchedOffsets = await self.groups.ask(group_id, FetchOffsets(group_id, None, *asker))
        image = self.image()
        return [
            self._fetched((name, offsets), image.topics[name].topic_id)
            for name, offsets in values
            if name in image.topics and allowed(self.authorizer, context, Operation.DESCRIBE, topic(name))
        ]

    def _fetched(
        self, values: tuple[str, list[tuple[int, OffsetValue | None]]], topic_id: TopicId | None
    ) -> FetchedTopic:
        name, offsets = values
        return FetchedTopic(name, topic_id, [FetchedOffset(partition, value) for partition, value in offsets])

    async def delete_offsets(
        self, context: RequestContext, group_id: str, topics: Sequence[tuple[str, tuple[int, ...]]]
    ) -> list[list[ErrorCode]]:
        """One error a partition: GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (members of another protocol than consumers).
        """
        self._check_group(context, Operation.DELETE, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        asked: list[tuple[str, int]] = []
        errors: list[list[ErrorCode]] = []
        for name, partitions in topics:
            found, fault = self._topic(context, name, None)
            errors.append([fault] * len(partitions))
            if found is not None:
                asked += [(name, partition) for partition in partitions]
        outcome: list[ErrorCode] = await self.groups.ask(group_id, DeleteOffsets(group_id, tuple(asked)))
        told = iter(outcome)
        return [[next(told) if error is ErrorCode.NONE else error for error in own] for own in errors]

    def _topic(
        self,
        context: RequestContext,
        name: str | None,
        topic_id: TopicId | None,
        operation: Operation = Operation.READ,
    ) -> tuple[TopicInfo | None, ErrorCode]:
        """(topic, NONE), or (None, why not)."""
        found = find_topic(self.image(), name, topic_id)
        known = name if isinstance(found, ErrorCode) else found.name
        if known is not None and not allowed(self.authorizer, context, operation, topic(known)):
            # By id the answer must not tell that the topic exists.
            return None, ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return (None, found) if isinstance(found, ErrorCode) else (found, ErrorCode.NONE)

    def _check_group(self, context: RequestContext, operation: Operation, group_id: str) -> None:
        """An empty name is fine here: offsets were committed under it long ago."""
        if not allowed(self.authorizer, context, operation, group(group_id)):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
