"""A thread with an event loop, on which the blocking classes run the asynchronous ones.

Methods that say "On the loop" are called on it; those that say "In the waiting thread", by the caller of a blocking
class. It refuses what would hang for ever (schedule 67): a call that waits for it, made on it by a callback;
and any call in a forked child, where the thread is not.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from strandline.client.errors import ClientError, ClosedError
from strandline.client.logs import log

T = TypeVar("T")

OF_THE_PARENT = (
    "this client belongs to the parent of this process, with its connections: they cannot be shared. "
    "Make one here, in the child"
)
CLOSED = "this client is closed"


def refused(call: str) -> ClientError:
    """The error of a call that would wait for the very thread that makes it."""
    return ClientError(
        f"{call} waits for the client's own thread, and was called on it, by a callback: it would wait for ever. "
        "A callback notes what happened (queue.Queue, threading.Event), and the client is called from another thread"
    )


async def nothing_to_await() -> None:
    """Farewell of a thread that was never used."""


def nothing_to_do() -> None:
    """The end of a thread that leaves nothing."""


def interrupted(call: str) -> ClientError:
    """The error of a signal's handler that would wait for what its thread holds up."""
    return ClientError(
        f"{call} waits for the client's thread, which waits for the very call that a signal's handler has interrupted: "
        "it would wait for ever. The handler notes the signal (a flag), and the program's own lines call the client"
    )


class Gate:
    """Gate that opens once for the thread that waits. No interrupt leaves it locked, as it may a `threading.Event`."""

    def __init__(self) -> None:
        self.is_open = False
        self._opened: SimpleQueue[None] = SimpleQueue()  # rule B37/a-gate-with-a-lock-in-python

    def open(self) -> None:
        """Wake the waiting thread."""
        self.is_open = True
        self._opened.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is open, at most `timeout_s`, and return whether it is. One thread at a time."""
        if not self.is_open:
            try:
                self._opened.get(timeout=None if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
            except Empty:
                pass
        return self.is_open


class SteppedOut:
    """Locks of the calling thread are free while it waits in here.

    A signal's handler may run in the middle of a call that holds one, and wait for the loop, which wants it. Those who
    hold them leave them at calls alone, and what they guard holds then.
    """

    def __init__(self, locks: Iterable[Any]) -> None:
        self._locks = locks
        self._held: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        for lock in self._locks:
            # rule B37/a-handler-waits-for-its-own-lock
            if lock._is_owned():  # as threading.Condition does
                self._held.append((lock, lock._release_save()))

    def __exit__(self, *_: object) -> None:
        while self._held:
            lock, state = self._held.pop()
            lock._acquire_restore(state)


class Calls:
    """Functions that coroutines on the loop want called by the thread that waits for them."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], object], asyncio.Future[None]] | None] = SimpleQueue()
        self._open: dict[asyncio.Future[None], None] = {}
        self._left = False

    async def ask(self, function: Callable[[], object]) -> None:
        """On the loop: have the function called. Raises what it raises, and CancelledError when that ends the waiting
        thread's call (KeyboardInterrupt, SystemExit), or has."""
        if self._left:
            raise asyncio.CancelledError
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[done] = None
        self._asked.put((function, done))
        try:
            await done
        finally:
            self._open.pop(done, None)

    def leave(self) -> None:
        """On the loop: cancel what is asked, for the waiting thread was interrupted and answers no more."""
        self._left = True
        for done in list(self._open):
            done.cancel()

    def end(self) -> None:
        """On the loop: end `answer`, for nothing more is asked."""
        self._asked.put(None)

    def answer(self) -> None:
        """In the waiting thread: call what is asked for, until `end`."""
        while (asked := self._asked.get()) is not None:
            function, done = asked
            try:
                function()
            except Exception as error:  # it belongs to the coroutine, which ends with it
                done.get_loop().call_soon_threadsafe(_settle, done, error)
            except BaseException:  # Ctrl-C, sys.exit: the thread's own; on the loop it would end the loop
                done.get_loop().call_soon_threadsafe(done.cancel)
                raise
            else:
                done.get_loop().call_soon_threadsafe(_settle, done, None)


