"""Requests to the transaction coordinator: InitProducerId (22) with a transactional id, AddPartitionsToTxn (24),
AddOffsetsToTxn (25), EndTxn (26), DescribeTransactions (65) and ListTransactions (66).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.request import (
    NO_TRANSACTIONS,
    Authorizer,
    RequestContext,
    allowed,
    group,
    require,
    topic,
    transaction,
)
from strandline.cluster.groups.connections import NO_CONNECTION
from strandline.cluster.groups.consumer_protocol.subscriptions import PatternError, TopicPattern
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.transactions.commands import EPOCH_VERSION, FIRST_VERSION, ListTransactions, Producer
from strandline.cluster.transactions.transaction_coordinator import TransactionCoordinator
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.transaction_records import NO_EPOCH, NO_ID, TransactionState, TransactionValue
from strandline.proto.steps import Mapped, each

FENCED_SINCE: Mapping[Api, int] = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 2,
    Api.ADD_OFFSETS_TO_TXN: 2,
    Api.END_TXN: 2,
}
"""First version of each API whose clients know PRODUCER_FENCED (KIP-588)."""

EPOCH_SINCE = 5
"""First version of EndTxn whose clients know that each end raises their epoch (KIP-890)."""

MANY_SINCE = 4
"""First version of AddPartitionsToTxn with several transactions per request; only brokers send it."""

ABORTABLE_SINCE = 5
"""First version of AddPartitionsToTxn whose clients know TRANSACTION_ABORTABLE."""

GIVEN_SINCE = 3
"""First version of InitProducerId with the producer's current id and epoch (KIP-360)."""

DURATION_SINCE = 1
PATTERN_SINCE = 2

Errors = Mapping[TopicPartition, ErrorCode]


def served(image: MetadataImage) -> None:
    """Check that the cluster has transactions. Raises KafkaError TRANSACTIONAL_ID_AUTHORIZATION_FAILED otherwise, on
    which every client gives up at once."""
    if image.transaction_version < FIRST_VERSION:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)


