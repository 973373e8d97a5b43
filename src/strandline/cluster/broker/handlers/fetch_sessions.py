"""Fetch sessions (KIP-227): a client lists its partitions once, and then only changes; responses contain only
partitions that have changed. This module keeps the sessions' state and reads no log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.cluster.broker.memory import PARTITION_BYTES, KeptMemory
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.fetch import FINAL_EPOCH, FetchPartition, PartitionData, PartitionKey
from strandline.proto.ports import Clock
from strandline.proto.steps import Steps, parts

INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
EVICTION_MS_MIN = 120_000
"""Milliseconds without use before a session may be evicted (Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""


class FetchedPartition(PartitionData):
    """Result of one partition.

    Attributes:
        wanted: the partition as the request asks for it.
        tp: the partition, once found; None: it has an error.
        next_offset: offset from which to read on.
        was_cold: it was read from disk or object store, not from memory.
    """

    __slots__ = ("next_offset", "tp", "wanted", "was_cold")

    def __init__(self, wanted: FetchPartition) -> None:
        super().__init__(wanted.topic, wanted.partition)
        self.wanted = wanted
        self.tp: TopicPartition | None = None
        self.next_offset = wanted.fetch_offset
        self.was_cold = False

    def fail(self, error: ErrorCode) -> None:
        self.error = error

    @property
    def says_more(self) -> bool:
        """True if the result has something other than records, which the response must tell at once: an error, a
        divergence, or a preferred replica."""
        return self.error is not ErrorCode.NONE or self.diverging is not None or self.preferred_replica >= 0


def key_of(wanted: FetchPartition) -> PartitionKey:
    return wanted.topic, wanted.partition


class _Known:
    """A partition of a session, with the offsets last sent to the client; -1: none, so the next response has it."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1

    def must_be_sent(self, result: FetchedPartition) -> bool:
        """Return whether the response must include the partition; stores the offsets that the client then knows."""
        if result.says_more:
            self.high_watermark = -1  # an error is repeated while it lasts, and the next result is sent in any case
            return True
        before = (self.high_watermark, self.log_start_offset)
        self.high_watermark, self.log_start_offset = result.high_watermark, result.log_start_offset
        return result.size > 0 or before != (result.high_watermark, result.log_start_offset)


class FetchSession:
    """Fetch session of a client. `epoch` is the session epoch that its next request must have."""

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
        """Add or change the partitions in `wanted`, and remove those in `forgotten`."""
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
        """Return the results that are new to the client. Partitions with data are moved to the end of the session, so
        that no partition starves."""
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
    """Session of one request, and the partitions to read for it.

    Attributes:
        error: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, which is then
            the whole response; NONE: no error.
        session: the session; None: the fetch has none.
        incremental: the response contains only partitions that have changed for the client.
        wanted: partitions to read, in order.
    """

    error: ErrorCode
    session: FetchSession | None
    incremental: bool
    wanted: Sequence[FetchPartition]


class FetchSessions:
    """All fetch sessions of a broker (KIP-227).

    A session stores which partitions the client fetches, and what the last responses said of each. It belongs to the
    connection that opened it, and ends with it, as a client opens a new session after a reconnect anyway. A new session
    may evict one that has not been used for `EVICTION_MS_MIN`; if none can be evicted, a fetch is served in full,
    without a session.

    The memory of a session's partitions is charged to `KeptMemory` for its principal; if that is used up, a fetch is
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
        """Number of partitions in all sessions."""
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
        """Find or begin the session of a request with this session id and epoch (Kafka's `FetchManager.newContext`).

        Args:
            owner: connection of the request.
            by_id: the request names topics by id.
            begins: a new session may begin.
        """
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
        """End a session. Idempotent."""
        if self._sessions.pop(session.session_id, None) is not None:
            # rule A27/ended-sessions-keep-their-room
            self._kept.release(session.principal, PARTITION_BYTES * len(session.partitions))

    def drop_all_of(self, owner: object) -> None:
        """End the sessions of a closed connection."""
        for session in [session for session in self._sessions.values() if session.owner is owner]:
            self.drop(session)

    def _update(
        self, session: FetchSession, wanted: Sequence[FetchPartition], forgotten: Sequence[PartitionKey]
    ) -> Steps[bool]:
        """Apply the partitions that a request adds and forgets. Return False if no memory is left for them, or the
        session has ended meanwhile."""
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
        """True if the session has not ended between two steps, as it does with its connection."""
        return self._sessions.get(session.session_id) is session  # rule A27/sessions-without-a-connection

    def _create(
        self, owner: object, principal: str, by_id: bool, wanted: Sequence[FetchPartition]
    ) -> Steps[FetchSession | None]:
        """Begin a session, or return None if there is no slot or memory. It is registered before the first step, so
        that it ends with its connection even between two steps."""
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
        """Drop the least recently used session if it has not been used for `EVICTION_MS_MIN`. Return whether it was."""
        for session in self._sessions.values():
            if now_ms - session.used_ms < EVICTION_MS_MIN:
                return False
            self.drop(session)
            self.evictions += 1
            return True
        return False
