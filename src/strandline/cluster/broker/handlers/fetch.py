"""Fetch (1): committed batches from the leaders of their partitions, in sessions (KIP-227)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from strandline.cluster.broker.api import by_hand
from strandline.cluster.broker.brokers import Brokers
from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.exchange import Exchange
from strandline.cluster.broker.kept import PARTITION_BYTES, KeptMemory
from strandline.cluster.broker.loop_time import LoopTime
from strandline.cluster.broker.memory import MemoryBudget
from strandline.cluster.broker.parked_fetch import Fetch, FetchedPartition, Shared, point_to_leader
from strandline.cluster.broker.request import Authorizer, RequestContext, allowed, topic
from strandline.cluster.broker.requested_topics import find_topic
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.log.compression import Codec
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import NodeId, TopicId, TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import (
    FINAL_EPOCH,
    FIRST,
    LAST,
    LEADER_SINCE,
    NO_SESSION,
    SESSION_SINCE,
    TOPIC_ID_SINCE,
    FetchPartition,
    FetchRequest,
    PartitionKey,
    read_request,
    read_request_in_steps,
    write_response,
    write_response_in_steps,
)
from strandline.proto.kafka.fields import NO_TAGS, Unencodable
from strandline.proto.ports import Clock
from strandline.proto.steps import ITEMS, Steps, at_once, let_go, parts
from strandline.replica.manager import ReplicaManager
from strandline.replica.waiting import Deadlines

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


INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
EVICTION_MS_MIN = 120_000
"""A session younger than this in its last use is never evicted (Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""


def key_of(wanted: FetchPartition) -> PartitionKey:
    return wanted.topic, wanted.partition


class _Known:
    """A partition of a session, and what the client knows of it. -1: nothing, so the next answer has it."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1

    def must_be_sent(self, result: FetchedPartition) -> bool:
        """Whether the answer has anything new of the partition; remembers what the client then knows."""
        if result.says_more:
            self.high_watermark = -1  # an error is repeated until it is gone, and so is what holds after it
            return True
        before = (self.high_watermark, self.log_start_offset)
        self.high_watermark, self.log_start_offset = result.high_watermark, result.log_start_offset
        return result.size > 0 or before != (result.high_watermark, result.log_start_offset)


class FetchSession:
    """One session. `epoch` is the number that the client's next request must carry."""

    __slots__ = ("by_id", "epoch", "owner", "partitions", "principal", "session_id", "used_ms")

    def __init__(self, session_id: int, owner: object, principal: str, by_id: bool, used_ms: float) -> None:
        self.session_id = session_id
        self.owner = owner
        self.principal = principal
        self.by_id = by_id
        self.used_ms = used_ms
        self.epoch = 1
        self.partitions: dict[PartitionKey, _Known] = {}

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Take up what the client added or changed and drop what it forgot."""
        for partition in wanted:
            key = key_of(partition)
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = _Known(partition)
            else:
                known.wanted = partition
        for key in forgotten:
            self.partitions.pop(key, None)

    def changed(self, results: Sequence[FetchedPartition]) -> list[FetchedPartition]:
        """The results that the client does not know yet. Partitions that gave data go to the end: so none starves."""
        changed = []
        for result in results:
            key = key_of(result.wanted)
            known = self.partitions.get(key)
            if known is None or not known.must_be_sent(result):
                continue
            changed.append(result)
            if result.size > 0:
                self.partitions[key] = self.partitions.pop(key)
        return changed


class Opened(NamedTuple):
    """How one request stands to the sessions.

    Attributes:
        error: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR: answer with it
            alone.
        session: None for a fetch without a session.
        incremental: the answer has only what the client does not know yet.
        wanted: what to read, in order.
    """

    error: ErrorCode
    session: FetchSession | None
    incremental: bool
    wanted: Sequence[FetchPartition]


class FetchSessions:
    """All sessions of a broker (KIP-227): a client names its partitions once and then only what changed.

    A session is a memory of the wire: which partitions the client fetches, and what the last answers said of each. It
    belongs to the connection that opened it, as a client opens a new one after a reconnect anyway, and ends with it. A
    session that nobody has used for a while makes room for a new one, and where there is no room a fetch is served in
    full, without a session.

    What its partitions take is held of the memory that is kept for its principal: where that is used up, a fetch is
    served without a session, too.

    Invariants: at most `slots` sessions; each is found only by the connection that opened it.
    """

    def __init__(self, clock: Clock, slots: int, kept: KeptMemory) -> None:
        self._clock = clock
        self._slots = slots
        self._kept = kept
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self._last_id = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Partitions in all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def open(
        self,
        owner: object,
        *,
        principal: str,
        session_id: int,
        epoch: int,
        by_id: bool,
        wanted: Sequence[FetchPartition],
        forgotten: Sequence[PartitionKey],
        begins: bool = True,
    ) -> Steps[Opened]:
        """What a request with this session id and epoch asks for (Kafka's `FetchManager.newContext`)."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            known = self._sessions.get(session_id)
            if known is not None and known.owner is owner:
                self.drop(known)
            session = None
            if begins and epoch != FINAL_EPOCH and wanted:
                session = yield from self._create(owner, principal, by_id, wanted)
            return Opened(ErrorCode.NONE, session, False, wanted)
        session = self._sessions.get(session_id)
        if session is None or session.owner is not owner:
            return Opened(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, False, [])
        if session.epoch != epoch:
            return Opened(ErrorCode.INVALID_FETCH_SESSION_EPOCH, None, False, [])
        if session.by_id != by_id:
            return Opened(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None, False, [])
        if not (yield from self._update(session, wanted, forgotten)):
            self.drop(session)
            return Opened(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, False, [])
        if not session.partitions:
            self.drop(session)
            return Opened(ErrorCode.NONE, None, False, [])
        del self._sessions[session_id]
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = self._clock.monotonic_ms()
        self._sessions[session_id] = session
        return Opened(ErrorCode.NONE, session, True, [known.wanted for known in session.partitions.values()])

    def drop(self, session: FetchSession) -> None:
        """Nobody was told of it, or nobody uses it any more."""
        if self._sessions.pop(session.session_id, None) is not None:
            # rule A27/ended-sessions-keep-their-room
            self._kept.release(session.principal, PARTITION_BYTES * len(session.partitions))

    def drop_all_of(self, owner: object) -> None:
        """The connection is gone."""
        for session in [session for session in self._sessions.values() if session.owner is owner]:
            self.drop(session)

    def _update(
        self, session: FetchSession, wanted: Sequence[FetchPartition], forgotten: Sequence[PartitionKey]
    ) -> Steps[bool]:
        """Whether there is room for what the session becomes, and it has not ended meanwhile."""
        for part in parts(wanted):
            if part is not wanted:
                yield
            if not self._is_there(session):
                return False
            new = {key_of(partition) for partition in part} - session.partitions.keys()
            # rule A27/sessions-grow-without-bound
            if not self._kept.hold(session.principal, PARTITION_BYTES * len(new)):
                return False
            session.update(part, ())
        for gone in parts(forgotten):
            if gone is not forgotten:
                yield
            if not self._is_there(session):
                return False
            before = len(session.partitions)
            session.update((), gone)
            self._kept.release(session.principal, PARTITION_BYTES * (before - len(session.partitions)))
        return True

    def _is_there(self, session: FetchSession) -> bool:
        """It has not ended between two steps, as with its connection."""
        return self._sessions.get(session.session_id) is session  # rule A27/sessions-without-a-connection

    def _create(
        self, owner: object, principal: str, by_id: bool, wanted: Sequence[FetchPartition]
    ) -> Steps[FetchSession | None]:
        """It is found by its connection from its first step on, and so ends with it, whatever step it is in."""
        now_ms = self._clock.monotonic_ms()
        if len(self._sessions) >= self._slots and not self._evict_one(now_ms):
            return None
        self._last_id = 1 if self._last_id == EPOCH_MAX else self._last_id + 1
        while self._last_id in self._sessions:
            self._last_id += 1
        session = FetchSession(self._last_id, owner, principal, by_id, now_ms)
        self._sessions[session.session_id] = session
        if not (yield from self._update(session, wanted, ())):
            self.drop(session)
            return None
        return session

    def _evict_one(self, now_ms: float) -> bool:
        """Make room: the least recently used session goes, if it has not been used for long enough."""
        for session in self._sessions.values():
            if now_ms - session.used_ms < EVICTION_MS_MIN:
                return False
            self.drop(session)
            self.evictions += 1
            return True
        return False


def _is_nothing_to_it(result: FetchedPartition) -> bool:
    """The client may not read this partition, or there is none: no session begins with it, and the next fetch is in
    full again."""
    return result.error in _NOTHING_TO_IT


_NOTHING_TO_IT = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)


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
        kept: KeptMemory,
        loop_time: LoopTime,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._image = image
        self._authorizer = authorizer
        self._brokers = brokers
        self._deadlines = Deadlines(clock, GRANULARITY_MS)
        self._shared = Shared(
            replicas,
            image,
            memory,
            kept,
            loop_time,
            self._deadlines,
            config.fetch_max_bytes,
            config.rack_aware_fetch,
        )
        self.sessions = FetchSessions(clock, config.fetch_session_slots, kept)

    def close(self) -> None:
        """Forget every deadline; nothing is answered any more."""
        self._deadlines.close()

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Read; answered at once, or when there is enough, or when the wait is over.

        Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED,
        NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR,
        and INVALID_REQUEST to one who says to be a replica.
        """
        self._go_on(exchange, self._begin(exchange, body))

    def _go_on(self, exchange: Exchange, steps: Steps[None]) -> None:
        """At once where it is one step, as it is of most requests; else in turns, with nothing behind it on its
        connection meanwhile. Raises ProtocolError."""
        for _ in steps:
            # rule A26/long-fetches-hold-the-loop
            exchange.connection.run_alone(exchange, self._in_turns(exchange, steps))
            return

    async def _in_turns(self, exchange: Exchange, steps: Steps[None]) -> None:
        try:
            await self._shared.loop_time.in_turns(exchange.context.peer, steps)
        except Unencodable:
            raise
        except ProtocolError as error:
            exchange.drop_connection(str(error))

    def _begin(self, exchange: Exchange, body: memoryview) -> Steps[None]:
        """Everything up to the first read, and that."""
        context = exchange.context
        message = yield from read_request_in_steps(body, context.version)
        asked = self._authorizer.generation
        results: list[FetchedPartition] | None = None
        begins = message.session_epoch == INITIAL_EPOCH
        if begins:
            results = yield from self._locate_all(context, message, message.partitions)
            begins = not any(map(_is_nothing_to_it, results))  # rule A27/sessions-of-what-may-not-be-read
        opened = yield from self._open(exchange, message, begins=begins)
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
        if results is None:
            results = yield from self._locate_all(context, message, opened.wanted)
        # What was asked is held by the results alone from here on, and ends with them.
        message = message._replace(max_bytes=int(min(message.max_bytes, exchange.fetch_bytes_max)), partitions=())
        opened = opened._replace(wanted=())
        fetch = Fetch(
            self._shared,
            context.peer,
            message,
            results,
            lambda results: exchange.attempt(
                lambda: self._go_on(exchange, self._respond(exchange, message, opened, results, asked))
            ),
        )
        exchange.when_gone = fetch.cancel
        yield from fetch.begin()

    def refuse_all(self, exchange: Exchange, body: memoryview, error: ErrorCode) -> bool:
        """Every partition has this error, or the whole answer where it is one of sessions."""
        version = exchange.context.version
        message = read_request(body, version)
        opened = Opened(error, None, False, [])
        if error not in SESSION_ERRORS:
            opened = at_once(self._open(exchange, message, begins=True))
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

    def _open(self, exchange: Exchange, message: FetchRequest, *, begins: bool) -> Steps[Opened]:
        """`begins`: a session may begin with this request."""
        return self.sessions.open(
            exchange.connection,
            principal=exchange.context.principal,
            session_id=message.session_id,
            epoch=message.session_epoch,
            by_id=exchange.context.version >= TOPIC_ID_SINCE,
            wanted=message.partitions,
            forgotten=message.forgotten,
            begins=begins,
        )

    def _respond(
        self,
        exchange: Exchange,
        message: FetchRequest,
        opened: Opened,
        results: list[FetchedPartition],
        asked: object,
    ) -> Steps[None]:
        """Of an incremental session, what the client does not know yet. `asked`: the authorizer's generation when the
        request came."""
        context, session = exchange.context, opened.session
        throttle_ms, sends = exchange.throttle_fetch(sum(result.size for result in results))
        if not sends:
            self._respond_without(exchange, message, opened, throttle_ms)
            return
        if self._authorizer.generation is not asked:  # rule A20/parked-fetch-keeps-its-right
            results = yield from self._unless_revoked(context, results)
        sent = results
        if session is not None:
            changed = []
            for part in parts(results):
                if part is not results:
                    yield
                changed += session.changed(part)
            sent = changed if opened.incremental else results
        leaders = [result.leader_id for result in sent] if context.version >= LEADER_SINCE else []
        answer = yield from write_response_in_steps(
            context.version,
            sent,
            isolation_level=message.isolation_level,
            session_id=NO_SESSION if session is None else session.session_id,
            throttle_ms=throttle_ms,
            end_tags=self._brokers.node_endpoints(context, leaders) if leaders else NO_TAGS,
        )
        exchange.respond(answer)
        if len(results) > ITEMS:  # rule A26/what-a-long-fetch-leaves-goes-at-once
            yield from let_go(results)
            if sent is not results:
                yield from let_go(sent)

    def _respond_without(self, exchange: Exchange, message: FetchRequest, opened: Opened, throttle_ms: int) -> None:
        """The client has had too much: nothing of what was found, and a session goes on as if it was not asked. One
        that begins with this request does not begin (KIP-219, Kafka's `getThrottledResponse`)."""
        session_id = NO_SESSION
        if opened.session is not None and opened.incremental:
            session_id = opened.session.session_id
        elif opened.session is not None:
            self.sessions.drop(opened.session)  # rule A21/throttled-sessions-begin
        exchange.respond(
            write_response(
                exchange.context.version,
                [],
                isolation_level=message.isolation_level,
                session_id=session_id,
                throttle_ms=throttle_ms,
            )
        )

    def _unless_revoked(
        self, context: RequestContext, results: Sequence[FetchedPartition]
    ) -> Steps[list[FetchedPartition]]:
        """The right to read may have been taken while the fetch waited (rule A20): what it has found is not sent."""
        kept: list[FetchedPartition] = []
        may: dict[str, bool] = {}
        for result in results:
            name = None if result.tp is None else result.tp.topic
            if name is not None and name not in may:
                may[name] = allowed(self._authorizer, context, Operation.READ, topic(name))
            if name is None or may[name]:
                kept.append(result)
            else:
                refused = FetchedPartition(result.wanted)
                refused.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                kept.append(refused)
            if len(kept) % ITEMS == 0:
                yield
        return kept

    def _locate_all(
        self, context: RequestContext, request: FetchRequest, wanted: Sequence[FetchPartition]
    ) -> Steps[list[FetchedPartition]]:
        """What a topic is, and whether the client may read it, is asked once for all of its partitions."""
        results: list[FetchedPartition] = []
        topics: dict[tuple[str | None, TopicId | None], TopicInfo | ErrorCode] = {}
        for one in wanted:
            found = topics.get((one.name, one.topic_id))
            if found is None:
                found = topics[one.name, one.topic_id] = self._find_topic(context, one.name, one.topic_id)
            result = FetchedPartition(one)
            self._locate(context, request, result, found)
            results.append(result)
            if len(results) % ITEMS == 0:
                yield
        return results

    def _find_topic(
        self, context: RequestContext, named: str | None, topic_id: TopicId | None
    ) -> TopicInfo | ErrorCode:
        """The topic, or why its partitions cannot be read."""
        found = find_topic(self._image(), named, topic_id)
        name = named if isinstance(found, ErrorCode) else found.name
        if name is not None and not self._authorizer.authorize(context, ((Operation.READ, topic(name)),))[0]:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return found

    def _locate(
        self, context: RequestContext, request: FetchRequest, result: FetchedPartition, found: TopicInfo | ErrorCode
    ) -> None:
        """Find the partition in its topic, and compare the reader's history with ours."""
        wanted = result.wanted
        if request.replica_id >= 0:
            result.fail(ErrorCode.INVALID_REQUEST)
        elif isinstance(found, ErrorCode):
            result.fail(found)
        elif wanted.partition not in found.partitions:
            result.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        # rule B16/zstd-for-who-cannot-read-it
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


ROWS = (by_hand(Api.FETCH, (FIRST, LAST), FetchHandler, large_answer=True),)
