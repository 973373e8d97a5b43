"""Produce (0): batches stay views of the receive buffer until they are written."""

from __future__ import annotations

from strandline.cluster.broker.api import INJECTED, ServedApi
from strandline.cluster.broker.exchange import Exchange
from strandline.cluster.broker.node_endpoints import node_endpoints
from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.cluster.broker.service.produce import ProduceResult
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import NO_TAGS
from strandline.proto.kafka.frames import OWN_CLIENT
from strandline.proto.kafka.produce import (
    FIRST,
    LAST,
    LEADER_SINCE,
    PartitionResult,
    read_request,
    write_response,
)


def _handle(exchange: Exchange, body: memoryview, service: BrokerService) -> None:
    request = read_request(body, exchange.context.version)

    def done(result: ProduceResult) -> None:
        if request.acks != 0:
            _respond(exchange, service, result)
        elif result.failed:
            # Kafka's rule: with acks=0 a closed connection is the only way to tell the producer to look again.
            exchange.drop_connection(f"a write with acks=0 failed: {_first_fault(result)}")
        else:
            exchange.respond_nothing()

    service.produce(exchange.context, request, lambda result: exchange.attempt(lambda: done(result)))


def _respond(exchange: Exchange, service: BrokerService, result: ProduceResult) -> None:
    context = exchange.context
    body = write_response(
        context.version,
        result.topics,
        tell_replicas=context.peer.software_name == OWN_CLIENT,
        end_tags=_end_tags(exchange, service, result),
    )
    exchange.respond([body])


def _end_tags(exchange: Exchange, service: BrokerService, result: ProduceResult) -> bytes:
    if not result.failed or exchange.context.version < LEADER_SINCE:
        return NO_TAGS
    leaders = [partition.leader_id for _, partitions in result.topics for partition in partitions]
    return node_endpoints(service, exchange.context, leaders)


def _first_fault(result: ProduceResult) -> str:
    for topic, partitions in result.topics:
        for partition in partitions:
            if partition.error is not ErrorCode.NONE:
                return f"{topic.name or topic.topic_id}-{partition.index}: {partition.error.name} {partition.message}"
    return ""


def _refuse_all(exchange: Exchange, body: memoryview, service: BrokerService, error: ErrorCode) -> bool:
    request = read_request(body, exchange.context.version)
    if not any(topic.partitions for topic in request.topics):
        return False
    if request.acks == 0:
        exchange.drop_connection(f"a write with acks=0 failed: {error.name} {INJECTED}")
        return True
    result = ProduceResult(
        [
            (topic, [PartitionResult(index, error, INJECTED) for index, _records in topic.partitions])
            for topic in request.topics
        ],
        failed=True,
    )
    _respond(exchange, service, result)
    return True


API = ServedApi(Api.PRODUCE, FIRST, LAST, _handle, _refuse_all, large=True)
