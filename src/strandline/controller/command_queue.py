"""Queue of the active controller's commands: they run in order, share appends, and are answered once their records
are committed (rule A13).

A command's records are replayed before they are appended, from the bytes that would be appended (rule A16, schedule
61). A command whose records cannot be replayed is refused and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from strandline.controller.machine.state import MachineState, Progress, Result
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.records import MetadataRecord
from strandline.controller.metadata.table import decode_records, encode_records
from strandline.controller.quorum.api import NotLeader, QuorumLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, KafkaError
from strandline.proto.marks import mark

T = TypeVar("T")
log = structlog.get_logger("strandline.controller")

MAX_BATCH_BYTES = 1024 * 1024
"""Commands of one loop turn share a batch up to about this size; one command's records are never split."""

_RECORD_OVERHEAD_BYTES = 32
"""Maximum bytes that a batch adds to each record."""

_NOT_YET = 2**63
"""Offset greater than every real one: the command has not run yet."""

Command = Callable[[MachineState, int], Result[T]]
"""A command: (state, offset that its first record would have) -> result; raises KafkaError to refuse."""


class _Deferred(Generic[T]):
    """An answer that waits until `offset` is committed."""

    __slots__ = ("error", "future", "offset", "reply")

    def __init__(self, future: asyncio.Future[T]) -> None:
        self.future = future
        self.offset = _NOT_YET
        self.reply: T | None = None
        self.error: KafkaError | None = None

    def resolve(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.reply)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A command's records after a successful replay: their bytes, and the change that they make to the image."""

    encoded: list[bytes]
    size: int
    delta: MetadataDelta | None


_NOTHING = _Replayed([], 0, None)


def not_controller() -> KafkaError:
    """The answer of a controller that is not, or no longer, the active one."""
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")


