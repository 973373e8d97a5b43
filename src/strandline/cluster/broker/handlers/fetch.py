"""Fetch (API key 1): returns committed batches from the leaders of partitions, in sessions (KIP-227, `fetch_sessions`).

A fetch that finds too few bytes is parked until there are more or its longest wait is over. A parked fetch is not a
task: it is woken when the high watermark of one of its partitions rises (with read_committed: the last stable offset).
It then reads on from where its last read ended, and keeps the data that it has, which is committed and cannot change.
One timer wheel for all fetches ends their waits. A fetch of thousands of partitions is read by a task, over many turns
of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from strandline.cluster.broker.api import by_hand
from strandline.cluster.broker.brokers import Brokers
from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.handlers.fetch_sessions import (
    INITIAL_EPOCH,
    FetchedPartition,
    FetchSessions,
    Opened,
)
from strandline.cluster.broker.loop_time import LoopTime
from strandline.cluster.broker.memory import FETCH_BYTES, PARTITION_BYTES, Account, KeptMemory, MemoryBudget
from strandline.cluster.broker.request import Authorizer, Exchange, Peer, RequestContext, allowed, topic
from strandline.cluster.broker.requested_topics import find_topic
from strandline.cluster.broker.slow_requests import some_of
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.log.compression import Codec
from strandline.log.transactions import to_be_named
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId, TopicId, TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import (
    FIRST,
    LAST,
    LEADER_SINCE,
    NO_SESSION,
    READ_COMMITTED,
    SESSION_SINCE,
    TOPIC_ID_SINCE,
    FetchPartition,
    FetchRequest,
    read_request,
    read_request_in_steps,
    write_response,
    write_response_in_steps,
)
from strandline.proto.kafka.fields import NO_TAGS
from strandline.proto.ports import Clock
from strandline.proto.steps import ITEMS, Steps, at_once, let_go, parts
from strandline.proto.tasks import spawn
from strandline.proto.timers import Deadlines, Ticket
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import ReadOutcome

log = structlog.get_logger("strandline.broker")

ZSTD_SINCE = 10
"""First version of Fetch whose clients can read zstd (KIP-110)."""

GRANULARITY_MS = 5.0
"""Maximum milliseconds by which the end of a long poll is late."""

SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Errors of the whole response, not of a partition."""

READ_BYTES_MIN = 1024 * 1024
"""Bytes that a fetch may read even if the memory budget is used up, so that it makes progress."""

DEBUGGING_CONSUMER = -2
"""Replica id with which Kafka's tools read from any replica (FetchRequest.DEBUGGING_CONSUMER_ID)."""

POINTS_TO_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


# A fetch in progress


Done = Callable[[list[FetchedPartition]], None]


@dataclass(frozen=True, slots=True)
class Shared:
    """Parts of a broker that all its fetches use.

    Attributes:
        fetch_max_bytes: maximum bytes of records in one response (`fetch.max.bytes`).
        rack_aware: consumers may read from followers (KIP-392).
    """

    replicas: ReplicaManager
    image: Callable[[], MetadataImage]
    memory: MemoryBudget
    kept: KeptMemory
    loop_time: LoopTime
    deadlines: Deadlines
    fetch_max_bytes: int
    rack_aware: bool


class _Wake:
    """Wait of a parked fetch for more data of one partition."""

    __slots__ = ("fetch", "result", "withdraw")

    def __init__(self, fetch: Fetch, result: FetchedPartition) -> None:
        self.fetch = fetch
        self.result = result
        self.withdraw: Callable[[], None] | None = None

    def risen(self) -> None:
        """Wake the fetch: the partition's high watermark or last stable offset has risen, or its role has changed."""
        self.withdraw = None
        self.fetch.woken(self)


