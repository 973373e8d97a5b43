"""Writer of a broker's audit lines to the topic `__audit`.

A line stays in memory until every in-sync replica has it. One task writes, so that no request waits for it. If too many
lines wait, further ones are dropped: their number is reported by the log, by a metric, and by a line in the topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import structlog

from strandline.cluster.node.audit_partitions import AppendAuditReply
from strandline.log.batch import RecordBatchBuilder
from strandline.proto.audit import BROKER_HEADER, audit_line
from strandline.proto.believed import BelievedClock
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.tasks import spawn

log = structlog.get_logger("strandline.audit")

LINES_MAX, BYTES_MAX = 10_000, 4 * 1024**2
"""Maximum waiting lines, and their bytes, apart from those of changes; more are dropped. At 400 bytes a line the two
bounds are about the same."""

CHANGES_BYTES_MAX = 16 * 1024**2
"""Maximum bytes of waiting lines of changes. No other line uses this space, which suffices for the largest requests."""

BATCH_LINES_MAX, BATCH_BYTES_MAX = 500, 256 * 1024
"""Maximum lines and bytes of one batch. It is made in the event loop, so it must be small; it must also be smaller than
any useful max.message.bytes."""

PAUSE_MS = (100.0, 1_000.0)
"""First and longest pause between attempts, in milliseconds."""

TELL_MS = 10_000.0
"""Minimum milliseconds between two reports of dropped audit lines (each with their number). An outage is reported once
it has lasted this long."""

AGAIN = frozenset(code for code in ErrorCode if code.retriable) - {ErrorCode.CORRUPT_MESSAGE}
"""Error codes after which a retry of the same batch may succeed."""

STOPPED = "the broker stopped before the topic had them"


class AppendsBatches(Protocol):
    """Destination of batches (`AuditPartitions`)."""

    async def append(self, batch: bytearray) -> AppendAuditReply:
        """Append one batch to the topic."""


class _Line(NamedTuple):
    moment_ms: int
    principal: bytes
    text: bytes
    is_change: bool = False
    tells_gap: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.principal) + len(self.text)


class _Room:
    """Number and bytes of the waiting lines of one kind."""

    def __init__(self) -> None:
        self.lines = self.bytes = 0

    def count(self, one: _Line, step: int) -> None:
        self.lines += step
        self.bytes += step * one.size_bytes


class AuditTopic:
    """Takes lines (`add`), and writes them while it runs (`start`, `close`).

    Invariants:
    - lines of changes wait up to `CHANGES_BYTES_MAX` bytes, other lines up to `LINES_MAX` lines and `BYTES_MAX` bytes;
    - each line that was added waits, is written, or is counted in `dropped`;
    - lines are written in the order in which they were added; one may be written twice, where it was not known whether
      the first attempt had succeeded.

    Attributes:
        dropped: lines that the topic did not get.
    """

    def __init__(self, broker: NodeId, partitions: AppendsBatches, believed: BelievedClock) -> None:
        self._headers = ((BROKER_HEADER, str(int(broker)).encode()),)
        self._partitions = partitions
        self._clock = believed
        self._lines: deque[_Line] = deque()
        self._rooms = {True: _Room(), False: _Room()}
        self._batch_lines = BATCH_LINES_MAX
        self._gap = 0
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failing_since_ms: float | None = None
        self._outage_told = False
        self._teller = _Teller()
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """Number of lines that are not in the topic yet."""
        return len(self._lines)

    # Life

    def start(self, fatal: Callable[[BaseException], None]) -> None:
        """Start the task that writes. `fatal` is called with an unexpected error of it."""
        self._task = spawn(self._run(), fatal, endless=True)

    def close(self) -> None:
        """Stop writing. Lines that still wait are dropped, and their number is logged."""
        if self._task is not None:
            self._task.cancel()
        self._drop(self._take(len(self._lines)), STOPPED)
        self._teller.close()

    # Adding lines

    def add(self, moment_ms: int, principal: str, line: str, *, is_change: bool) -> None:
        """Add a line, without waiting. It is dropped if there is no space for it."""
        one = _Line(moment_ms, principal.encode(errors="replace"), line.encode(), is_change)
        if self._has_room(one):
            self._put(one)
        else:
            self._drop([one], f"{len(self._lines)} lines wait already: {self._teller.reason or 'they come too fast'}")

    def _has_room(self, one: _Line) -> bool:
        room = self._rooms[one.is_change]  # rule A28/logins-take-the-room-of-changes
        if one.is_change:
            return room.bytes + one.size_bytes <= CHANGES_BYTES_MAX
        # rule A20/audit-lines-wait-without-bound
        return room.lines < LINES_MAX and room.bytes + one.size_bytes <= BYTES_MAX

    def _put(self, one: _Line) -> None:
        self._lines.append(one)
        self._rooms[one.is_change].count(one, 1)
        self._wake.set()

    def _take(self, count: int) -> list[_Line]:
        taken = [self._lines.popleft() for _ in range(count)]
        for one in taken:
            self._rooms[one.is_change].count(one, -1)
        return taken

    def _drop(self, lines: Sequence[_Line], why: str) -> None:
        """Count and report dropped lines. A line that reports a gap does not count: its dropped lines are counted."""
        count = sum(not one.tells_gap for one in lines)
        self._gap += count
        self.dropped += count  # rule A20/dropped-lines-are-not-counted
        self._teller.tell(count, why)

    def _tell_gap(self) -> None:
        """Add a line with the number of dropped lines, once there is room for it."""
        if self._gap:  # rule A20/a-gap-in-the-audit-is-silent
            moment_ms = self._clock.latest_ms()
            text = audit_line(moment_ms, "dropped", {"lines": self._gap}).encode()
            one = _Line(moment_ms, b"", text, tells_gap=True)
            if self._has_room(one):
                self._gap = 0
                self._put(one)

    # Writing lines

    async def _run(self) -> None:
        pause_ms = PAUSE_MS[0]
        while True:
            self._wake.clear()
            if not self._lines:
                await self._wake.wait()
            elif await self._write_some():
                pause_ms = PAUSE_MS[0]
                await asyncio.sleep(0)  # an append may end at once: let the event loop run other work
            else:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, PAUSE_MS[1])

    async def _write_some(self) -> bool:
        """Write one batch. Returns False if it must be retried later."""
        count, batch = self._next_batch()
        try:
            outcome = await self._partitions.append(batch)
        except Exception as error:
            if self._failing_since_ms is None:
                log.exception("internal error: audit lines are not written to the topic", lines=count)
            self._note_failure(repr(error))
            return False
        why = f"{outcome.error.name}: {outcome.message}"
        if outcome.error in AGAIN:
            self._note_failure(why)
            return False
        if outcome.error is ErrorCode.NONE:
            self._batch_lines = min(self._batch_lines * 2, BATCH_LINES_MAX)
            self._take(count)
            self._note_success()
        elif count > 1:  # the batch is too large, or one line is invalid: smaller batches lose only that line
            self._batch_lines = count // 2
        else:
            self._drop(self._take(1), why)
        self._tell_gap()
        return True

    def _next_batch(self) -> tuple[int, bytearray]:
        """Return the number of lines and the batch of the first waiting lines, at least one."""
        builder = RecordBatchBuilder()
        size = 0
        for one in islice(self._lines, self._batch_lines):
            size += one.size_bytes
            if builder.count and size > BATCH_BYTES_MAX:
                break
            builder.append(one.moment_ms, one.principal, one.text, self._headers)
        return builder.count, builder.build()

    def _note_failure(self, why: str) -> None:
        now_ms = self._clock.monotonic_ms()
        self._teller.reason = why
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        elif now_ms - self._failing_since_ms >= TELL_MS and not self._outage_told:
            self._outage_told = True
            log.warning("audit lines wait for the topic", lines=len(self._lines), because=self._teller.reason)

    def _note_success(self) -> None:
        if self._outage_told:
            log.info("the topic takes audit lines again", waiting=len(self._lines), dropped=self.dropped)
        self._failing_since_ms, self._outage_told, self._teller.reason = None, False, ""


class _Teller:
    """Logs the number of dropped lines: at once, and then once per `TELL_MS` while more are dropped.

    Attributes:
        reason: why the last write to the topic failed; "": it succeeded.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._untold = 0
        self._why = ""
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, lines: int, why: str) -> None:
        """Count `lines` more that were dropped."""
        self._untold += lines
        self._why = why
        if self._timer is None:
            self._log()

    def close(self) -> None:
        """Log the number of lines not reported yet."""
        if self._timer is not None:
            self._timer.cancel()
        self._log()
        if self._timer is not None:
            self._timer.cancel()

    def _log(self) -> None:
        self._timer = None
        if self._untold:
            log.warning("audit lines were dropped: the topic does not have them", lines=self._untold, because=self._why)
            self._untold = 0
            self._timer = asyncio.get_running_loop().call_later(TELL_MS / 1000, self._log)