class CommandQueue:
    """Runs commands on the working image, appends their records, and answers once these are committed.

    Commands that arrive in one turn of the loop run in order of arrival in the next turn, and share one append. A
    refusal also waits until the records before it are committed, because it may depend on them. A command with many
    changes runs in several turns, with other commands between them (rule A39); its caller gets the last turn's reply.

    Invariants:
    - the working image equals a replay of the log and the open batch; a record that cannot be replayed is in neither.

    `begin` gives the queue a state to work on when this node becomes the active controller. `end` takes it away: each
    command without an answer fails with NOT_CONTROLLER, even if its records are committed later.
    """

    def __init__(self, quorum: QuorumLog, on_lost: Callable[[], None], on_fatal: Callable[[FatalError], None]) -> None:
        self._quorum = quorum
        self._on_lost = on_lost
        self._on_fatal = on_fatal
        self._state: MachineState | None = None
        self._epoch = -1
        self._committed = -1
        self._commands: deque[tuple[Command[Any], asyncio.Future[Any], Progress]] = deque()
        self._unfinished: list[tuple[Command[Any], asyncio.Future[Any], Progress]] = []
        self._deferred: deque[_Deferred[Any]] = deque()
        self._scheduled = False
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self.decided: Callable[[MachineState, Sequence[MetadataRecord]], None] = lambda _state, _records: None
        """Called with the records of each command right before they are applied to the working image."""
        self.before_turn: Callable[[], None] = lambda: None
        self.after_turn: Callable[[], None] = lambda: None

    @property
    def state(self) -> MachineState | None:
        """The state of the active controller; None on a standby."""
        return self._state

    def begin(self, state: MachineState, epoch: int) -> None:
        """Start as the active controller of `epoch`, with a `state` built on the committed image."""
        self._state = state  # rule A13/working-image-outlives-the-leadership/2
        self._epoch = epoch
        self._committed = state.image.offset

    def end(self) -> None:
        """Stop being the active controller: drop the state, and fail every command without an answer."""
        self._state = None  # rule A13/working-image-outlives-the-leadership
        self._epoch = -1
        commands, self._commands, self._unfinished = [*self._commands, *self._unfinished], deque(), []
        deferred, self._deferred = self._deferred, deque()
        for _, future, _ in commands:
            _fail(future)
        for answer in deferred:  # rule A13/deferred-answers-are-forgotten
            _fail(answer.future)

    def submit(self, command: Command[T]) -> asyncio.Future[T]:
        """Queue a command. The future yields its reply, or raises KafkaError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._state is None:
            future.set_exception(not_controller())
        else:
            self._commands.append((command, future, Progress()))
            self.schedule()
        return future

    def schedule(self) -> None:
        """Run a turn soon, even if no command arrives."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def committed(self, offset: int) -> None:
        """Answer the commands that waited for `offset`: everything up to it is now committed."""
        self._committed = offset
        while self._deferred and self._deferred[0].offset <= offset:
            self._deferred.popleft().resolve()

    def run_now(self, command: Command[T], progress: Progress | None = None) -> T:
        """Run a command of the controller itself inside a turn; no caller waits for its commit. If `progress` is not
        finished afterwards, another turn follows soon.

        Raises:
            KafkaError: the command's records cannot be replayed; nothing was changed.
        """
        state = self._active()
        progress = Progress() if progress is None else progress
        state.begin_step(progress)
        result = command(state, self._next_offset())
        replayed = self._replayed(state, result.records)
        self.decided(state, result.records)
        self._append(state, replayed)
        progress.end_step()
        if not progress.finished:
            self.schedule()
        return result.reply

    # A turn

    def _turn(self) -> None:
        self._scheduled = False
        if self._state is None:
            return
        self._batch, self._batch_bytes = [], 0
        try:
            self.before_turn()
            while self._commands:
                self._run(*self._commands.popleft())
            self._flush()
            if self._unfinished:
                self._commands.extend(self._unfinished)
                self._unfinished.clear()
                self.schedule()
        except NotLeader:
            self._on_lost()
            return
        except Exception as error:
            # The working image and the log may differ now, so that no further decision may rest on the image.
            self._on_lost()
            self._on_fatal(error if isinstance(error, FatalError) else FatalError(f"The controller failed: {error!r}"))
            return
        self.committed(self._committed)
        self.after_turn()

    def _run(self, command: Command[Any], future: asyncio.Future[Any], progress: Progress) -> None:
        state = self._active()
        if future.done() and progress.steps == 0:
            return
        # Registered before anything can go wrong: `end` then fails this command too, and no caller waits for ever.
        answer: _Deferred[Any] = _Deferred(future)
        self._deferred.append(answer)
        replayed = _NOTHING
        state.begin_step(progress)
        try:
            result = command(state, self._next_offset())
            replayed = self._replayed(state, result.records)
        except KafkaError as error:
            answer.error = error  # rule A13/refusal-before-commit
        except Exception as error:
            log.exception("a command of the controller failed")
            answer.error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller failed at this: {error!r}")
        else:
            answer.reply = result.reply
            self.decided(state, result.records)
        self._append(state, replayed)
        progress.end_step()
        if answer.error is None and not progress.finished:  # rule A39/the-first-step-is-answered
            self._deferred.pop()
            self._unfinished.append((command, future, progress))
            return
        answer.offset = state.image.offset  # rule A13/answer-before-commit

    def _active(self) -> MachineState:
        if self._state is None:
            raise FatalError("internal error: a command of the active controller ran on a standby")
        return self._state

    def _replayed(self, state: MachineState, records: list[MetadataRecord]) -> _Replayed:
        """Encode the records, and replay the encoded bytes on the working image.

        Raises:
            KafkaError: UNKNOWN_SERVER_ERROR if the records cannot be replayed; RECORD_LIST_TOO_LARGE if they exceed the
                greatest batch.
        """
        if not records:
            return _NOTHING
        try:
            encoded = encode_records(records)
            delta = state.replay(decode_records(encoded))
        except (FatalError, ValueError, TypeError) as error:  # rule A16/appended-before-it-is-replayed
            mark("unreplayable-refused")  # rule A16/appended-before-it-is-replayed/2
            log.error("refused: no node could replay the records of a command", error=str(error))
            message = f"The controller refused it, for no node could replay its records: {error}"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message) from error
        size = sum(map(len, encoded))
        if size + _RECORD_OVERHEAD_BYTES * len(encoded) > self._quorum.max_append_bytes:  # rule A16/batch-of-any-size
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                "This changes more at once than one batch of the metadata log may hold. Ask for less at once.",
                bytes=size,
                max_append_bytes=self._quorum.max_append_bytes,
            )
        return _Replayed(encoded, size, delta)

    def _append(self, state: MachineState, replayed: _Replayed) -> None:
        if replayed.delta is None:
            return
        if self._batch and self._batch_bytes + replayed.size > MAX_BATCH_BYTES:
            self._flush()
        state.adopt(replayed.delta, self._next_offset() + len(replayed.encoded) - 1)
        self._batch += replayed.encoded
        self._batch_bytes += replayed.size

    def _next_offset(self) -> int:
        return self._quorum.log_end_offset + len(self._batch)

    def _flush(self) -> None:
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        expected = self._quorum.log_end_offset + len(batch) - 1
        last = self._quorum.append(self._epoch, batch)
        if last != expected:
            raise FatalError(
                f"The metadata log gave offset {last} to a record that was promised {expected}: "
                "broker epochs would lie."
            )


def _fail(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(not_controller())
