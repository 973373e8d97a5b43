"""Replicas whose log begins after records that are in the object store only (rule B24): they load the producers of
those records from there before they take their first record, as follower or as leader.

A leader without them would append a retried batch twice, and accept batches of a fenced producer. So until they are
loaded the replica does not fetch, is in no ISR and does not lead. Other replicas do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from strandline.log.disk import DiskError
from strandline.log.partition_log import PartitionLog
from strandline.log.tier.reading import TierReader, producers_before
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StorageError, StoreError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report, spawn
from strandline.replica.states import PartitionState

log = structlog.get_logger("strandline.replica")

RETRY_MS = 50.0
"""Pause after a first failed attempt, e.g. while the metadata are on their way. It doubles up to RETRY_MAX_MS."""

RETRY_MAX_MS = 5_000.0


class Replica(Protocol):
    """A hosted partition, as this module needs it."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def state(self) -> PartitionState: ...

    @property
    def log(self) -> PartitionLog | None: ...

    def fail(self, reason: str) -> None:
        """Go offline: the log can no longer be used."""


@dataclass(slots=True)
class _Waiting:
    """Attributes:
    since_ms: monotonic time since which the replica waits.
    leads: True if it waits to lead; its metadata are then the newest.
    then: called when the producers are loaded.
    """

    since_ms: float
    leads: bool
    then: Callable[[], None]


class Beginnings:
    """Loads the producers of the records before a log's start. There is one task for each replica that waits.

    `reader`: reads the object store; None if this broker has none.
    """

    def __init__(self, reader: TierReader | None, clock: Clock, on_fatal: Report) -> None:
        self._reader = reader
        self._clock = clock
        self._on_fatal = on_fatal
        self._waiting: dict[Replica, _Waiting] = {}
        self._tasks: dict[Replica, asyncio.Task[None]] = {}

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop loading; return the tasks that end now."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks

    @property
    def waiting(self) -> int:
        """Number of replicas that wait."""
        return len(self._waiting)

    def waiting_ms(self) -> float:
        """Return the milliseconds for which replicas have waited, of the one with the most; 0 if none waits."""
        now_ms = self._clock.monotonic_ms()
        return max((now_ms - waiting.since_ms for waiting in self._waiting.values()), default=0.0)

    def awaits(self, replica: Replica, then: Callable[[], None], *, leads: bool = False) -> bool:
        """Return True if the replica's log may take no record yet. `then` is called once it may, unless a later call
        gave another function."""
        if not self._lacks(replica, leads):
            return False
        known = self._waiting.get(replica)
        if known is not None:
            known.leads, known.then = leads, then
        else:
            self._waiting[replica] = _Waiting(self._clock.monotonic_ms(), leads, then)
            self._tasks[replica] = spawn(self._bring(replica), self._on_fatal)
        return True

    def _lacks(self, replica: Replica, leads: bool) -> bool:
        """True if the tier may have records before the log's start, whose producers the log does not know.

        A follower's metadata may be older than its leader's: offsets beyond them may be in the tier. Records that the
        metadata call deleted are gone, and so are their producers.
        """
        plog, state = replica.log, replica.state
        if plog is None or not state.log_config.remote_storage or plog.failure is not None:
            return False
        start, tier = plog.log_start_offset, state.tier
        # rule B24/new-replicas-know-nobody, rule B24/what-the-metadata-do-not-reach-was-deleted
        return plog.lacks_producers() and tier.start_offset < start and not (leads and start > tier.end_offset)

    async def _bring(self, replica: Replica) -> None:
        pause_ms = RETRY_MS
        try:
            while self._lacks(replica, self._waiting[replica].leads):
                try:
                    await self._bring_now(replica)
                except (KafkaError, StoreError) as error:
                    self._tell(replica, error)
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
        except StorageError as error:
            replica.fail(str(error))
        except FileNotFoundError:
            pass  # its directory was deleted under it
        finally:
            del self._tasks[replica]
            waiting = self._waiting.pop(replica)
        waiting.then()

    async def _bring_now(self, replica: Replica) -> None:
        """Load the producers. Raises KafkaError and StoreError for failures that may pass, StorageError,
        FileNotFoundError."""
        plog, state = replica.log, replica.state
        if plog is None:
            return
        offset = plog.log_start_offset
        if offset > state.tier.end_offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata do not say yet what lies before it")
        if self._reader is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "this broker has no remote.log.storage.url")
        where = state.topic_partition, state.topic_id, state.tier
        producers = await producers_before(self._reader, *where, offset, now_ms=int(self._clock.monotonic_ms()))
        try:
            begun = await plog.begin_with(offset, producers)
        except DiskError as error:
            raise plog.disk_failed(error) from error
        if begun:
            mark("producers-from-the-tier")
            log.info(
                "a log knows the producers of what lies before it in the object store",
                partition=str(replica.topic_partition),
                log_start_offset=offset,
                producers=len(producers),
            )

    def _tell(self, replica: Replica, error: Exception) -> None:
        mark("producers-wait-for-the-tier")
        plog = replica.log
        log.warning(
            "a replica waits: who wrote what lies before its log is not known yet, and it is not in sync until then",
            partition=str(replica.topic_partition),
            log_start_offset=None if plog is None else plog.log_start_offset,
            tiered_end_offset=replica.state.tier.end_offset,
            reason=str(error),
        )