class Fetch:
    """One fetch request in progress.

    Invariants:
        * `done` is called exactly once, unless the fetch is cancelled before;
        * the bytes charged to the budgets for it are released when it ends.
    """

    __slots__ = (
        "_charged",
        "_done",
        "_ended",
        "_is_short",
        "_kept",
        "_max_bytes",
        "_min_bytes",
        "_peer",
        "_principal",
        "_read_committed",
        "_request",
        "_shared",
        "_size",
        "_task",
        "_ticket",
        "_wakes",
        "_woken",
        "results",
    )

    def __init__(
        self, shared: Shared, peer: Peer, request: FetchRequest, results: list[FetchedPartition], done: Done
    ) -> None:
        self._shared = shared
        self._peer = peer
        self._principal = peer.principal
        self._request = request
        self._read_committed = request.isolation_level == READ_COMMITTED
        self._done = done
        budget = max(shared.memory.answer_room_bytes, READ_BYTES_MIN)
        self._max_bytes = max(min(request.max_bytes, shared.fetch_max_bytes, budget), 0)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._size = 0
        self._charged = 0
        self._kept = 0
        self._ended = False
        self._is_short = False
        """True if data was not read in time: then the response is sent at once, and the client should fetch again."""
        self._wakes: list[_Wake] = []
        self._woken: dict[_Wake, None] = {}
        self._ticket: Ticket | None = None
        self._task: asyncio.Task[None] | None = None
        self.results = results

    def begin(self) -> Steps[None]:
        """Read the available data, then answer or park the fetch."""
        return self._read(self.results)

    def woken(self, wake: _Wake) -> None:
        """Read a partition again that has more data or is hosted no more, with all others woken in this loop turn."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._go_on, self._read_on)
        self._woken[wake] = None

    def expire(self) -> None:
        """Answer with the data read so far: the longest wait is over."""
        self._ticket = None
        self._go_on(self._end)

    def cancel(self) -> None:
        """Drop the fetch: its client has disconnected."""
        if not self._ended:
            self._release()
            if self._task is not None:
                self._task.cancel()

    def _go_on(self, work: Callable[[], None]) -> None:
        """Do the work in a turn of the client: the same records or deadline may have woken many fetches at once."""
        loop_time = self._shared.loop_time
        if loop_time.admits(self._peer):  # rule A26/woken-fetches-hold-the-loop
            loop_time.measured(self._peer, work)
        else:
            loop_time.wait(self._peer, partial(loop_time.measured, self._peer, work))

    def _read_on(self) -> None:
        woken, self._woken = self._woken, {}
        if self._ended:
            return
        self._wakes = [wake for wake in self._wakes if wake not in woken]
        steps = self._read([wake.result for wake in woken])
        try:
            for _ in steps:
                self._task = spawn(self._shared.loop_time.in_turns(self._peer, steps), self._give_up)
                return
        except Exception as error:
            self._give_up(error)

    def _read(self, results: list[FetchedPartition]) -> Steps[None]:
        """Read the available data, then answer or park the fetch. A task first reads data that is not in memory."""
        cold: list[FetchedPartition] = []
        for part in parts(results):  # rule A26/a-long-fetch-is-read-in-one-turn
            if part is not results:
                yield
                if self._ended:
                    return
            cold += [result for result in part if not self._read_warm(result)]
        if cold:
            self._task = spawn(self._read_cold(cold, results), self._give_up)
        else:
            yield from self._answer_or_wait(results)

    def _read_warm(self, result: FetchedPartition) -> bool:
        """Read a partition's data from memory. Return False if the data must be read from disk or object store."""
        if result.error is not ErrorCode.NONE or result.diverging is not None or result.preferred_replica >= 0:
            return True
        outcome = self._shared.replicas.read(*self._place(result), **self._limits(result))
        if outcome is not None:
            self._take(result, outcome)
        return outcome is not None

    def _give_up(self, error: BaseException) -> None:
        """Log an internal error that no caller would see, and answer UNKNOWN_SERVER_ERROR for all partitions."""
        log.error("internal error: a fetch failed", exc_info=error)
        for result in self.results:
            result.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._end()

    async def _read_cold(self, cold: list[FetchedPartition], results: list[FetchedPartition]) -> None:
        await self._read_cold_ones(cold)
        if not self._ended:
            steps = self._answer_or_wait(results)
            for _ in steps:
                await self._shared.loop_time.in_turns(self._peer, steps)

    async def _read_cold_ones(self, cold: list[FetchedPartition]) -> None:
        for result in cold:
            result.was_cold = True
            limits = self._limits(result)
            self._charge(Account.FETCH, limits["max_bytes"])
            try:
                outcome = await self._shared.replicas.read_cold(*self._place(result), **limits)
            except KafkaError as error:
                result.fail(error.code)
            else:
                self._take(result, outcome)
                # The object store has the data and was too slow: no watermark wakes this fetch when it arrives.
                self._is_short |= not outcome.data and outcome.next_offset < outcome.high_watermark
            finally:
                self._charge(Account.FETCH, -limits["max_bytes"])
            if self._ended:
                return

    def _place(self, result: FetchedPartition) -> tuple[TopicPartition, int]:
        assert result.tp is not None  # a partition without a place has an error and is not read
        return result.tp, result.next_offset

    def _limits(self, result: FetchedPartition) -> dict[str, Any]:
        """Keyword arguments that bound the next read. The first batch of a response may have any size (KIP-74)."""
        room = min(result.wanted.max_bytes - result.size, self._max_bytes - self._size)
        names_a_rack = self._request.rack is not None
        chooses = self._request.replica_id == DEBUGGING_CONSUMER or self._shared.rack_aware
        return {
            "max_bytes": max(room, 0),
            "current_leader_epoch": result.wanted.current_leader_epoch,
            "any_replica": names_a_rack and chooses,
            "read_committed": self._read_committed,
            "min_one_batch": self._size == 0,
        }

    def _take(self, result: FetchedPartition, outcome: ReadOutcome) -> None:
        if outcome.error is not ErrorCode.NONE:
            result.fail(outcome.error)
            point_to_leader(self._shared.image(), result)
            return
        result.high_watermark = outcome.high_watermark
        result.last_stable_offset = outcome.last_stable_offset
        result.log_start_offset = outcome.log_start_offset
        data = outcome.data
        if data:
            result.chunks += (data,)
            result.size += len(data)
            result.next_offset = outcome.next_offset
            self._size += len(data)
            if outcome.aborted:  # an aborted transaction that spans several reads is named once
                aborted = [(one.producer_id, one.first_offset) for one in to_be_named(outcome.aborted, data)]
                # rule C13/aborted-twice
                result.aborted = tuple(dict.fromkeys((*result.aborted, *aborted)))

    def _answer_or_wait(self, just_read: list[FetchedPartition]) -> Steps[None]:
        # rule A27/any-number-of-fetches-wait
        if (
            self._size >= self._min_bytes
            or self._request.max_wait_ms <= 0
            or not self.results
            or self._is_short
            or any(result.says_more for result in just_read)
            or not self._may_wait()
        ):
            self._end()
            return
        for part in parts(just_read):  # rule A26/a-long-fetch-is-parked-in-one-turn
            if part is not just_read:
                yield
                if self._ended:
                    return
            for result in part:
                # rule A26/what-comes-between-reading-and-waiting-is-missed
                self._watch(result, has_changed=part is not just_read and self._has_more(result))
        self._charge(Account.PARKED, self._size - self._charged)
        self._charged = self._size
        if self._ticket is None:
            self._ticket = self._shared.deadlines.add(self._request.max_wait_ms, self.expire)

    def _watch(self, result: FetchedPartition, *, has_changed: bool) -> None:
        wake = _Wake(self, result)
        assert result.tp is not None  # without an error it was found
        if has_changed:
            self.woken(wake)
            return
        replicas = self._shared.replicas
        # rule C13/open-transactions-wake-fetches
        watch = replicas.on_last_stable_offset if self._read_committed else replicas.on_high_watermark
        wake.withdraw = watch(result.tp, wake.risen)
        self._wakes.append(wake)

    def _has_more(self, result: FetchedPartition) -> bool:
        """True if the high watermark has risen since the read, some turns ago, or the partition is hosted no more."""
        partition = None if result.tp is None else self._shared.replicas.partition(result.tp)
        return partition is None or partition.high_watermark > result.high_watermark

    def _may_wait(self) -> bool:
        """Charge the parked request to `KeptMemory`. Return False if no memory is left: then the fetch is answered at
        once, with the data that it has."""
        size = 0 if self._kept else FETCH_BYTES + PARTITION_BYTES * len(self.results)
        if size and not self._shared.kept.hold(self._principal, size):
            return False
        self._kept += size
        return True

    def _charge(self, account: Account, size: int) -> None:
        if size > 0:
            self._shared.memory.charge(account, size)
        elif size < 0:
            self._shared.memory.release(account, -size)

    def _end(self) -> None:
        if not self._ended:
            self._release()
            self._done(self.results)

    def _release(self) -> None:
        self._ended = True
        if self._ticket is not None:
            self._ticket.cancel()
        steps = _withdraw(self._wakes)
        self._wakes = []
        for _ in steps:
            spawn(self._shared.loop_time.in_turns(self._peer, steps), self._give_up)
            break
        self._charge(Account.PARKED, -self._charged)
        self._charged = 0
        if self._kept:
            self._shared.kept.release(self._principal, self._kept)
            self._kept = 0


