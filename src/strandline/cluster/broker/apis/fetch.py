"""Fetch (1): sessions (KIP-227) around the service's fetch."""

from __future__ import annotations

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.exchange import Exchange
from strandline.cluster.broker.fetch_sessions import Opened
from strandline.cluster.broker.node_endpoints import node_endpoints
from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.cluster.broker.service.fetch import FetchedPartition
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch_request import (
    FIRST,
    LAST,
    NO_SESSION,
    SESSION_SINCE,
    TOPIC_ID_SINCE,
    FetchRequest,
    read_request,
)
from strandline.proto.kafka.fetch_response import LEADER_SINCE, write_response
from strandline.proto.kafka.fields import NO_TAGS

SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Told of the whole answer, not of a partition."""


def _open(exchange: Exchange, message: FetchRequest) -> Opened:
    return exchange.connection.listener.fetch_sessions.open(
        exchange.connection,
        session_id=message.session_id,
        epoch=message.session_epoch,
        by_id=exchange.context.version >= TOPIC_ID_SINCE,
        wanted=message.partitions,
        forgotten=message.forgotten,
    )


def _handle(exchange: Exchange, body: memoryview, service: BrokerService) -> None:
    context = exchange.context
    version = context.version
    message = read_request(body, version)
    opened = _open(exchange, message)
    if opened.error is not ErrorCode.NONE:
        exchange.respond(write_response(version, [], isolation_level=message.isolation_level, error=opened.error))
        return

    def done(results: list[FetchedPartition]) -> None:
        session = opened.session
        news = results
        if session is not None:
            told = session.news(results)
            news = told if opened.incremental else results
        leaders = [result.leader_id for result in news] if version >= LEADER_SINCE else []
        end_tags = node_endpoints(service, context, leaders) if leaders else NO_TAGS
        session_id = NO_SESSION if session is None else session.session_id
        exchange.respond(
            write_response(
                version, news, isolation_level=message.isolation_level, session_id=session_id, end_tags=end_tags
            )
        )

    request = message._replace(partitions=opened.wanted)
    fetch = service.fetch(context, request, lambda results: exchange.attempt(lambda: done(results)))
    if not exchange.ready:
        exchange.when_gone = fetch.cancel


def _refuse_all(exchange: Exchange, body: memoryview, service: BrokerService, error: ErrorCode) -> bool:
    version = exchange.context.version
    message = read_request(body, version)
    opened = Opened(error, None, False, [])
    if error not in SESSION_ERRORS:
        opened = _open(exchange, message)
    if opened.error is not ErrorCode.NONE or not opened.wanted:
        if version < SESSION_SINCE:
            return False
        exchange.respond(write_response(version, [], isolation_level=message.isolation_level, error=error))
        return True
    results = [FetchedPartition(wanted) for wanted in opened.wanted]
    for result in results:
        result.fail(error)
    session_id = NO_SESSION
    if opened.session is not None:
        opened.session.news(results)
        session_id = opened.session.session_id
    exchange.respond(write_response(version, results, isolation_level=message.isolation_level, session_id=session_id))
    return True


API = ServedApi(Api.FETCH, FIRST, LAST, _handle, _refuse_all, large_answer=True)
