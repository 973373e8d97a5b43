"""Fetch: committed batches from the leaders of their partitions; with too few of them, the request is parked.

A parked fetch is not a task: it is woken by the high watermarks of its partitions, reads on from where its last read
ended, and keeps what it has (those bytes are committed, so they cannot change). A shared deadline wheel ends its wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from strandline.cluster.broker.service.authorizer import Operation, topic
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.memory import Account
from strandline.cluster.broker.service.topics import find_topic
from strandline.proto.deadlines import Ticket
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.fetch_request import FetchPartition, FetchRequest
from strandline.proto.kafka.fetch_response import PartitionData
from strandline.proto.tasks import spawn
from strandline.replica.states import ReadOutcome

log = structlog.get_logger("strandline.service")

READ_BYTES_MIN = 1024 * 1024
"""A fetch may read this much even when the memory budget is used up: it must make progress."""

DEBUGGING_CONSUMER = -2
"""The replica id by which Kafka's tools read what each replica has (FetchRequest.DEBUGGING_CONSUMER_ID)."""

POINTS_TO_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class FetchedPartition(PartitionData):
    """What one partition gave, and how far it was read."""

    __slots__ = ("next_offset", "tp", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        super().__init__(wanted.topic, wanted.partition)
        self.wanted = wanted
        self.tp: TopicPartition | None = None
        self.next_offset = wanted.fetch_offset

    def fail(self, error: ErrorCode) -> None:
        self.error = error

    @property
    def says_more(self) -> bool:
        """There is more to tell than records, and at once."""
        return self.error is not ErrorCode.NONE or self.diverging is not None or self.preferred_replica >= 0


Done = Callable[[list[FetchedPartition]], None]


class _Wake:
    """Called when one partition of a parked fetch has more."""

    __slots__ = ("fetch", "result", "withdraw")

    def __init__(self, fetch: Fetch, result: FetchedPartition) -> None:
        self.fetch = fetch
        self.result = result
        self.withdraw: Callable[[], None] | None = None

    def __call__(self) -> None:
        self.withdraw = None
        self.fetch.woken(self)


class Fetch:
    """One fetch request in progress.

    Invariants:
        * `done` is called exactly once, unless the fetch is cancelled before;
        * what is charged to the budget for it is released when it ends.
    """

    __slots__ = (
        "_charged",
        "_cold_task",
        "_dirty",
        "_done",
        "_ended",
        "_max_bytes",
        "_min_bytes",
        "_request",
        "_service",
        "_size",
        "_ticket",
        "_wakes",
        "results",
    )

    def __init__(self, service: Fetching, request: FetchRequest, done: Done) -> None:
        self._service = service
        self._request = request
        self._done = done
        budget = max(service.memory.answer_room_bytes, READ_BYTES_MIN)
        self._max_bytes = max(min(request.max_bytes, service.config.fetch_max_bytes, budget), 0)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._size = 0
        self._charged = 0
        self._ended = False
        self._wakes: list[_Wake] = []
        self._dirty: dict[_Wake, None] = {}
        self._ticket: Ticket | None = None
        self._cold_task: asyncio.Task[None] | None = None
        self.results = [FetchedPartition(wanted) for wanted in request.partitions]

    def start(self, context: RequestContext) -> None:
        for result in self.results:
            self._service.locate(context, self._request, result)
        self._read(self.results)

    def woken(self, wake: _Wake) -> None:
        """A partition has more, or will never have: look at all that woke in this loop turn together."""
        if not self._dirty:
            asyncio.get_running_loop().call_soon(self._read_on)
        self._dirty[wake] = None

    def expire(self) -> None:
        """The longest wait is over."""
        self._ticket = None
        self._end()

    def cancel(self) -> None:
        """The client has gone: forget it."""
        if not self._ended:
            self._release()
            if self._cold_task is not None:
                self._cold_task.cancel()

    def _read_on(self) -> None:
        dirty, self._dirty = self._dirty, {}
        if self._ended:
            return
        self._wakes = [wake for wake in self._wakes if wake not in dirty]
        try:
            self._read([wake.result for wake in dirty])
        except Exception as error:
            self._give_up(error)

    def _read(self, results: list[FetchedPartition]) -> None:
        """Read what there is, then answer or wait; cold bytes are read by a task first."""
        cold = []
        for result in results:
            if result.error is ErrorCode.NONE and result.diverging is None and result.preferred_replica < 0:
                outcome = self._service.replicas.read(*self._place(result), **self._limits(result))
                if outcome is None:
                    cold.append(result)
                else:
                    self._take(result, outcome)
        if cold:
            self._cold_task = spawn(self._read_cold(cold, results), self._give_up)
        else:
            self._answer_or_wait(results)

    def _give_up(self, error: BaseException) -> None:
        """A mistake of ours, where nobody above would see it: log it, and answer."""
        log.error("a fetch failed by a mistake of ours", exc_info=error)
        for result in self.results:
            result.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._end()

    async def _read_cold(self, cold: list[FetchedPartition], results: list[FetchedPartition]) -> None:
        await self._read_cold_ones(cold)
        if not self._ended:
            self._cold_task = None
            self._answer_or_wait(results)

    async def _read_cold_ones(self, cold: list[FetchedPartition]) -> None:
        for result in cold:
            limits = self._limits(result)
            self._charge(Account.FETCH, limits["max_bytes"])
            try:
                outcome = await self._service.replicas.read_cold(*self._place(result), **limits)
            except KafkaError as error:
                result.fail(error.code)
            else:
                self._take(result, outcome)
            finally:
                self._charge(Account.FETCH, -limits["max_bytes"])
            if self._ended:
                return

    def _place(self, result: FetchedPartition) -> tuple[TopicPartition, int]:
        assert result.tp is not None  # a partition without a place has an error and is not read
        return result.tp, result.next_offset

    def _limits(self, result: FetchedPartition) -> dict[str, Any]:
        """Bounds of the next read. The first batch of an answer is read whatever its size (KIP-74)."""
        room = min(result.wanted.max_bytes - result.size, self._max_bytes - self._size)
        names_a_rack = self._request.rack is not None
        chooses = self._request.replica_id == DEBUGGING_CONSUMER or self._service.config.rack_aware_fetch
        return {
            "max_bytes": max(room, 0),
            "current_leader_epoch": result.wanted.current_leader_epoch,
            "any_replica": names_a_rack and chooses,
            "min_one_batch": self._size == 0,
        }

    def _take(self, result: FetchedPartition, outcome: ReadOutcome) -> None:
        if outcome.error is not ErrorCode.NONE:
            result.fail(outcome.error)
            self._service.point_to_leader_of(result)
            return
        result.high_watermark = outcome.high_watermark
        result.last_stable_offset = outcome.last_stable_offset
        result.log_start_offset = outcome.log_start_offset
        data = outcome.data
        if data:
            result.chunks.append(data)
            result.size += len(data)
            result.next_offset = outcome.next_offset
            self._size += len(data)

    def _answer_or_wait(self, just_read: list[FetchedPartition]) -> None:
        if (
            self._size >= self._min_bytes
            or self._request.max_wait_ms <= 0
            or not self.results
            or any(result.says_more for result in just_read)
        ):
            self._end()
            return
        for result in just_read:
            wake = _Wake(self, result)
            assert result.tp is not None  # without an error it was found
            wake.withdraw = self._service.replicas.on_high_watermark(result.tp, wake)
            self._wakes.append(wake)
        self._charge(Account.PARKED, self._size - self._charged)
        self._charged = self._size
        if self._ticket is None:
            self._ticket = self._service.fetch_deadlines.add(self._request.max_wait_ms, self)

    def _charge(self, account: Account, size: int) -> None:
        if size > 0:
            self._service.memory.charge(account, size)
        elif size < 0:
            self._service.memory.release(account, -size)

    def _end(self) -> None:
        if not self._ended:
            self._release()
            self._done(self.results)

    def _release(self) -> None:
        self._ended = True
        if self._ticket is not None:
            self._ticket.cancel()
        for wake in self._wakes:
            if wake.withdraw is not None:
                wake.withdraw()
        self._wakes.clear()
        self._charge(Account.PARKED, -self._charged)
        self._charged = 0


class Fetching(Base):
    """The fetch operation of the service."""

    def fetch(self, context: RequestContext, request: FetchRequest, done: Done) -> Fetch:
        """Read; `done` is called exactly once with one result a partition, in order, perhaps before this returns.

        Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED,
        NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR,
        and INVALID_REQUEST to one who says to be a replica.
        """
        fetch = Fetch(self, request, done)
        fetch.start(context)
        return fetch

    def locate(self, context: RequestContext, request: FetchRequest, result: FetchedPartition) -> None:
        """Find the partition, ask the authorizer, and compare the reader's history with ours."""
        wanted = result.wanted
        if request.replica_id >= 0:
            result.fail(ErrorCode.INVALID_REQUEST)
            return
        found = find_topic(self.image(), wanted.name, wanted.topic_id)
        name = wanted.name if isinstance(found, ErrorCode) else found.name
        if name is not None and not self.authorizer.authorize(context, ((Operation.READ, topic(name)),))[0]:
            result.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif isinstance(found, ErrorCode):
            result.fail(found)
        elif wanted.partition not in found.partitions:
            result.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            result.tp = TopicPartition(found.name, wanted.partition)
            if wanted.last_fetched_epoch >= 0:
                self._compare_history(result, result.tp)
            if request.rack and self.config.rack_aware_fetch and not result.says_more:
                self._prefer_nearer(result, result.tp, request.rack)

    def _compare_history(self, result: FetchedPartition, tp: TopicPartition) -> None:
        wanted = result.wanted
        end = self.replicas.epoch_end_offset(
            tp, current_leader_epoch=wanted.current_leader_epoch, epoch=wanted.last_fetched_epoch
        )
        if end.error is not ErrorCode.NONE:
            result.fail(end.error)
            self.point_to_leader_of(result)
        elif end.end_offset < 0:
            result.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif end.leader_epoch < wanted.last_fetched_epoch or end.end_offset < wanted.fetch_offset:
            result.diverging = (end.leader_epoch, end.end_offset)

    def _prefer_nearer(self, result: FetchedPartition, tp: TopicPartition, rack: str) -> None:
        """KIP-392, as the leader: name the replica in the consumer's rack that has most of what it wants to read, if
        it is in sync and this broker is elsewhere."""
        partition = self.replicas.partition(tp)
        brokers = self.image().brokers
        if partition is None or partition.leader is None or partition.log is None:
            return
        if brokers[self.node_id].rack == rack:
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
            result.log_start_offset = partition.log.log_start_offset

    def point_to_leader_of(self, result: FetchedPartition) -> None:
        """KIP-951: say who leads beside an error that means "not here"."""
        if result.error in POINTS_TO_LEADER and result.tp is not None:
            partition = self.image().partition(result.tp.topic, result.tp.partition)
            if partition is not None:
                result.leader_id = partition.leader
                result.leader_epoch = partition.leader_epoch
