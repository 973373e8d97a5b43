"""OffsetCommit (8), TxnOffsetCommit (28) and OffsetDelete (47): write and delete the committed offsets of groups.

All handlers raise the errors of group and coordinator listed in `group_members.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.first_appends import AGAIN_MS_MAX, Asks, ask_again
from strandline.cluster.broker.handlers.transactions import served
from strandline.cluster.broker.request import Authorizer, RequestContext, require, transaction
from strandline.cluster.broker.requested_topics import OffsetAccess
from strandline.cluster.groups.commands import CommitOffsets, DeleteOffsets, OffsetToCommit
from strandline.cluster.groups.connections import NO_CONNECTION, counted
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.groups.machine import Transaction
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicId
from strandline.proto.kafka.apis import Api
from strandline.proto.ports import Clock
from strandline.proto.steps import Mapped, Pace, Steps, at_once, each

RETENTION_UNTIL = 4
EPOCH_SINCE = 6
INSTANCE_SINCE = 7
TOPIC_ID_SINCE = 10

GROUP_NOT_FOUND_SINCE = 9
"""First version of OffsetCommit whose clients know GROUP_ID_NOT_FOUND."""

TXN_EPOCH_SINCE = 2
TXN_MEMBER_SINCE = 3
"""First version of TxnOffsetCommit with the member and its generation, which is checked (KIP-447)."""

TXN_ABORTABLE_SINCE = 4
TXN_ADDS_SINCE = 5
"""First version of TxnOffsetCommit that adds the group to the transaction (KIP-890); before, AddOffsetsToTxn does."""

TXN_LIKE_OFFSET_COMMIT_SINCE = 6
"""First version of TxnOffsetCommit with topic ids and the group errors of OffsetCommit 10 (KIP-1319)."""

_TOLD: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    **dict.fromkeys(
        (
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
        ),
        # On this error all clients retry with this group coordinator: the failure is at the transaction coordinator.
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ),
}
"""Error of the transaction coordinator -> error for clients of any version; others are passed on unchanged."""

RETENTION_MS_MAX = 10**14
"""Maximum retention in ms, about 3,000 years: added to a timestamp it still fits into a record."""


class PartitionOffset(NamedTuple):
    """Offset to commit in one partition; `leader_epoch` is -1 and `metadata` None if the client omits them."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class OffsetsOfTopic(NamedTuple):
    """Offsets to commit in one topic, named by name or (OffsetCommit 10, TxnOffsetCommit 6 and later) by id."""

    name: str | None
    topic_id: TopicId | None
    offsets: Mapped[PartitionOffset]


