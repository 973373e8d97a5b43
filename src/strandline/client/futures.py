"""The futures that `send` returns, one kind a world, completed a whole batch at a time.

A record's future is the producer's hottest object: threads get a `concurrent.futures.Future` that shares one condition
with its batch (building a condition costs more than encoding the record), coroutines get their loop's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, Protocol

from strandline.client.loop_thread import refused
from strandline.client.types import Ack


class FutureKind(Protocol):
    """Makes and completes the futures of one producer."""

    def shared(self) -> Any:
        """What the futures of one batch have in common."""

    def new(self, shared: Any) -> Any:
        """A pending future."""

    def finish(self, shared: Any, futures: Sequence[Any], acks: Sequence[Ack]) -> None:
        """Complete them in order."""

    def fail(self, shared: Any, futures: Sequence[Any], error: Exception) -> None:
        """End them all with one error."""


class BatchCondition(threading.Condition):
    """What the futures of one batch wait on. `on_sender` says whether the caller runs on the thread that completes
    them, which must not wait for itself."""

    def __init__(self, on_sender: Callable[[], bool]) -> None:
        super().__init__()
        self.on_sender = on_sender


class RecordFuture(Future[Ack]):
    """The acknowledgement of one record to come. It cannot be cancelled: the record may be on its way."""

    _condition: BatchCondition

    def __init__(self, condition: BatchCondition) -> None:
        # Not Future.__init__, which would build a condition of its own (see the module's docstring).
        self._condition = condition
        self._state = RUNNING
        self._result = None
        self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def result(self, timeout: float | None = None) -> Ack:
        """The ack, waiting at most `timeout` seconds. Raises what the record failed with, TimeoutError, or ClientError
        where a callback of the producer would wait for itself."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        ack: Ack = self._result  # type: ignore[assignment]
        return ack

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the record failed with, or None, waiting at most `timeout` seconds. Raises TimeoutError, ClientError."""
        if self._state != FINISHED and self._condition.on_sender():
            raise refused("a future's result")
        with self._condition:
            # A condition is shared: it may be notified for others (the halves of a split batch).
            if not self._condition.wait_for(lambda: self._state == FINISHED, timeout):
                raise TimeoutError
        return self._exception


class ThreadFutures:
    """Futures for threads.

    Args:
        on_sender: whether the caller runs on the thread that completes them.
    """

    def __init__(self, on_sender: Callable[[], bool] = lambda: False) -> None:
        self._on_sender = on_sender

    def shared(self) -> BatchCondition:
        """One condition for all records of a batch: they complete together."""
        return BatchCondition(self._on_sender)

    def new(self, shared: BatchCondition) -> RecordFuture:
        """A pending future."""
        return RecordFuture(shared)

    def finish(self, shared: BatchCondition, futures: Sequence[RecordFuture], acks: Sequence[Ack]) -> None:
        """Set every result, then wake everybody once, then run callbacks."""
        with shared:
            for future, ack in zip(futures, acks, strict=True):
                future._result = ack
                future._state = FINISHED
                for waiter in future._waiters:
                    waiter.add_result(future)
            shared.notify_all()
        _run_callbacks(futures)

    def fail(self, shared: BatchCondition, futures: Sequence[RecordFuture], error: Exception) -> None:
        """Set the error everywhere, then wake everybody once, then run callbacks."""
        with shared:
            for future in futures:
                future._exception = error
                future._state = FINISHED
                for waiter in future._waiters:
                    waiter.add_exception(future)
            shared.notify_all()
        _run_callbacks(futures)

    @staticmethod
    def disown(futures: Sequence[RecordFuture], error: Exception) -> None:
        """In the child of a fork: end the parent's pending futures, whose condition another thread may have held."""
        condition = BatchCondition(lambda: False)
        for future in futures:
            future._condition = condition
            if future._state == RUNNING:
                future._exception = error
                future._state = FINISHED


def _run_callbacks(futures: Sequence[RecordFuture]) -> None:
    for future in futures:
        if future._done_callbacks:
            future._invoke_callbacks()  # type: ignore[attr-defined]


class LoopFutures:
    """Futures for coroutines of one event loop."""

    def shared(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return asyncio.get_running_loop()

    def new(self, shared: asyncio.AbstractEventLoop) -> asyncio.Future[Ack]:
        """A pending future."""
        return shared.create_future()

    def finish(
        self, shared: asyncio.AbstractEventLoop, futures: Sequence[asyncio.Future[Ack]], acks: Sequence[Ack]
    ) -> None:
        """Set the results of those that nobody has cancelled."""
        for future, ack in zip(futures, acks, strict=True):
            if not future.done():
                future.set_result(ack)

    def fail(self, shared: asyncio.AbstractEventLoop, futures: Sequence[asyncio.Future[Ack]], error: Exception) -> None:
        """End those that nobody has cancelled."""
        for future in futures:
            if not future.done():
                future.set_exception(error)
                # A caller of acks=all that never looks at its futures learns of failures by flush() and close().
                future.exception()
