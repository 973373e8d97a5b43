"""Fetch (1): committed batches from the leaders of their partitions, in sessions (KIP-227)."""

from __future__ import annotations

from collections.abc import Callable

from strandline.cluster.broker.brokers import Brokers
from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.exchange import Exchange
from strandline.cluster.broker.fetch_sessions import FetchSessions, Opened
from strandline.cluster.broker.memory import MemoryBudget
from strandline.cluster.broker.parked_fetch import Fetch, FetchedPartition, Shared, point_to_leader
from strandline.cluster.broker.request import Authorizer, RequestContext, allowed, topic
from strandline.cluster.broker.requested_topics import find_topic
from strandline.controller.metadata.image import MetadataImage
from strandline.log.compression import Codec
from strandline.proto.acls import Operation
from strandline.proto.deadlines import Deadlines
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.kafka.fetch_request import (
    NO_SESSION,
    SESSION_SINCE,
    TOPIC_ID_SINCE,
    FetchRequest,
    read_request,
)
from strandline.proto.kafka.fetch_response import LEADER_SINCE, write_response
from strandline.proto.kafka.fields import NO_TAGS
from strandline.proto.ports import Clock
from strandline.replica.manager import ReplicaManager

ZSTD_SINCE = 10
"""KIP-110: an older consumer cannot mean to read zstd."""

GRANULARITY_MS = 5.0
"""A long poll ends this much late at most."""

SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""They are of the whole answer, not of a partition."""


class FetchHandler:
    """Decodes, finds the partitions, reads them (`parked_fetch.py`), answers.

    Attributes:
        sessions: the fetch sessions of all connections.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        replicas: ReplicaManager,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        brokers: Brokers,
        memory: MemoryBudget,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._image = image
        self._authorizer = authorizer
        self._brokers = brokers
        self._deadlines = Deadlines(clock, GRANULARITY_MS)
        self._shared = Shared(replicas, image, memory, self._deadlines, config.fetch_max_bytes, config.rack_aware_fetch)
        self.sessions = FetchSessions(clock, config.fetch_session_slots)

    def close(self) -> None:
        """Forget every deadline; nothing is answered any more."""
        self._deadlines.close()

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Read; answered at once, or when there is enough, or when the wait is over.

        Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED,
        NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR,
        and INVALID_REQUEST to one who says to be a replica.
        """
        context = exchange.context
        message = read_request(body, context.version)
        opened = self._open(exchange, message)
        if opened.error is not ErrorCode.NONE:
            exchange.respond(
                write_response(
                    context.version,
                    [],
                    isolation_level=message.isolation_level,
                    error=opened.error,
                    throttle_ms=exchange.throttle_ms(),
                )
            )
            return
        message = message._replace(max_bytes=int(min(message.max_bytes, exchange.fetch_bytes_max)))

        asked = self._authorizer.generation
        results = [FetchedPartition(wanted) for wanted in opened.wanted]
        for result in results:
            self._locate(context, message, result)
        fetch = Fetch(
            self._shared,
            message,
            results,
            lambda results: exchange.attempt(lambda: self._respond(exchange, message, opened, results, asked)),
        )
        fetch.start()
        if not exchange.ready:
            exchange.when_gone = fetch.cancel

    def refuse_all(self, exchange: Exchange, body: memoryview, error: ErrorCode) -> bool:
        """Every partition has this error, or the whole answer where it is one of sessions."""
        version = exchange.context.version
        message = read_request(body, version)
        opened = Opened(error, None, False, [])
        if error not in SESSION_ERRORS:
            opened = self._open(exchange, message)
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
            opened.session.changed(results)
            session_id = opened.session.session_id
        exchange.respond(
            write_response(version, results, isolation_level=message.isolation_level, session_id=session_id)
        )
        return True

    def _open(self, exchange: Exchange, message: FetchRequest) -> Opened:
        return self.sessions.open(
            exchange.connection,
            session_id=message.session_id,
            epoch=message.session_epoch,
            by_id=exchange.context.version >= TOPIC_ID_SINCE,
            wanted=message.partitions,
            forgotten=message.forgotten,
        )

    def _respond(
        self,
        exchange: Exchange,
        message: FetchRequest,
        opened: Opened,
        results: list[FetchedPartition],
        asked: object,
    ) -> None:
        """Of an incremental session, what the client does not know yet. `asked`: the authorizer's generation when the
        request came."""
        context, session = exchange.context, opened.session
        throttle_ms, sends = exchange.throttle_fetch(sum(result.size for result in results))
        if not sends:
            self._respond_without(exchange, message, opened, throttle_ms)
            return
        if self._authorizer.generation is not asked:
            results = [self._unless_revoked(context, result) for result in results]
        sent = results
        if session is not None:
            changed = session.changed(results)
            sent = changed if opened.incremental else results
        leaders = [result.leader_id for result in sent] if context.version >= LEADER_SINCE else []
        exchange.respond(
            write_response(
                context.version,
                sent,
                isolation_level=message.isolation_level,
                session_id=NO_SESSION if session is None else session.session_id,
                throttle_ms=throttle_ms,
                end_tags=self._brokers.node_endpoints(context, leaders) if leaders else NO_TAGS,
            )
        )

    def _respond_without(self, exchange: Exchange, message: FetchRequest, opened: Opened, throttle_ms: int) -> None:
        """The client has had too much: nothing of what was found, and a session goes on as if it was not asked. One
        that begins with this request does not begin (KIP-219, Kafka's `getThrottledResponse`)."""
        session_id = NO_SESSION
        if opened.session is not None and opened.incremental:
            session_id = opened.session.session_id
        elif opened.session is not None:
            self.sessions.drop(opened.session)
        exchange.respond(
            write_response(
                exchange.context.version,
                [],
                isolation_level=message.isolation_level,
                session_id=session_id,
                throttle_ms=throttle_ms,
            )
        )

    def _unless_revoked(self, context: RequestContext, result: FetchedPartition) -> FetchedPartition:
        """The right to read may have been taken while the fetch waited (rule A20): what it has found is not sent."""
        if result.tp is None or allowed(self._authorizer, context, Operation.READ, topic(result.tp.topic)):
            return result
        refused = FetchedPartition(result.wanted)
        refused.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return refused

    def _locate(self, context: RequestContext, request: FetchRequest, result: FetchedPartition) -> None:
        """Find the partition, ask the authorizer, and compare the reader's history with ours."""
        wanted = result.wanted
        if request.replica_id >= 0:
            result.fail(ErrorCode.INVALID_REQUEST)
            return
        found = find_topic(self._image(), wanted.name, wanted.topic_id)
        name = wanted.name if isinstance(found, ErrorCode) else found.name
        if name is not None and not self._authorizer.authorize(context, ((Operation.READ, topic(name)),))[0]:
            result.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif isinstance(found, ErrorCode):
            result.fail(found)
        elif wanted.partition not in found.partitions:
            result.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif context.version < ZSTD_SINCE and self._is_stored_in_zstd(found.name, wanted.partition):
            result.fail(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        else:
            result.tp = TopicPartition(found.name, wanted.partition)
            if wanted.last_fetched_epoch >= 0:
                self._compare_history(result, result.tp)
            if request.rack and self._shared.rack_aware and not result.says_more:
                self._prefer_nearer(result, result.tp, request.rack)

    def _is_stored_in_zstd(self, name: str, number: int) -> bool:
        """By the setting of the topic, as Kafka has it; what a producer packed so goes to any reader."""
        partition = self._replicas.partition(TopicPartition(name, number))
        if partition is None or partition.log is None or partition.log.config.stored_codec is None:
            return False
        return partition.log.config.stored_codec.codec is Codec.ZSTD

    def _compare_history(self, result: FetchedPartition, tp: TopicPartition) -> None:
        wanted = result.wanted
        end = self._replicas.epoch_end_offset(
            tp, current_leader_epoch=wanted.current_leader_epoch, epoch=wanted.last_fetched_epoch
        )
        if end.error is not ErrorCode.NONE:
            result.fail(end.error)
            point_to_leader(self._image(), result)
        elif end.end_offset < 0:
            result.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif end.leader_epoch < wanted.last_fetched_epoch or end.end_offset < wanted.fetch_offset:
            result.diverging = (end.leader_epoch, end.end_offset)

    def _prefer_nearer(self, result: FetchedPartition, tp: TopicPartition, rack: str) -> None:
        """KIP-392, as the leader: name the replica in the consumer's rack that has most of what it wants to read, if
        it is in sync and this broker is elsewhere."""
        partition = self._replicas.partition(tp)
        brokers = self._image().brokers
        if partition is None or partition.leader is None or partition.log is None:
            return
        if brokers[self._node_id].rack == rack:
            return
        near = [
            follower
            for follower in partition.leader.followers.values()
            if follower.in_isr
            and follower.log_start_offset <= result.wanted.fetch_offset <= follower.fetch_offset
            and (broker := brokers.get(follower.node_id)) is not None
            and broker.rack == rack
            and not broker.fenced
        ]
        if near:
            result.preferred_replica = max(near, key=lambda follower: follower.fetch_offset).node_id
            result.high_watermark = result.last_stable_offset = partition.high_watermark
            result.log_start_offset = partition.log_start_offset