def for_client(call: Call, error: ErrorCode) -> ErrorCode:
    """Return the error, translated for clients that do not know PRODUCER_FENCED."""
    if error is ErrorCode.PRODUCER_FENCED and call.context.version < FENCED_SINCE[call.api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


class TransactionsHandler:
    """Forwards requests of clients and brokers to this broker's transaction coordinator."""

    def __init__(
        self,
        *,
        transactions: TransactionCoordinator,
        groups: GroupCoordinator,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
    ) -> None:
        self._transactions = transactions
        self._groups = groups
        self._image = image
        self._authorizer = authorizer

    def _check(self, context: RequestContext, operation: Operation, transactional_id: str) -> None:
        """Raises KafkaError if the cluster has no transactions, the principal has no right, or the id is ""."""
        served(self._image())
        require(self._authorizer, context, operation, transaction(transactional_id))
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id has one character at least")

    # InitProducerId

    async def init_producer_id(self, call: Call) -> Any:
        """Answer InitProducerId with a transactional id: id and epoch of the producer that may write from now on."""
        request = call.request
        given = (NO_ID, NO_EPOCH)
        if call.context.version >= GIVEN_SINCE:
            given = (request.producer_id, request.producer_epoch)
        try:
            self._check(call.context, Operation.WRITE, request.transactional_id)
            timeout_ms, timeout_ms_max = request.transaction_timeout, self._transactions.config.max_timeout_ms
            if not 0 < timeout_ms <= timeout_ms_max:
                allowed_ms = f"1 to {timeout_ms_max} (transaction.max.timeout.ms) is possible"
                raise KafkaError(
                    ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"transaction.timeout.ms={timeout_ms}: {allowed_ms}"
                )
            if (given[0] == NO_ID) != (given[1] == NO_EPOCH):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together")
            producer = await self._transactions.init_producer_id(request.transactional_id, timeout_ms, *given)
        except KafkaError as error:
            raise KafkaError(for_client(call, error.code), error.message) from error
        return part(error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.epoch)

    # AddPartitionsToTxn

    async def add_partitions(self, call: Call) -> Any:
        """Answer AddPartitionsToTxn: one error per partition, by transaction."""
        request = call.request
        if call.context.version < MANY_SINCE:
            wanted = await call.connection.stepped(each(_partition, _partitions(request.v3_and_below_topics)))
            errors = await self._add_for_client(call, wanted)
            return part(results_by_topic_v3_and_below=_by_topic(request.v3_and_below_topics, errors))
        served(self._image())
        require(self._authorizer, call.context, Operation.CLUSTER_ACTION, CLUSTER)

        async def add(one: Any) -> Any:
            errors = await self._add_for_broker(call, one)
            return part(transactional_id=one.transactional_id, topic_results=_by_topic(one.topics, errors))

        results = await call.connection.each(add, request.transactions)
        return part(error_code=ErrorCode.NONE, results_by_transaction=results)

    async def _add_for_client(self, call: Call, partitions: Sequence[TopicPartition]) -> Errors:
        """Add all partitions or none: if one is invalid, the others get OPERATION_NOT_ATTEMPTED."""
        request = call.request
        try:
            self._check(call.context, Operation.WRITE, request.v3_and_below_transactional_id)
            found = await call.connection.stepped(each(partial(self._fault, call.context), partitions))
            faults = dict(zip(partitions, found, strict=True))
            if any(fault is not ErrorCode.NONE for fault in faults.values()):  # rule C4/partitions-are-added-one-by-one
                return {
                    partition: ErrorCode.OPERATION_NOT_ATTEMPTED if fault is ErrorCode.NONE else fault
                    for partition, fault in faults.items()
                }
            return await self._transactions.add_partitions(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                frozenset(partitions),
                connection=call.context.peer.number,
            )
        except KafkaError as error:
            return dict.fromkeys(partitions, for_client(call, error.code))

    def _fault(self, context: RequestContext, partition: TopicPartition) -> ErrorCode:
        """Return the error for which a partition cannot be part of a client's transaction, or NONE."""
        if not allowed(self._authorizer, context, Operation.WRITE, topic(partition.topic)):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if partition.topic in INTERNAL_TOPICS:  # rule C4/markers-in-topics-of-the-cluster
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if self._image().partition(*partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    async def _add_for_broker(self, call: Call, one: Any) -> Errors:
        partitions = [_partition(asked) for asked in _partitions(one.topics)]
        try:
            errors = await self._transactions.add_partitions(
                one.transactional_id,
                one.producer_id,
                one.producer_epoch,
                frozenset(partitions),
                verify_only=one.verify_only,
            )
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        if call.context.version >= ABORTABLE_SINCE:
            return errors
        abortable = ErrorCode.TRANSACTION_ABORTABLE
        return {name: ErrorCode.INVALID_TXN_STATE if code is abortable else code for name, code in errors.items()}

    # AddOffsetsToTxn

    async def add_offsets(self, call: Call) -> Any:
        """Answer AddOffsetsToTxn: add a group's partition of the offsets topic to the transaction."""
        request = call.request
        try:
            self._check(call.context, Operation.WRITE, request.transactional_id)
            require(self._authorizer, call.context, Operation.READ, group(request.group_id))
            await self._groups.ensure_topic()
            await self._transactions.add_offsets(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                request.group_id,
                call.context.peer.number,
            )
        except KafkaError as error:
            raise KafkaError(for_client(call, error.code), error.message) from error
        return part(error_code=ErrorCode.NONE)

    # EndTxn

    async def end(self, call: Call) -> Any:
        """Answer EndTxn once the commit or abort is decided: id and epoch of the producer for the next transaction."""
        request = call.request
        version = EPOCH_VERSION if call.context.version >= EPOCH_SINCE else FIRST_VERSION
        try:
            self._check(call.context, Operation.WRITE, request.transactional_id)
            producer: Producer = await self._transactions.end(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                commit=request.committed,
                version=version,
                connection=call.context.peer.number if version < EPOCH_VERSION else NO_CONNECTION,
            )
        except KafkaError as error:
            raise KafkaError(for_client(call, error.code), error.message) from error
        return part(error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.epoch)

    # Looking

    async def list_transactions(self, call: Call) -> Any:
        """Answer ListTransactions: the transactional ids that this broker coordinates and the principal may see."""
        request, version = call.request, call.context.version
        text = (request.transactional_id_pattern or "") if version >= PATTERN_SINCE else ""
        pattern = _pattern(text)
        known = {state.title for state in TransactionState}
        command = ListTransactions(
            states=tuple(request.state_filters),
            producer_ids=tuple(request.producer_id_filters),
            duration_ms=request.duration_filter if version >= DURATION_SINCE else -1,
        )
        listed = await self._transactions.list_transactions(command)
        wanted = [one for one in listed if pattern is None or pattern.matches(one.transactional_id)]
        actions = [(Operation.DESCRIBE, transaction(one.transactional_id)) for one in wanted]
        answers = self._authorizer.authorize(call.context, actions, noted=False)
        # rule A20/transactions-are-listed-to-all
        seen = [one for one, answer in zip(wanted, answers, strict=True) if answer]
        return part(
            error_code=ErrorCode.NONE,
            unknown_state_filters=tuple(state for state in request.state_filters if state not in known),
            transaction_states=tuple(
                part(
                    transactional_id=one.transactional_id,
                    producer_id=one.producer_id,
                    transaction_state=one.state,
                )
                for one in seen
            ),
        )

    async def describe(self, call: Call) -> Any:
        """Answer DescribeTransactions: one answer per transactional id; an id named repeatedly has one answer."""
        wanted = dict.fromkeys(call.request.transactional_ids)
        return part(transaction_states=await call.connection.each(partial(self._describe, call.context), wanted))

    async def _describe(self, context: RequestContext, transactional_id: str) -> Any:
        try:
            self._check(context, Operation.DESCRIBE, transactional_id)
            value = await self._transactions.describe(transactional_id, asked_ms=context.received_ms)
            return self._described(context, transactional_id, value)
        except KafkaError as error:
            return _not_described(transactional_id, error.code)

    def _described(self, context: RequestContext, transactional_id: str, value: TransactionValue) -> Any:
        topics: dict[str, list[int]] = {}
        for name, partition in sorted(value.partitions):
            topics.setdefault(name, []).append(partition)
        answers = self._authorizer.authorize(
            context, [(Operation.DESCRIBE, topic(name)) for name in topics], noted=False
        )
        return part(
            error_code=ErrorCode.NONE,
            transactional_id=transactional_id,
            transaction_state=value.state.title,
            transaction_timeout=value.timeout_ms,
            transaction_start_time=value.started_ms,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            topics=tuple(
                part(topic=name, partitions=tuple(partitions))
                for (name, partitions), answer in zip(topics.items(), answers, strict=True)
                if answer
            ),
        )


def _not_described(transactional_id: str, error: ErrorCode) -> Any:
    return part(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=0,
        transaction_start_time=0,
        producer_id=NO_ID,
        producer_epoch=NO_EPOCH,
        topics=(),
    )


def _pattern(text: str) -> TopicPattern | None:
    """Compile a regular expression (RE2, KIP-1152); None if `text` is "", which matches every id. Raises KafkaError
    INVALID_REGULAR_EXPRESSION."""
    try:
        return TopicPattern(text) if text else None
    except PatternError as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{text[:100]!r}: {error}") from error


def _partitions(topics: Sequence[Any]) -> Iterator[tuple[str, int]]:
    return ((one.name, number) for one in topics for number in one.partitions)


def _partition(asked: tuple[str, int]) -> TopicPartition:
    return TopicPartition(*asked)


def _by_topic(topics: Sequence[Any], errors: Errors) -> Any:
    def result(name: str, number: int) -> Any:
        return part(partition_index=number, partition_error_code=errors[TopicPartition(name, number)])

    return Mapped(
        lambda one: part(name=one.name, results_by_partition=Mapped(partial(result, one.name), one.partitions)), topics
    )


ROWS = (
    by_schema(Api.ADD_PARTITIONS_TO_TXN, (0, 5), TransactionsHandler, TransactionsHandler.add_partitions),
    by_schema(Api.ADD_OFFSETS_TO_TXN, (0, 4), TransactionsHandler, TransactionsHandler.add_offsets),
    by_schema(Api.END_TXN, (0, 5), TransactionsHandler, TransactionsHandler.end),
    by_schema(Api.DESCRIBE_TRANSACTIONS, (0, 0), TransactionsHandler, TransactionsHandler.describe),
    by_schema(Api.LIST_TRANSACTIONS, (0, 2), TransactionsHandler, TransactionsHandler.list_transactions),
)