class _Call(Generic[T]):
    """One coroutine on the loop, and the thread that waits for its outcome. It is made there, by `begin`: one that the
    thread made, and was interrupted before it handed it over, would never be awaited, and Python says so.

    Invariant: the outcome is taken by the thread, or what came is given to `lost` on the loop, and never both. Only
    the thread writes `taken` and `dropped`, only the loop the rest. CPython runs signal handlers after calls, and not
    between plain statements: "taken" and the `return` after it are one step, and so are an exception and "dropped".
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[T]],
        calls: Calls | None = None,
        lost: Callable[[T], None] | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        self.begin = begin
        self.calls = calls
        self.lost = lost
        self.is_last = is_last
        """Whether it ends the thread."""
        self.task: asyncio.Task[None] | None = None
        self.gate = Gate()
        self.taken = False
        self.dropped = False
        self.results: list[T] = []
        self.error: BaseException | None = None

    async def run(self, before: list[_Call[Any]]) -> None:
        """On the loop: run to the end, whatever it is, once the calls that were interrupted `before` have theirs."""
        running = [call.task for call in before if call.task is not None]
        try:
            if running:
                await asyncio.wait(running)
            begun = self.begin()
            # It may refer to the client, which is nobody else's any more, perhaps.
            del self.begin  # rule B43/the-last-call-keeps-its-client
            self.results.append(await begun)
        except BaseException as error:  # SystemExit too: it belongs to the caller, and would end the loop here
            self.error = error
        finally:
            end_where_forked()

    def end(self) -> None:
        """On the loop: open the gate, for its task has ended."""
        if not self.results and self.error is None:  # cancelled before it began
            self.error = asyncio.CancelledError()
        self.gate.open()
        if self.calls is not None:
            self.calls.end()

    def leave(self) -> bool:
        """On the loop: cut the call if its thread was interrupted, and return whether nothing is left to be done."""
        if self.taken or not self.dropped:
            return self.taken
        if not self.gate.is_open:
            if self.calls is not None:
                self.calls.leave()
            if self.task is not None:
                self.task.cancel()
            return False
        if self.lost is not None and self.results:
            self.lost(self.results.pop())  # schedule 64/interrupted-poll-counts-as-handed-out
        return True


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


ROUNDS = 10
"""Maximum rounds of cancelling tasks when a thread ends: cancelled tasks may start new ones."""


class LoopThread:
    """One daemon thread that runs one event loop until `stop`. Belongs to the process that made it.

    Every call raises ClosedError after `stop`, and in a forked child; ClientError on this very thread.
    """

    def __init__(self, name: str, made: list[LoopThread]) -> None:
        """`made`: gets this thread before it runs; see `end_unless`."""
        self.at_end: Callable[[], None] = nothing_to_do
        """Called on the loop at its end: settles what a farewell that was interrupted has left."""
        self.orphaned = False
        """Whether this process is a forked child: the thread stayed with the parent."""
        self._calls: list[_Call[Any]] = []
        """Calls that were not seen to be over. Changed by the loop alone."""
        self.unsettled = False
        """Whether a call was interrupted, and none has ended since: what it brought may be on its way back."""
        self._left: deque[BaseException] = deque()
        self._asked: dict[_Call[Any], None] = {}
        """Calls that the loop has not begun."""
        self._ending = False
        self._last: asyncio.Task[None] | None = None
        """The task that ends all others."""
        self._over = False
        self.locks: tuple[Any, ...] = ()
        """Locks that the loop takes, and that a call may hold when a signal's handler makes another one."""
        _living.add(self)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        made.append(self)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this very thread (a callback), where blocking would block itself."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop, and return its result."""

        async def run() -> T:
            return function()

        return self.wait(run)

    def leave(self, error: BaseException) -> None:
        """On the loop: keep a SystemExit or alike of the caller's code, which would end the thread and not the program,
        for the next call to raise."""
        log.critical("%r was raised on the client's thread: the next call raises it", error, exc_info=error)
        self._left.append(error)

    def raise_left(self) -> None:
        """Raise, once, what `leave` has kept."""
        if self._left:
            raise self._left.popleft()

    def wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Run the coroutine that `begin` makes on the loop, and return its result.

        An interrupt of the caller (Ctrl-C) cancels it, and leaves when it has ended; a second one leaves at once, and
        the next call begins when it has.
        """
        return self._await(_Call(begin))

    @property
    def closed(self) -> bool:
        """Whether it was stopped, or is being; so does it count in a forked child."""
        return self._ending or self.orphaned

    def serve(self, begin: Callable[[], Awaitable[T]], calls: Calls, lost: Callable[[T], None] | None = None) -> T:
        """Run a coroutine as `wait` does; what it asks of `calls` meanwhile is done here, by the waiting thread.

        Args:
            lost: given the result, on the loop, where the caller is interrupted and does not get it.
        """
        return self._await(_Call(begin, calls, lost))

    def stop(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Run `farewell`, cancel what is left, end the thread. Idempotent; nothing in a forked child.

        Raises:
            ClientError: on this very thread.
        """
        if self.orphaned or self.loop.is_closed():
            return
        if self.is_current:
            raise refused("close")
        try:
            if not self._ending:
                self._await(_Call(farewell, is_last=True))
        except ClosedError:
            if not self.closed:  # else another call has ended it
                raise
        finally:
            self.end()
            with SteppedOut(self.locks):
                self._thread.join()

    def end(self) -> None:
        """Have the thread end soon, without a farewell. Idempotent."""
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self._end)

    def _await(self, call: _Call[T]) -> T:
        try:
            self._check(call)
            with SteppedOut(self.locks):
                self._ask(call)
                if call.calls is not None:
                    call.calls.answer()
                call.gate.wait()
            error = call.error
            if error is None:
                result = call.results[0]
                call.taken = True
                call.results = []
                self.unsettled = False
                return result  # nothing was called since: see _Call
        except BaseException:
            call.dropped = True
            self.unsettled = True
            self._leave(call)
            raise
        call.taken = True
        call.error = None
        try:
            if isinstance(error, asyncio.CancelledError):
                raise ClosedError(CLOSED) if self.closed else CancelledError
            raise error
        finally:
            del error  # its traceback has this frame

    def _ask(self, call: _Call[Any]) -> None:
        """In the waiting thread: have the call begun, or ended where the loop has come to its end meanwhile."""
        self._asked[call] = None
        if self._over:
            self._asked.pop(call, None)
            call.end()
            return
        with suppress(RuntimeError):  # it is closed, and has seen the call
            self.loop.call_soon_threadsafe(self._begin, call)

    def _check(self, call: _Call[Any]) -> None:
        if self.closed or self.is_current:
            call.gate.open()
            if self._over:
                raise ClosedError(CLOSED)
            if self.orphaned:
                raise ClosedError(OF_THE_PARENT)
            raise ClosedError(CLOSED) if self.closed else refused("this call")
        if not call.is_last:
            self.raise_left()

    def _leave(self, call: _Call[Any]) -> None:
        """In the waiting thread: return once the call has ended, and its result has been returned."""
        if self.closed or self.is_current:
            return
        swept = Gate()

        def cut() -> None:
            if call.task is None:  # interrupted before it was to begin
                self._asked.pop(call, None)
                call.end()
            self._sweep()

        def sweep() -> None:
            try:
                self._sweep()
            finally:
                swept.open()

        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(cut)
            while not call.gate.wait(0.1) and not self._over:
                pass
            self.loop.call_soon_threadsafe(sweep)
            while not swept.wait(0.1) and not self._over:
                pass

    def _begin(self, call: _Call[Any]) -> None:
        self._sweep()
        if call not in self._asked:
            return
        del self._asked[call]
        interrupted = [before for before in self._calls if before.dropped]
        call.task = self.loop.create_task(call.run(interrupted))
        self._calls.append(call)
        call.task.add_done_callback(lambda _: self._ended(call))
        self._sweep()

    def _disown(self) -> None:
        """In the child of a fork: end every call, for what the one thread that is left waits for is the parent's."""
        for call in [*self._asked, *self._calls]:
            if not call.gate.is_open:
                call.error = ClosedError(OF_THE_PARENT)
                call.gate.open()
                if call.calls is not None:
                    call.calls.end()

    def _ended(self, call: _Call[Any]) -> None:
        call.end()
        self._sweep()

    def _sweep(self) -> None:
        """On the loop: cut the calls whose threads were interrupted, and give back what they brought."""
        self._calls[:] = [call for call in self._calls if not call.leave()]

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._over:  # rule B37/an-exit-on-the-thread-ends-it
            self._run(self.loop.run_forever)
        self.loop.close()

    def _end(self) -> None:
        """On the loop: begin to end it."""
        if not self._ending:
            self._ending = True
            self._last = self.loop.create_task(self._wind_up())

    async def _wind_up(self) -> None:
        """On the loop: end every task, settle what is left, and stop. No interrupt comes here: it may cut a farewell,
        or keep it from its begin, and not this."""
        try:
            self._run(self.at_end)  # rule B43/an-interrupted-close-answers-nobody
            for _ in range(ROUNDS):
                if not (rest := [task for task in asyncio.all_tasks() if task is not self._last]):
                    break
                for task in rest:
                    task.cancel()
                await asyncio.wait(rest)
            else:  # a farewell that was cut short has left timers, which begin new tasks for ever: these are nobody's
                log.warning("%s: its close was interrupted, and what it still did was left undone", self._thread.name)
                self.loop.set_exception_handler(lambda _loop, _context: None)
            await asyncio.sleep(0)  # what waits for them is told, and transports close their sockets
        finally:
            self._over = True
            for call in list(self._asked):
                self._asked.pop(call, None)
                call.end()
            self._sweep()
            self.loop.stop()

    def _run(self, work: Callable[[], object]) -> None:
        """Run `work` to its end; an error that escapes is kept for the next call."""
        try:
            work()
        except BaseException as error:
            self.leave(error)


def end_unless(made: Iterable[LoopThread], kept: LoopThread | None) -> None:
    """End the threads that were made and not kept: another one was faster, or an interrupt came in between."""
    for thread in made:
        if thread is not kept:
            thread.end()


_living: weakref.WeakSet[LoopThread] = weakref.WeakSet()
of_parents: list[object] = []
"""Objects kept for ever in a forked child: collecting a parent's loop or connections would close what both share."""


_forked: list[LoopThread] = []
"""In the child of a fork: the client's thread that has forked, if one did."""


def end_where_forked() -> None:
    """On the loop, after a callback of the caller's: end the child of a fork that was made there. It has no other
    thread, and this one would go on with the parent's connections."""
    if _forked and _forked[0].is_current:
        os._exit(0)


def _after_fork() -> None:
    for thread in list(_living):
        thread.orphaned = True
        of_parents.append(thread)
        thread._disown()
        if thread.is_current:
            _forked.append(thread)
    _living.clear()


os.register_at_fork(after_in_child=_after_fork)