def _withdraw(wakes: list[_Wake]) -> Steps[None]:
    for part in parts(wakes):
        if part is not wakes:
            yield
        for wake in part:
            if wake.withdraw is not None:
                wake.withdraw()


def point_to_leader(image: MetadataImage, result: FetchedPartition) -> None:
    """Add the current leader to a result whose error means that this broker does not lead the partition (KIP-951)."""
    if result.error in POINTS_TO_LEADER and result.tp is not None:
        partition = image.partition(result.tp.topic, result.tp.partition)
        if partition is not None:
            result.leader_id = partition.leader
            result.leader_epoch = partition.leader_epoch


# The handler


def _is_nothing_to_it(result: FetchedPartition) -> bool:
    """True if the client may not read the partition or it does not exist. Then no session begins, and the next fetch
    lists all partitions again."""
    return result.error in _NOTHING_TO_IT


_NOTHING_TO_IT = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)


def _explain(results: Sequence[FetchedPartition]) -> dict[str, object]:
    """Return log fields of a slow fetch: the offsets that it reads from, and whether it waited for disk or store."""
    cold = [result.tp for result in results if result.was_cold]
    places = (f"{result.tp or result.wanted.topic}@{result.wanted.fetch_offset}" for result in results)
    figures: dict[str, object] = {"topic_partitions": some_of(places, len(results))}
    return figures | ({"waited_for": f"the disk or the object store: {some_of(cold, len(cold))}"} if cold else {})


