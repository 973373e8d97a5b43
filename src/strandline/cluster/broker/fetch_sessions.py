"""Incremental fetch sessions (KIP-227): a client names its partitions once and then only what changed.

A session is a memory of the wire: which partitions the client fetches, and what the last answers said of each. It
belongs to the connection that opened it, as a client opens a new one after a reconnect anyway, and ends with it. The
number of all sessions is bounded; a session that nobody has used for a while makes room for a new one, and where
there is no room a fetch is served in full, without a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.cluster.broker.parked_fetch import FetchedPartition
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.fetch_request import FINAL_EPOCH, FetchPartition, PartitionKey
from strandline.proto.ports import Clock

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

    __slots__ = ("by_id", "epoch", "owner", "partitions", "session_id", "used_ms")

    def __init__(self, session_id: int, owner: object, by_id: bool, used_ms: float) -> None:
        self.session_id = session_id
        self.owner = owner
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

    def changed(self, results: Iterable[FetchedPartition]) -> list[FetchedPartition]:
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
    """All sessions of a broker.

    Invariants: at most `slots` sessions; each is found only by the connection that opened it.
    """

    def __init__(self, clock: Clock, slots: int) -> None:
        self._clock = clock
        self._slots = slots
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
        session_id: int,
        epoch: int,
        by_id: bool,
        wanted: Sequence[FetchPartition],
        forgotten: Sequence[PartitionKey],
    ) -> Opened:
        """What a request with this session id and epoch asks for (Kafka's `FetchManager.newContext`)."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            known = self._sessions.get(session_id)
            if known is not None and known.owner is owner:
                del self._sessions[session_id]
            session = None if epoch == FINAL_EPOCH or not wanted else self._create(owner, by_id, wanted)
            return Opened(ErrorCode.NONE, session, False, wanted)
        session = self._sessions.get(session_id)
        if session is None or session.owner is not owner:
            return Opened(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, False, [])
        if session.epoch != epoch:
            return Opened(ErrorCode.INVALID_FETCH_SESSION_EPOCH, None, False, [])
        if session.by_id != by_id:
            return Opened(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None, False, [])
        session.update(wanted, forgotten)
        del self._sessions[session_id]
        if not session.partitions:
            return Opened(ErrorCode.NONE, None, False, [])
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = self._clock.monotonic_ms()
        self._sessions[session_id] = session
        return Opened(ErrorCode.NONE, session, True, [known.wanted for known in session.partitions.values()])

    def drop(self, session: FetchSession) -> None:
        """Nobody was told of it."""
        self._sessions.pop(session.session_id, None)

    def drop_all_of(self, owner: object) -> None:
        """The connection is gone."""
        for session_id in [key for key, session in self._sessions.items() if session.owner is owner]:
            del self._sessions[session_id]

    def _create(self, owner: object, by_id: bool, wanted: Sequence[FetchPartition]) -> FetchSession | None:
        now_ms = self._clock.monotonic_ms()
        if len(self._sessions) >= self._slots and not self._evict_one(now_ms):
            return None
        self._last_id = 1 if self._last_id == EPOCH_MAX else self._last_id + 1
        while self._last_id in self._sessions:
            self._last_id += 1
        session = FetchSession(self._last_id, owner, by_id, now_ms)
        session.update(wanted, ())
        self._sessions[session.session_id] = session
        return session

    def _evict_one(self, now_ms: float) -> bool:
        """Make room: the least recently used session goes, if it has not been used for long enough."""
        for session_id, session in self._sessions.items():
            if now_ms - session.used_ms < EVICTION_MS_MIN:
                return False
            del self._sessions[session_id]
            self.evictions += 1
            return True
        return False
