"""A fetch in progress: with too few bytes it is parked until there are more, or its time is over.

A parked fetch is not a task: it is woken by the high watermarks of its partitions, reads on from where its last read
ended, and keeps what it has (those bytes are committed, so they cannot change). A shared deadline wheel ends its wait.
Thousands of partitions are looked at in many turns of the loop, by a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from strandline.cluster.broker.kept import FETCH_BYTES, PARTITION_BYTES, KeptMemory
from strandline.cluster.broker.loop_time import LoopTime
from strandline.cluster.broker.memory import Account, MemoryBudget
from strandline.cluster.broker.request import Peer
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.fetch import FetchPartition, FetchRequest, PartitionData
from strandline.proto.steps import Steps, parts
from strandline.proto.tasks import spawn
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import ReadOutcome
from strandline.replica.waiting import Deadlines, Ticket

log = structlog.get_logger("strandline.broker")

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


@dataclass(frozen=True, slots=True)
class Shared:
    """What all fetches of a broker use.

    Attributes:
        fetch_max_bytes: most bytes of one answer (`fetch.max.bytes`).
        rack_aware: consumers may read from replicas that do not lead (KIP-392).
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
        "_done",
        "_ended",
        "_is_short",
        "_kept",
        "_max_bytes",
        "_min_bytes",
        "_peer",
        "_principal",
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
        self._done = done
        budget = max(shared.memory.answer_room_bytes, READ_BYTES_MIN)
        self._max_bytes = max(min(request.max_bytes, shared.fetch_max_bytes, budget), 0)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._size = 0
        self._charged = 0
        self._kept = 0
        self._ended = False
        self._is_short = False
        """Something is there, and was not read in time: the client shall ask again at once."""
        self._wakes: list[_Wake] = []
        self._woken: dict[_Wake, None] = {}
        self._ticket: Ticket | None = None
        self._task: asyncio.Task[None] | None = None
        self.results = results

    def begin(self) -> Steps[None]:
        """Read what there is."""
        return self._read(self.results)

    def woken(self, wake: _Wake) -> None:
        """A partition has more, or will never have: look at all that woke in this loop turn together."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._go_on, self._read_on)
        self._woken[wake] = None

    def expire(self) -> None:
        """The longest wait is over."""
        self._ticket = None
        self._go_on(self._end)

    def cancel(self) -> None:
        """The client has gone: forget it."""
        if not self._ended:
            self._release()
            if self._task is not None:
                self._task.cancel()

    def _go_on(self, work: Callable[[], None]) -> None:
        """Many may have waited for the same records, or for the same time: each when its client has its turn."""
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
        """Read what there is, then answer or wait; cold bytes are read by a task first."""
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
        """False: the bytes have to be waited for."""
        if result.error is not ErrorCode.NONE or result.diverging is not None or result.preferred_replica >= 0:
            return True
        outcome = self._shared.replicas.read(*self._place(result), **self._limits(result))
        if outcome is not None:
            self._take(result, outcome)
        return outcome is not None

    def _give_up(self, error: BaseException) -> None:
        """An internal error, where nobody above would see it: log it, and answer."""
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
            limits = self._limits(result)
            self._charge(Account.FETCH, limits["max_bytes"])
            try:
                outcome = await self._shared.replicas.read_cold(*self._place(result), **limits)
            except KafkaError as error:
                result.fail(error.code)
            else:
                self._take(result, outcome)
                # The object store has it, and was too slow: no watermark wakes this fetch when it comes.
                self._is_short |= not outcome.data and outcome.next_offset < outcome.high_watermark
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
        chooses = self._request.replica_id == DEBUGGING_CONSUMER or self._shared.rack_aware
        return {
            "max_bytes": max(room, 0),
            "current_leader_epoch": result.wanted.current_leader_epoch,
            "any_replica": names_a_rack and chooses,
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
            self._ticket = self._shared.deadlines.add(self._request.max_wait_ms, self)

    def _watch(self, result: FetchedPartition, *, has_changed: bool) -> None:
        wake = _Wake(self, result)
        assert result.tp is not None  # without an error it was found
        if has_changed:
            self.woken(wake)
            return
        wake.withdraw = self._shared.replicas.on_high_watermark(result.tp, wake)
        self._wakes.append(wake)

    def _has_more(self, result: FetchedPartition) -> bool:
        """Since it was read, some turns ago, its high watermark has risen, or it is hosted no more."""
        partition = None if result.tp is None else self._shared.replicas.partition(result.tp)
        return partition is None or partition.high_watermark > result.high_watermark

    def _may_wait(self) -> bool:
        """There is room to remember the request while it waits; else it is answered at once, with what there is."""
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
    """KIP-951: say who leads beside an error that means "not here"."""
    if result.error in POINTS_TO_LEADER and result.tp is not None:
        partition = image.partition(result.tp.topic, result.tp.partition)
        if partition is not None:
            result.leader_id = partition.leader
            result.leader_epoch = partition.leader_epoch