class OffsetCommit(NamedTuple):
    """A decoded OffsetCommit request; for the fields see `CommitOffsets`."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int | None
    topics: Mapped[OffsetsOfTopic]


class OffsetCommitHandler:
    """Writes and deletes committed offsets."""

    def __init__(
        self,
        *,
        groups: GroupCoordinator,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        verifier: Asks,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._image = image
        self._authorizer = authorizer
        self._access = OffsetAccess(image, authorizer)
        self._verifier = verifier
        self._clock = clock

    # OffsetCommit

    async def commit(self, call: Call) -> Any:
        """Answer OffsetCommit: one error per offset."""
        return _committed(call, await self._commit(call, _wanted(call)))

    async def _commit(self, call: Call, request: OffsetCommit) -> list[list[ErrorCode]]:
        """Commit offsets; returns one error per offset, in the order of the request.

        Errors of an offset: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED,
        OFFSET_METADATA_TOO_LARGE, COORDINATOR_NOT_AVAILABLE (not written, or unknown whether it was),
        INVALID_COMMIT_OFFSET_SIZE.

        Raises:
            KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS,
                GROUP_ID_NOT_FOUND (version 9 and later); for members of the consumer protocol STALE_MEMBER_EPOCH, and
                UNSUPPORTED_VERSION before version 9.
        """
        context, stepped = call.context, call.connection.stepped
        self._access.check_group(context, Operation.READ, request.group_id)
        accepted, errors = await stepped(self._judge(context, request.topics))
        if request.topics and not accepted:
            return errors
        v9 = context.version >= GROUP_NOT_FOUND_SINCE
        command = CommitOffsets(
            group_id=request.group_id,
            generation=request.generation,
            member_id=request.member_id,
            instance_id=request.instance_id,
            offsets=accepted,
            retention_ms=request.retention_ms,
            unknown_group=ErrorCode.GROUP_ID_NOT_FOUND if v9 else ErrorCode.ILLEGAL_GENERATION,
            knows_epochs=v9,
        )
        return await stepped(_merged(errors, await self._groups.ask(request.group_id, command)))

    def _judge(
        self, context: RequestContext, topics: Iterable[OffsetsOfTopic]
    ) -> Steps[tuple[tuple[OffsetToCommit, ...], list[list[ErrorCode]]]]:
        """Check rights and topics. Returns the accepted offsets, and an error per offset by topic: NONE if accepted."""
        accepted: list[OffsetToCommit] = []
        pace = Pace()
        errors: list[list[ErrorCode]] = []
        for wanted in topics:
            found, fault = self._access.find_topic(context, wanted.name, wanted.topic_id)
            own: list[ErrorCode] = []
            for one in wanted.offsets:
                if found is None or one.partition not in found.partitions:
                    own.append(fault if found is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    own.append(ErrorCode.NONE)
                    what = (one.partition, one.offset, one.leader_epoch, one.metadata or "")
                    # schedule 63/offset-committed-without-its-topic
                    accepted.append(OffsetToCommit(found.name, *what, topic_id=found.topic_id))
                if pace.is_due():
                    yield
            errors.append(own)
            if pace.is_due():
                yield
        return tuple(accepted), errors

    # TxnOffsetCommit

    async def commit_in_transaction(self, call: Call) -> Any:
        """Answer TxnOffsetCommit: one error per offset, as for OffsetCommit.

        Raises:
            KafkaError: as OffsetCommit does, but ILLEGAL_GENERATION in the place of GROUP_ID_NOT_FOUND and
                STALE_MEMBER_EPOCH before version 6; and errors of the transaction coordinator.
            ConnectionSuperseded: the producer has sent offsets on a newer connection (versions before 5).
        """
        request, context = call.request, call.context
        served(self._image())
        require(self._authorizer, context, Operation.WRITE, transaction(request.transactional_id))
        self._access.check_group(context, Operation.READ, request.group_id)
        by_id, epochs = _by_id(call), context.version >= TXN_EPOCH_SINCE
        topics = Mapped(partial(_topic, by_id=by_id, epochs=epochs), request.topics)
        accepted, errors = await call.connection.stepped(self._judge(context, topics))
        if accepted:
            fenced = context.version >= TXN_MEMBER_SINCE
            v6 = context.version >= TXN_LIKE_OFFSET_COMMIT_SINCE
            command = CommitOffsets(
                group_id=request.group_id,
                generation=request.generation_id if fenced else -1,
                member_id=request.member_id if fenced else "",
                instance_id=request.group_instance_id if fenced else None,
                offsets=accepted,
                unknown_group=ErrorCode.GROUP_ID_NOT_FOUND if v6 else ErrorCode.ILLEGAL_GENERATION,
                knows_epochs=v6,
                transaction=await self._transaction(context, request),
                connection=NO_CONNECTION if context.version >= TXN_ADDS_SINCE else context.peer.number,
            )
            outcome: list[ErrorCode] = counted(await self._groups.ask(request.group_id, command))
            known = (_known(error, context.version) for error in outcome)
            errors = await call.connection.stepped(_merged(errors, known))
        return _committed(call, errors)

    async def _transaction(self, context: RequestContext, request: Any) -> Transaction:
        """Return the producer's transaction after its coordinator has confirmed that the group's partition is part of
        it. Without this, offsets that arrive late would begin a transaction that is never ended, as late batches of a
        producer would (KAFKA-15449).

        Raises KafkaError: the partition is not part of the transaction, or the coordinator does not answer.
        """
        producer = request.producer_id, request.producer_epoch
        add = context.version >= TXN_ADDS_SINCE
        tp, verification = await self._groups.begin_verification(request.group_id, *producer, own_epoch=add)
        if verification is not None:
            answers = await ask_again(
                self._verifier, self._clock, request.transactional_id, producer, [tp], add=add, timeout_ms=AGAIN_MS_MAX
            )
            code = answers.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is not ErrorCode.NONE:  # rule C17/offsets-without-the-coordinators-word
                told = _known(_TOLD.get(code, code), context.version)
                if not told.retriable:
                    self._groups.runtime.end_verification(tp.partition, verification)
                words = (
                    f"the coordinator of {request.transactional_id!r} does not let {tp} into a transaction: {code.name}"
                )
                raise KafkaError(told, words)
        return Transaction(*producer, verification)

    # OffsetDelete

    async def delete(self, call: Call) -> Any:
        """Answer OffsetDelete: one error per partition."""
        request = call.request
        asked = [(topic.name, tuple(one.partition_index for one in topic.partitions)) for topic in request.topics]
        errors = await self._delete(call.context, request.group_id, asked)

        def deleted(topic: Any, own: Sequence[ErrorCode]) -> Any:
            return part(name=topic.name, partitions=Mapped(_outcome, topic.partitions, own))

        return part(error_code=ErrorCode.NONE, topics=Mapped(deleted, request.topics, errors))

    async def _delete(
        self, context: RequestContext, group_id: str, topics: Sequence[tuple[str, tuple[int, ...]]]
    ) -> list[list[ErrorCode]]:
        """Delete offsets; returns one error per partition: NONE, GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION,
        TOPIC_AUTHORIZATION_FAILED.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (its members are not consumers).
        """
        self._access.check_group(context, Operation.DELETE, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        asked: list[tuple[str, int]] = []
        errors: list[list[ErrorCode]] = []
        for name, partitions in topics:
            found, fault = self._access.find_topic(context, name, None)
            errors.append([fault] * len(partitions))
            if found is not None:
                asked += [(name, partition) for partition in partitions]
        return at_once(_merged(errors, await self._groups.ask(group_id, DeleteOffsets(group_id, tuple(asked)))))


def _known(code: ErrorCode, version: int) -> ErrorCode:
    """Return the error, translated for this version of TxnOffsetCommit if it says that the transaction cannot go on."""
    if code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
        return ErrorCode.TRANSACTION_ABORTABLE if version >= TXN_ABORTABLE_SINCE else ErrorCode.INVALID_TXN_STATE
    return code


def _merged(errors: list[list[ErrorCode]], outcome: Iterable[ErrorCode]) -> Steps[list[list[ErrorCode]]]:
    """Return `errors` with each NONE replaced by the next error in `outcome`, the group's results in order."""
    of_accepted = iter(outcome)
    return each(lambda own: [next(of_accepted) if error is ErrorCode.NONE else error for error in own], errors)