class FetchHandler:
    """Handles Fetch requests: decodes them, finds their partitions, reads them (`Fetch`), and answers.

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
        """Cancel all deadlines; parked fetches are not answered any more."""
        self._deadlines.close()

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Read, and answer once there are min_bytes or the longest wait is over.

        Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED,
        NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR,
        UNSUPPORTED_COMPRESSION_TYPE, and INVALID_REQUEST for a request that claims to come from a replica.
        """
        exchange.connection.in_steps(exchange, self._begin(exchange, body))

    def _begin(self, exchange: Exchange, body: memoryview) -> Steps[None]:
        """Decode the request, open its session, find its partitions, and do the first read."""
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
        # From here on only the results hold the requested partitions, and are let go in steps.
        message = message._replace(max_bytes=int(min(message.max_bytes, exchange.fetch_bytes_max)), partitions=())
        opened = opened._replace(wanted=())
        fetch = Fetch(
            self._shared,
            context.peer,
            message,
            results,
            lambda results: exchange.attempt(
                lambda: exchange.connection.in_steps(exchange, self._respond(exchange, message, opened, results, asked))
            ),
        )
        exchange.when_gone = fetch.cancel
        exchange.may_wait_ms = message.max_wait_ms
        exchange.explained_by(partial(_explain, results))
        yield from fetch.begin()

    def refuse_all(self, exchange: Exchange, body: memoryview, error: ErrorCode) -> bool:
        """Answer with `error` for every partition, or for the whole response if it is one of `SESSION_ERRORS`."""
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
        """Open the request's session. `begins`: a new session may begin with this request."""
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
        """Answer; in an incremental session only with partitions that have changed for the client. `asked`: the
        authorizer's generation when the request arrived."""
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
        """Answer a throttled client without any partitions. An existing session goes on as if there had been no
        request; a new one does not begin (KIP-219, Kafka's `getThrottledResponse`)."""
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
        """Return the results with TOPIC_AUTHORIZATION_FAILED and no data for topics whose READ right was revoked while
        the fetch waited (rule A20)."""
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
        """Return a result for each partition, located or with an error; each topic and its right is looked up once."""
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
        """Return the topic, or the error of all its partitions."""
        found = find_topic(self._image(), named, topic_id)
        name = named if isinstance(found, ErrorCode) else found.name
        if name is not None and not self._authorizer.authorize(context, ((Operation.READ, topic(name)),))[0]:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return found

    def _locate(
        self, context: RequestContext, request: FetchRequest, result: FetchedPartition, found: TopicInfo | ErrorCode
    ) -> None:
        """Find the partition in its topic, compare the reader's last epoch with the log, look for a nearer replica."""
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
        """True if the topic's `compression.type` is zstd. As in Kafka, zstd batches of producers go to any reader."""
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
        """As the leader, name the in-sync replica in the consumer's rack that has fetched furthest, unless this broker
        is in that rack itself (KIP-392)."""
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
            result.high_watermark, result.last_stable_offset = partition.high_watermark, partition.last_stable_offset
            result.log_start_offset = partition.log_start_offset


ROWS = (by_hand(Api.FETCH, (FIRST, LAST), FetchHandler, large_answer=True),)
