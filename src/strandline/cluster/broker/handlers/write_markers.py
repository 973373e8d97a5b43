"""WriteTxnMarkers (27): an operator ends a hanging transaction, one that is open in partitions of which its coordinator
does not know (KIP-664). Coordinators use another call, between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import NO_TRANSACTIONS, Authorizer, allowed, require
from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.cluster.transactions.marker_writes import (
    NO_ORDER,
    MarkerToWrite,
    MarkerWriter,
    NamedPartition,
    Sender,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_BROKER_EPOCH, NodeId
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.kafka.apis import Api

VERSION_OF_TRANSACTIONS_SINCE = 2
"""First version of WriteTxnMarkers with the transaction.version by which a transaction ends (KIP-1228)."""

_TOLD = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""Error of the group coordinator for its partitions -> error as for all other partitions."""


class WriteMarkersHandler:
    """Answers WriteTxnMarkers by this broker's `MarkerWriter`."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        writer: MarkerWriter,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
    ) -> None:
        self._node_id = node_id
        self._writer = writer
        self._image = image
        self._authorizer = authorizer

    async def write(self, call: Call) -> Any:
        """Answer WriteTxnMarkers: one error per partition, once all in-sync replicas have the marker and the groups the
        offsets that it commits; REQUEST_TIMED_OUT if that takes too long.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION while the cluster has no transactions.
        """
        if not allowed(self._authorizer, call.context, Operation.ALTER, CLUSTER, noted=False):
            require(self._authorizer, call.context, Operation.CLUSTER_ACTION, CLUSTER)
        if self._image().transaction_version == 0:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, NO_TRANSACTIONS)
        markers = [_marker(marker, call.context.version) for marker in call.request.markers]
        faults = [self._fault(one) for marker in markers for one in marker.partitions]
        fault = iter(faults)
        wanted = [
            replace(marker, partitions=tuple(one for one in marker.partitions if next(fault) is ErrorCode.NONE))
            for marker in markers
        ]
        written = iter(await self._writer.write(Sender(self._node_id, NO_BROKER_EPOCH), wanted))
        errors = [next(written) if fault is ErrorCode.NONE else fault for fault in faults]
        return _answer(call, iter(errors))

    def _fault(self, one: NamedPartition) -> ErrorCode:
        if self._image().partition(*one.place) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if one.topic in INTERNAL_TOPICS and one.topic != OFFSETS_TOPIC:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return ErrorCode.NONE


def _marker(marker: Any, version: int) -> MarkerToWrite:
    return MarkerToWrite(
        NO_ORDER,
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version if version >= VERSION_OF_TRANSACTIONS_SINCE else 1,
        tuple(NamedPartition(topic.name, number) for topic in marker.topics for number in topic.partition_indexes),
    )


def _answer(call: Call, errors: Iterator[ErrorCode]) -> Any:
    """Return the response: the request's markers with an error per partition, in order."""
    return part(
        markers=tuple(
            part(
                producer_id=marker.producer_id,
                topics=tuple(
                    part(
                        name=topic.name,
                        partitions=tuple(
                            part(partition_index=number, error_code=_TOLD.get(error, error))
                            for number, error in zip(topic.partition_indexes, errors, strict=False)
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in call.request.markers
        )
    )


def _refuse(_: WriteMarkersHandler, call: Call, error: ErrorCode, message: str) -> Any:
    asked = (number for marker in call.request.markers for topic in marker.topics for number in topic.partition_indexes)
    return _answer(call, (error for _ in asked))


def _ended(request: Any, answer: Any) -> Iterator[Change]:
    for marker, told in zip(request.markers, answer.markers, strict=True):
        verb = "committed" if marker.transaction_result else "aborted"
        for topic in told.topics:
            for one in topic.partitions:
                what = f"topic {topic.name}-{one.partition_index}: transaction of producer {marker.producer_id} {verb}"
                yield what, one.error_code


ROWS = (
    by_schema(
        Api.WRITE_TXN_MARKERS,
        (1, 2),
        WriteMarkersHandler,
        WriteMarkersHandler.write,
        refuse=_refuse,
        changes=_ended,
    ),
)