def _topic(topic: Any, *, by_id: bool, epochs: bool) -> OffsetsOfTopic:
    def offset(one: Any) -> PartitionOffset:
        epoch = one.committed_leader_epoch if epochs else -1
        return PartitionOffset(one.partition_index, one.committed_offset, epoch, one.committed_metadata)

    offsets = Mapped(offset, topic.partitions)
    return OffsetsOfTopic(None if by_id else topic.name, topic.topic_id if by_id else None, offsets)


def _wanted(call: Call) -> OffsetCommit:
    request, version = call.request, call.context.version
    retention_ms = min(request.retention_time, RETENTION_MS_MAX) if version <= RETENTION_UNTIL else -1
    by_id = _by_id(call)
    topics = Mapped(partial(_topic, by_id=by_id, epochs=version >= EPOCH_SINCE), request.topics)
    return OffsetCommit(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id if version >= INSTANCE_SINCE else None,
        retention_ms=retention_ms if retention_ms >= 0 else None,
        topics=topics,
    )


def _by_id(call: Call) -> bool:
    """Return whether request and response name topics by id."""
    since = TOPIC_ID_SINCE if call.api is Api.OFFSET_COMMIT else TXN_LIKE_OFFSET_COMMIT_SINCE
    return call.context.version >= since


def _committed(call: Call, errors: Sequence[Sequence[ErrorCode]]) -> Any:
    by_id = _by_id(call)

    def committed(topic: Any, own: Sequence[ErrorCode]) -> Any:
        named = {"topic_id": topic.topic_id} if by_id else {"name": topic.name}
        return part(**named, partitions=Mapped(_outcome, topic.partitions, own))

    return part(topics=Mapped(committed, call.request.topics, errors))


def _outcome(one: Any, error: ErrorCode) -> Any:
    return part(partition_index=one.partition_index, error_code=error)


def _offsets_deleted(request: Any, answer: Any) -> Iterator[Change]:
    if answer.error_code is not ErrorCode.NONE:
        for topic in request.topics:
            for one in topic.partitions:
                yield f"group {request.group_id}: offset of {topic.name}-{one.partition_index}", answer.error_code
    for topic in answer.topics:
        for one in topic.partitions:
            yield f"group {request.group_id}: offset of {topic.name}-{one.partition_index}", one.error_code


ROWS = (
    by_schema(Api.OFFSET_COMMIT, (2, 10), OffsetCommitHandler, OffsetCommitHandler.commit),
    by_schema(Api.TXN_OFFSET_COMMIT, (0, 6), OffsetCommitHandler, OffsetCommitHandler.commit_in_transaction),
    by_schema(Api.OFFSET_DELETE, (0, 0), OffsetCommitHandler, OffsetCommitHandler.delete, changes=_offsets_deleted),
)
